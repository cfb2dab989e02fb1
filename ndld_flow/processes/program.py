"""Runs programs without a shell: passes on their output line by line and ends everything that they started."""

from __future__ import annotations

import contextlib
import os
import queue
import re
import subprocess
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, TYPE_CHECKING

from ndld_flow.base.errors import BackendError, KilledError, RequestError
from ndld_flow.base.text import shortened, visible_text
from ndld_flow.processes.launch import kill_group, name_signal

if TYPE_CHECKING:
    import logging

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
