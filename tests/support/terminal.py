"""Commands in a real pseudo-terminal, and the screen that they leave."""

from __future__ import annotations

import os
import re
import struct
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.process_runs import ProcessRun
from tests.support.worker_toys import wait_until

pty = pytest.importorskip("pty", reason="pseudo-terminals are a Unix thing")
fcntl = pytest.importorskip("fcntl", reason="pseudo-terminals are a Unix thing")
termios = pytest.importorskip("termios", reason="pseudo-terminals are a Unix thing")

_ROWS = 40
_SENT = re.compile(r"\x1b\[(?P<number>\d*)(?P<move>[AKGJ])|\x1b\[[0-9;?]*[A-Za-z]|(?P<text>[^\x1b])")


def run_in_terminal(
    folder: Path,
    *arguments: str,
    columns: int = 100,
    interrupt_at: str = "",
    shown: Callable[[str], None] = lambda _: None,
) -> tuple[int, str]:
    """Return the exit code and everything that a terminal of this width was sent.

    Ctrl-C is typed as soon as the terminal has been sent the text `interrupt_at`. `shown` is called with all text so
    far whenever more arrives.
    """
    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", _ROWS, columns, 0, 0))
    process = ProcessRun(*arguments, cwd=folder, env={"TERM": "xterm-256color"}, terminal=os.ttyname(slave))
    wait_until(lambda: process.has_terminal)  # a terminal that nobody has open is gone
    os.close(slave)
    sent = b""
    while True:
        try:
            part = os.read(master, 65536)
        except OSError:  # on Linux, the other side has closed
            break
        if not part:
            break
        sent += part
        shown(plain(sent.decode(errors="replace")))
        if interrupt_at and interrupt_at in plain(sent.decode(errors="replace")):
            os.write(master, b"\x03")
            interrupt_at = ""
    os.close(master)
    return process.finish(60)[0], sent.decode()


def plain(text: str) -> str:
    """Return the text without colours and cursor movements."""
    return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", text)


class _Screen:
    """All rows of a terminal, those that have scrolled away too; the cursor moves only in the last ones, its window."""

    def __init__(self, columns: int, height: int) -> None:
        self._columns, self._height, self._row, self._column = columns, height, 0, 0
        self.rows = [[" "] * columns]

    def write(self, character: str) -> None:
        if character == "\r":
            self._column = 0
            return
        if character == "\n" or self._column == self._columns:
            self._row, self._column = self._row + 1, 0
            self.rows += [[" "] * self._columns] if self._row == len(self.rows) else []
        if character != "\n":
            self.rows[self._row][self._column] = character
            self._column += 1

    def move(self, command: str, number: int) -> None:
        if command == "A":
            self._row = max(self._row - number, len(self.rows) - self._height, 0)
        elif command == "K":
            self.rows[self._row] = [" "] * self._columns


def screen_of(sent: str, columns: int, height: int = _ROWS) -> list[str]:
    """Return the lines that a terminal of this size shows in the end, as xterm would, with all that scrolled away."""
    screen = _Screen(columns, height)
    for match in _SENT.finditer(sent):
        if match["move"]:
            screen.move(match["move"], int(match["number"] or 1))
        elif match["text"]:
            screen.write(match["text"])
    lines = ["".join(row).rstrip() for row in screen.rows]
    while lines and not lines[-1]:
        lines.pop()
    return lines
