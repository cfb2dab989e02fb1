"""Runs any program without a shell: its lines are heard as they come, and nothing it started is left behind."""

from __future__ import annotations

import contextlib
import os
import queue
import re
import signal
import subprocess
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from ndld_flow.backends.processes.parent import end_group
from ndld_flow.errors import BackendError, RequestError
from ndld_flow.plain_text import shortened, visible_text

_LINE_END = re.compile(rb"\r\n|\n|\r")
_LONGEST_LINE = 2000
_LONGEST_RAW = 2**20
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
    secrets: Mapping[str, str] = field(default_factory=dict)
    """Variable -> its value, which nobody is told: `$TOKEN` stands in its place."""

    @property
    def name(self) -> str:
        return Path(self.command[0]).name

    def hide(self, line: str) -> str:
        """A line without secrets; values that are shorter than four letters stand in any text."""
        for name, value in self.secrets.items():
            line = line.replace(value, f"${name}") if len(value) >= 4 else line
        return line


def run_program(program: Program, hear: Callable[[str], None]) -> None:
    """Run a program to its end; `hear` gets each line of its output and errors, made visible, as it comes.

    Whatever happens here, the program and all of its process group have ended afterwards. Raises `BackendError` when it
    cannot be started, `RequestError` with its last lines when it fails or takes longer than it may.
    """
    try:
        process = subprocess.Popen(
            list(program.command),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            env=dict(program.environment),
        )
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise BackendError(f"the program {program.command[0]!r} cannot be started: {reason}") from None
    last: deque[str] = deque(maxlen=_LAST_LINES)
    try:
        for line in _lines(process, program):
            told = program.hide(line)
            last.append(told)
            hear(told)
    except subprocess.TimeoutExpired:
        raise RequestError(
            f"the program {program.name!r} did not end within {program.timeout_s:g} s and was stopped; allow it more "
            f"by `timeout`.{_said(last)}"
        ) from None
    finally:
        end_group(process)
    if process.returncode:
        raise RequestError(f"the program {program.name!r} ended with {_code(process.returncode)}.{_said(last)}")


def _lines(process: subprocess.Popen[bytes], program: Program) -> Iterator[str]:
    """The program's lines as they come, until it has ended. Raises `TimeoutExpired`."""
    lines: queue.Queue[str | None] = queue.Queue()
    # A thread, as a pipe cannot be waited for with a limit everywhere; it closes the pipe itself.
    pipe, process.stdout = process.stdout, None
    threading.Thread(target=_read_lines, args=(pipe, lines), daemon=True).start()
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


def _read_lines(pipe: IO[bytes], lines: queue.Queue[str | None]) -> None:
    """Lines as they come; a progress bar's carriage returns end lines too."""
    rest = b""
    with pipe:
        while piece := os.read(pipe.fileno(), 2**16):
            *whole, rest = _LINE_END.split(rest + piece)
            for line in whole:
                _put(line, lines)
            if len(rest) > _LONGEST_RAW:
                _put(rest, lines)
                rest = b""
    _put(rest, lines)
    lines.put(None)


def _put(line: bytes, lines: queue.Queue[str | None]) -> None:
    text = visible_text(line.decode(errors="replace")).rstrip()
    if text:
        lines.put(shortened(text, _LONGEST_LINE))


def _said(last: Sequence[str]) -> str:
    if not last:
        return " It said nothing."
    return f" It said last: {' / '.join(shortened(line, 300) for line in last)}"


def _code(code: int) -> str:
    if code >= 0:
        return f"code {code}"
    known = [one.name for one in signal.Signals if one == -code]
    return f"signal {known[0] if known else -code}"
