"""Starts worker processes, reads their messages, and ends them with this process."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Self

from ndld_flow.base.errors import KilledError
from ndld_flow.base.lazy_pattern import lazy_pattern
from ndld_flow.base.text import short_name, shortened
from ndld_flow.machine.host import GPU_ORDER
from ndld_flow.processes.lines import MAX_LINE_BYTES

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
    command: Sequence[str],
    stderr: int | IO[bytes] = subprocess.DEVNULL,
    environment: Mapping[str, str] | None = None,
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
