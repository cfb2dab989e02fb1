"""Guards on standard output and standard error: names from models and recipes must not control terminals or CI systems.

Verbs escape names where they print them, and all output passes through this second guard. A terminal receives colours
and cursor movements but no other escape sequence; a CI system that scans lines for commands finds none.
"""

from __future__ import annotations

import contextlib
import os
import re
import sys
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, TextIO

from ndld_flow.base.text import lazy_pattern, visible_text

if TYPE_CHECKING:
    from ndld_flow.base.errors import OutputsError

_STDOUT, _STDERR = 1, 2
_OURS = lazy_pattern(r"\x1b\[(?:[0-9;]*[mABCDEFGHJK]|\?25[lh])|\r(?!\n)")
"""Colours, cursor movements and visibility: the sequences that rich and click send to terminals."""
_COLOURS = lazy_pattern(r"\x1b\[[0-9;]*m")
_COMMAND = lazy_pattern(r"^(\s*)::", re.MULTILINE)
"""GitHub's `::set-output` and `::error`, at the beginning of a line."""
_OLD_COMMAND = lazy_pattern(r"##(?=\w*\[)")
"""GitHub's `##[error]`, Azure's `##vso[...]` and TeamCity's `##teamcity[...]`, anywhere in a line."""


class ReaderGoneError(BrokenPipeError):
    """The program that reads standard output or standard error has closed the pipe, as `head` does.

    It has no errno, with which click would end the program with exit code 1.
    """


class GuardedStream:
    """A text stream that writes its text through the filter `keep`.

    After the first failed write, every write raises ReaderGoneError or OutputsError.
    """

    def __init__(self, stream: TextIO, keep: Callable[[str], str]) -> None:
        self._stream, self._keep = stream, keep
        self._failure: ReaderGoneError | OutputsError | None = None

    def write(self, text: str) -> int:
        with self._explaining():
            self._stream.write(self._keep(text))
        return len(text)

    def flush(self) -> None:
        with self._explaining():
            self._stream.flush()

    @contextlib.contextmanager
    def _explaining(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            from ndld_flow.base.errors import OutputsError

            os.dup2(os.open(os.devnull, os.O_WRONLY), self._stream.fileno())  # Python flushes again at exit
            name = "standard error" if self._stream.fileno() == _STDERR else "standard output"
            text = f"{name} cannot be written ({error.strerror}). Finished work is kept."
            self._failure = ReaderGoneError() if isinstance(error, BrokenPipeError) else OutputsError(text)
        if self._failure is not None:  # every time, since click ignores the error of its first, empty write
            raise self._failure

    def writelines(self, lines: list[str]) -> None:
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - any attribute of the stream
        return getattr(self._stream, name)


def open_missing_streams() -> None:
    """Open /dev/null in place of standard streams that the shell has closed (`>&-`).

    Otherwise the next opened file would get the descriptor, and output of native libraries would be written into it.
    """
    while (descriptor := os.open(os.devnull, os.O_RDWR)) <= _STDERR:
        os.set_inheritable(descriptor, True)  # for workers
    os.close(descriptor)
    sys.stdout = sys.stdout or open(_STDOUT, "w", encoding="utf-8", closefd=False)  # noqa: SIM115
    sys.stderr = sys.stderr or open(_STDERR, "w", encoding="utf-8", closefd=False)  # noqa: SIM115


@contextlib.contextmanager
def guarded_output() -> Iterator[None]:
    """Guard standard output and standard error inside the block."""
    out, err = sys.stdout, sys.stderr
    sys.stdout, sys.stderr = _guard(out), _guard(err)
    try:
        yield
    finally:
        sys.stdout, sys.stderr = out, err


def _guard(stream: TextIO) -> GuardedStream:
    if stream.isatty():
        return GuardedStream(stream, for_terminal)
    return GuardedStream(stream, for_coloured_file if os.environ.get("FORCE_COLOR") else for_file)


def for_terminal(text: str) -> str:
    """Return text that is safe for a terminal."""
    return _between(_OURS, visible_text, text)


def for_file(text: str) -> str:
    """Return text that is safe for a file, a pipe or a CI system."""
    return _OLD_COMMAND.sub("# #", _COMMAND.sub("\\1\N{PROPORTION}", visible_text(text)))


def for_coloured_file(text: str) -> str:
    """Return text that is safe for a file, with colours (FORCE_COLOR)."""
    return _between(_COLOURS, for_file, text)


def _between(kept: re.Pattern[str], change: Callable[[str], str], text: str) -> str:
    """Apply a change to all parts of a string that a pattern does not match."""
    pieces, end = [], 0
    for found in kept.finditer(text):
        pieces += [change(text[end : found.start()]), found[0]]
        end = found.end()
    return "".join([*pieces, change(text[end:])])
