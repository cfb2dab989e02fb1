"""Starts worker processes and programs, reads what they print, and ends them with all that they have started."""

from __future__ import annotations

import contextlib
import errno
import os
import queue
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, TYPE_CHECKING, Self

from ndld_flow.base.errors import BackendError, KilledError, RequestError
from ndld_flow.base.text import lazy_pattern, short_name, shortened, visible_text
from ndld_flow.machine.host import GPU_ORDER
from ndld_flow.processes.lines import MAX_LINE_BYTES

if TYPE_CHECKING:
    import logging

STDERR = "stderr.txt"
_NO_SPACE_BYTES = 2**16
_OS_ERROR = lazy_pattern(r"(?:\[Errno |OSError\()(\d+)")
"""The form of an uncaught OSError in a traceback."""
END_S = 5.0
"""Seconds in which a process that has closed its output, or that has a watchdog, may end by itself."""
_DISK = {errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO}


def name_signal(number: int) -> str:
    """Return the name of a signal, such as `SIGSEGV`; empty for an unknown number."""
    return next((known.name for known in signal.Signals if known == number), "")


@dataclass(frozen=True)
class ProcessEnd:
    """The end of a worker process."""

    code: int
    """Exit code; negative: the signal that killed it."""
    doing: str
    """Its last reported activity."""
    folder: Path

    @property
    def signal_name(self) -> str:
        """Return the name of the signal that killed it; empty if it exited."""
        if self.code >= 0:
            return ""
        return name_signal(-self.code) or f"signal {-self.code}"

    @property
    def output(self) -> str:
        """Return its standard error and the output of libraries."""
        return (self.folder / STDERR).read_text(encoding="utf-8", errors="replace").strip()

    def died(
        self, what: str, task: str = "", suspect: str = "", advice: str = "", last_line: str | None = None
    ) -> Exception:
        """Return the error for a process that ended without an answer: a signal, a full disk, or a bug.

        `task` is what it did ("measured MODEL on cpu"), `suspect` the code that crashed; without a task, a signal is a
        bug too. The last line of its output is shown unless another one is given.
        """
        if self.signal_name and task:
            reason = "the system may be short of memory" if self.signal_name == "SIGKILL" else f"{suspect} crashed"
            line = (self.output.splitlines() or [""])[-1] if last_line is None else last_line
            last = f" Last output: {shortened(line, 300).rstrip('. ')}." if line else ""
            return KilledError(
                f"the process that {task} was killed by {self.signal_name} while {short_name(self.doing)}: {reason}."
                f"{last} {advice}"
            )
        numbers = [int(number) for number in _OS_ERROR.findall(self.output)]
        if numbers and numbers[-1] in _DISK:
            return OSError(numbers[-1], os.strerror(numbers[-1]), str(self.folder))
        if shutil.disk_usage(self.folder).free < _NO_SPACE_BYTES:
            return OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self.folder))
        return RuntimeError(f"the {what} process ended with code {self.code} while {self.doing}:\n{self.output}")


class Child:
    """A process that reads lines and answers with lines. At the end of the `with` block, it is ended.

    It must end with its standard input, so that nothing is left when this process is killed.
    """

    def __init__(self, process: subprocess.Popen[bytes], patience_s: float = 0.0) -> None:
        """Give it `patience_s` to end by itself: it kills what it started in other sessions, or reports its end."""
        self._process, self._patience_s = process, patience_s
        self._writing = threading.Lock()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def lives(self) -> bool:
        return self._process.poll() is None

    def send(self, line: str) -> None:
        """Send a line, with its end. `read_line` notices if the process has ended."""
        assert self._process.stdin is not None
        with self._writing, contextlib.suppress(OSError, ValueError):
            self._process.stdin.write(line.encode())
            self._process.stdin.flush()

    def read_line(self) -> bytes:
        """Return its next line; an empty one if it has ended, or sends too much."""
        assert self._process.stdout is not None
        line = self._process.stdout.readline(MAX_LINE_BYTES)
        return line if line.endswith(b"\n") else b""

    def end(self, patience_s: float | None = None) -> int:
        """End the process with everything that it started, and return its exit code; negative: the signal.

        Any thread may call this, any number of times.
        """
        patience_s = self._patience_s if patience_s is None else patience_s
        if patience_s:
            self._close_input()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(patience_s)
        return kill_group(self._process)

    def release(self) -> None:
        """End the process, and close its pipes. Only the thread that reads its lines may call this."""
        self.end()
        self._close_input()
        if self._process.stdout is not None:
            self._process.stdout.close()

    def _close_input(self) -> None:
        if self._process.stdin is not None:
            with contextlib.suppress(OSError, ValueError):  # a command that it did not read
                self._process.stdin.close()


def module_command(module: str, *arguments: str) -> list[str]:
    """Return the command of a module; `-P`: a file `json.py` in the current directory must not be imported."""
    return [sys.executable, "-P", "-m", module, *arguments]


def start_process(
    command: Sequence[str], stderr: int | IO[bytes] = subprocess.DEVNULL, environment: Mapping[str, str] | None = None
) -> subprocess.Popen[bytes]:
    """Start a command with `environment` in addition to ours. Raises OSError if that is impossible."""
    return subprocess.Popen(
        list(command),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=stderr,
        start_new_session=True,  # Ctrl-C is for this process to handle
        env={**os.environ, **(environment or {})},
    )


def _start(module: str, folder: Path, environment: Mapping[str, str] | None) -> subprocess.Popen[bytes]:
    variables = dict([GPU_ORDER], **os.environ) | dict(environment or {})
    with (folder / STDERR).open("wb") as output:
        return start_process(module_command(module, str(folder)), output, variables)


def kill_group(process: subprocess.Popen[bytes]) -> int:
    """Kill a process that was started in a new session, and its descendants in that session; return its exit code."""
    if hasattr(os, "killpg"):
        with contextlib.suppress(OSError):  # none is left; macOS fails for a group that has just ended
            os.killpg(process.pid, signal.SIGKILL)  # a new session is a new process group
    elif process.poll() is None:
        process.kill()
    return process.wait()


def run_worker_module(
    module: str,
    folder: Path,
    report: Callable[[int, int, str], None],
    environment: Mapping[str, str] | None = None,
    timeout_s: float | None = None,
) -> ProcessEnd:
    """Run `python -P -m MODULE FOLDER` until it ends; it reads its job from the folder and writes its answer there.

    `report(done, total, what)` is called for its progress lines (see `worker.start_worker`). `environment` is added to
    ours; after `timeout_s` the process is killed. In any case it and all its descendants have ended afterwards; when
    this process is killed, it ends by itself, if it has called `worker.start_worker`.
    """
    doing = "starting"
    with Child(_start(module, folder, environment)) as child:
        limit = threading.Timer(timeout_s or 0.0, child.end)
        if timeout_s is not None:
            limit.start()
        try:
            while line := child.read_line():
                done, total, doing = line.decode(errors="replace").strip().split(" ", 2)
                report(int(done), int(total), doing)
            return ProcessEnd(child.end(END_S), doing, folder)
        finally:
            limit.cancel()


class CommandWorker(Child):
    """A worker process that runs one command at a time: it reads a line and answers with a line."""

    def __init__(
        self, module: str, folder: Path, environment: Mapping[str, str] | None = None, patience_s: float = 0.0
    ) -> None:
        super().__init__(_start(module, folder, environment), patience_s)
        self._folder = folder

    def receive(self, doing: str) -> str | ProcessEnd:
        """Return its next line, or `ProcessEnd` if it ended instead."""
        line = self.read_line()
        return line.decode(errors="replace").strip() or ProcessEnd(self.end(END_S), doing, self._folder)


_LINE_END = re.compile(rb"\r\n|\n|\r")
_LONGEST_LINE = 2000
_LONGEST_RAW = 2**18
_MOST_WAITING = 1000
_LAST_LINES = 5
_PIPE_WAIT_S = 1.0
"""How long output is still read after the program has ended: its descendants may keep it open."""


@dataclass(frozen=True)
class Program:
    """A program to run."""

    command: Sequence[str]
    environment: Mapping[str, str]
    """The complete environment: nothing is inherited."""
    timeout_s: float
    folder: Path | None = None
    """Its current directory; None for ours. Python imports from there."""
    secrets: Mapping[str, str] = field(default_factory=dict)
    """Variable -> its secret value, which is replaced by `$VARIABLE` in all output."""

    @property
    def name(self) -> str:
        return Path(self.command[0]).name

    def hide(self, line: str) -> str:
        """Return a line without secrets, or lines of them; those shorter than four characters are kept."""
        for name, value in self.secrets.items():
            for part in map(visible_text, value.splitlines()):
                line = line.replace(part, f"${name}") if len(part) >= 4 else line
        return line


def run_program(program: Program, report: Callable[[str], None]) -> None:
    """Run a program to its end; `report` is called with each line of its output and errors, made visible.

    In any case the program and its process group have ended afterwards. Raises `BackendError` if it cannot be
    started, `RequestError` with its last lines if it fails or exceeds its time limit, and `KilledError` if a signal
    ends it.
    """
    try:
        process = subprocess.Popen(
            list(program.command),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            env=dict(program.environment),
            cwd=program.folder,
        )
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise BackendError(f"the program {program.command[0]!r} cannot be started: {reason}") from None
    last: deque[str] = deque(maxlen=_LAST_LINES)
    try:
        for line in _lines(process, program):
            last.append(line)
            report(line)
    except subprocess.TimeoutExpired:
        raise RequestError(
            f"the program {program.name!r} did not finish within {program.timeout_s:g} s and was stopped; raise "
            f"`timeout`.{_last_output(last)}"
        ) from None
    finally:
        kill_group(process)
    if process.returncode:
        code = process.returncode
        end = f"code {code}" if code > 0 else f"signal {name_signal(-code) or -code}"
        message = f"the program {program.name!r} ended with {end}.{_last_output(last)}"
        raise RequestError(message) if code > 0 else KilledError(message)


def _lines(process: subprocess.Popen[bytes], program: Program) -> Iterator[str]:
    """Yield the program's lines until it has ended, without secrets. Raises `TimeoutExpired`."""
    lines = _Lines(program.hide)
    # A thread, as not every system can wait for a pipe with a timeout; it closes the pipe itself.
    pipe, process.stdout = process.stdout, None
    threading.Thread(target=lines.read, args=(pipe,), daemon=True).start()
    try:
        deadline = time.monotonic() + program.timeout_s
        ended_at: float | None = None
        while ended_at is None or time.monotonic() - ended_at < _PIPE_WAIT_S:
            if ended_at is None and process.poll() is not None:
                ended_at = time.monotonic()
            if ended_at is None and time.monotonic() > deadline:
                raise subprocess.TimeoutExpired(program.name, program.timeout_s)
            with contextlib.suppress(queue.Empty):
                line = lines.waiting.get(timeout=0.05)
                if line is None:
                    break
                yield line
        process.wait(timeout=max(deadline - time.monotonic(), 0.1))
    finally:
        lines.stopped.set()


class _Lines:
    """Lines between a pipe and their reader, in a bounded queue: a program with much output must wait."""

    def __init__(self, hide: Callable[[str], str]) -> None:
        self.waiting: queue.Queue[str | None] = queue.Queue(maxsize=_MOST_WAITING)
        """None is the end."""
        self.stopped = threading.Event()
        """Set when the reader has stopped."""
        self._hide = hide

    def read(self, pipe: IO[bytes]) -> None:
        """Read lines; the carriage returns of progress bars end lines too."""
        rest = b""
        with pipe:
            while not self.stopped.is_set() and (chunk := os.read(pipe.fileno(), 2**16)):
                *complete, rest = _LINE_END.split(rest + chunk)
                for line in complete:
                    self._add(line)
                if len(rest) > _LONGEST_RAW:
                    self._add(rest)
                    rest = b""
        self._add(rest)
        self._put(None)

    def _add(self, line: bytes) -> None:
        text = self._hide(visible_text(line.decode(errors="replace"))).rstrip()
        if text:
            self._put(shortened(text, _LONGEST_LINE))

    def _put(self, line: str | None) -> None:
        while not self.stopped.is_set():
            with contextlib.suppress(queue.Full):
                self.waiting.put(line, timeout=0.1)
                return


def _last_output(last: Sequence[str]) -> str:
    if not last:
        return " It printed nothing."
    return f" Last output: {' / '.join(shortened(line, 300) for line in last)}"


_PASSED = ("PATH", "HOME", "LANG", "LC_ALL", "LC_CTYPE", "TZ", "SYSTEMROOT")
"""Variables of our environment that any program needs."""
_MOST_LINES = 10_000
"""Maximum size of a log, which is stored in the record of the run."""


def minimal_environment(scratch: Path, passed: Iterable[str] = ()) -> dict[str, str]:
    """Return the variables that any program needs, and those in `passed`; temporary files go to `scratch`."""
    inherited = {name: os.environ[name] for name in (*_PASSED, *passed) if name in os.environ}
    return {**inherited, "TMPDIR": str(scratch)}


def log_to(log: logging.Logger, progress: Callable[[int, int, str], None]) -> Callable[[str], None]:
    """Return a function that writes lines to the step's log, up to a limit, and reports the last one as progress."""
    count = 0

    def report(line: str) -> None:
        nonlocal count
        count += 1
        if count <= _MOST_LINES:
            log.info("%s", line)
        elif count == _MOST_LINES + 1:
            log.info("further lines are not stored")
        progress(0, 0, line)

    return report
