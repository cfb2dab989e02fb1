"""Runs programs without a shell: passes on their output line by line and ends everything that they started."""

from __future__ import annotations

import contextlib
import logging
import os
import queue
import re
import signal
import subprocess
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from ndld_flow.base.errors import BackendError, KilledError, RequestError
from ndld_flow.base.text import shortened, visible_text
from ndld_flow.processes.launch import end_group

_LINE_END = re.compile(rb"\r\n|\n|\r")
_LONGEST_LINE = 2000
_LONGEST_RAW = 2**18
_MOST_WAITING = 1000
_LAST_LINES = 5
_PIPE_WAIT_S = 1.0
"""How long to listen on after the program has ended: what it started may hold its output open."""


@dataclass(frozen=True)
class Program:
    """What to run."""

    command: Sequence[str]
    environment: Mapping[str, str]
    """All of it: nothing is inherited."""
    timeout_s: float
    folder: Path | None = None
    """Where it stands; None where we do. Python imports from there."""
    secrets: Mapping[str, str] = field(default_factory=dict)
    """Variable -> its value, which nobody is told: `$TOKEN` stands in its place."""

    @property
    def name(self) -> str:
        return Path(self.command[0]).name

    def hide(self, line: str) -> str:
        """A line without secrets, or lines of them; what is shorter than four letters stands in any text."""
        for name, value in self.secrets.items():
            for part in map(visible_text, value.splitlines()):
                line = line.replace(part, f"${name}") if len(part) >= 4 else line
        return line


def run_program(program: Program, hear: Callable[[str], None]) -> None:
    """Run a program to its end; `hear` gets each line of its output and errors, made visible, as it comes.

    Whatever happens here, the program and all of its process group have ended afterwards. Raises `BackendError` when it
    cannot be started, `RequestError` with its last lines when it fails or takes longer than it may, and `KilledError`
    when a signal ends it.
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
            hear(line)
    except subprocess.TimeoutExpired:
        raise RequestError(
            f"the program {program.name!r} did not end within {program.timeout_s:g} s and was stopped; allow it more "
            f"by `timeout`.{_said(last)}"
        ) from None
    finally:
        end_group(process)
    if process.returncode:
        kind = KilledError if process.returncode < 0 else RequestError
        raise kind(f"the program {program.name!r} ended with {_code(process.returncode)}.{_said(last)}")


def _lines(process: subprocess.Popen[bytes], program: Program) -> Iterator[str]:
    """The program's lines as they come, until it has ended, without secrets. Raises `TimeoutExpired`."""
    lines = _Lines(program.hide)
    # A thread, as a pipe cannot be waited for with a limit everywhere; it closes the pipe itself.
    pipe, process.stdout = process.stdout, None
    threading.Thread(target=lines.read, args=(pipe,), daemon=True).start()
    try:
        yield from _until_end(process, program, lines.waiting)
    finally:
        lines.unheard.set()


def _until_end(process: subprocess.Popen[bytes], program: Program, lines: queue.Queue[str | None]) -> Iterator[str]:
    deadline = time.monotonic() + program.timeout_s
    ended_at: float | None = None
    while ended_at is None or time.monotonic() - ended_at < _PIPE_WAIT_S:
        if ended_at is None and process.poll() is not None:
            ended_at = time.monotonic()
        if ended_at is None and time.monotonic() > deadline:
            raise subprocess.TimeoutExpired(program.name, program.timeout_s)
        with contextlib.suppress(queue.Empty):
            line = lines.get(timeout=0.05)
            if line is None:
                break
            yield line
    process.wait(timeout=max(deadline - time.monotonic(), 0.1))


class _Lines:
    """Lines on their way from a pipe to whoever hears them: a program that says much must wait, and fills no memory."""

    def __init__(self, hide: Callable[[str], str]) -> None:
        self.waiting: queue.Queue[str | None] = queue.Queue(maxsize=_MOST_WAITING)
        """None is the end."""
        self.unheard = threading.Event()
        """Set when nobody listens any more."""
        self._hide = hide

    def read(self, pipe: IO[bytes]) -> None:
        """Lines as they come; a progress bar's carriage returns end lines too."""
        rest = b""
        with pipe:
            while not self.unheard.is_set() and (piece := os.read(pipe.fileno(), 2**16)):
                *whole, rest = _LINE_END.split(rest + piece)
                for line in whole:
                    self._tell(line)
                if len(rest) > _LONGEST_RAW:
                    self._tell(rest)
                    rest = b""
        self._tell(rest)
        self._put(None)

    def _tell(self, line: bytes) -> None:
        text = self._hide(visible_text(line.decode(errors="replace"))).rstrip()
        if text:
            self._put(shortened(text, _LONGEST_LINE))

    def _put(self, line: str | None) -> None:
        while not self.unheard.is_set():
            with contextlib.suppress(queue.Full):
                self.waiting.put(line, timeout=0.1)
                return


def _said(last: Sequence[str]) -> str:
    if not last:
        return " It said nothing."
    return f" It said last: {' / '.join(shortened(line, 300) for line in last)}"


def _code(code: int) -> str:
    if code >= 0:
        return f"code {code}"
    known = [one.name for one in signal.Signals if one == -code]
    return f"signal {known[0] if known else -code}"


_PASSED = ("PATH", "HOME", "LANG", "LC_ALL", "LC_CTYPE", "TZ", "SYSTEMROOT")
"""Of our environment, what a program needs to run at all."""
_MOST_LINES = 10_000
"""A log is kept with the record of the run."""


def little_environment(scratch: Path, passed: Iterable[str] = ()) -> dict[str, str]:
    """Of our environment what any program needs, and the variables in `passed`; temporary files go to `scratch`."""
    ours = {name: os.environ[name] for name in (*_PASSED, *passed) if name in os.environ}
    return {**ours, "TMPDIR": str(scratch)}


def log_to(log: logging.Logger, progress: Callable[[int, int, str], None]) -> Callable[[str], None]:
    """Writes lines to the step's log, up to a limit, and shows the last one."""
    count = 0

    def hear(line: str) -> None:
        nonlocal count
        count += 1
        if count <= _MOST_LINES:
            log.info("%s", line)
        elif count == _MOST_LINES + 1:
            log.info("further lines are not kept")
        progress(0, 0, line)

    return hear
