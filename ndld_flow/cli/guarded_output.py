"""What the tool prints, whoever named the things in it: it says something to people, and nothing to their machines.

Verbs make names visible where they print them; all they print goes through here once more. A terminal hears colours and
moves of the cursor and no other escape sequence; a CI system that reads lines for commands of its own finds none.
"""

from __future__ import annotations

import contextlib
import os
import re
import sys
from collections.abc import Callable, Iterator
from typing import Any, TextIO

from ndld_flow.base.errors import OutputsError
from ndld_flow.base.text import visible_text

_STDOUT, _STDERR = 1, 2
_OURS = re.compile(r"\x1b\[(?:[0-9;]*[mABCDEFGHJK]|\?25[lh])|\r(?!\n)")
"""Colours, moves of the cursor, hiding and showing it: what rich and click send to terminals."""
_COLOURS = re.compile(r"\x1b\[[0-9;]*m")
_COMMAND = re.compile(r"^(\s*)::", re.MULTILINE)
"""GitHub's `::set-output`, `::error`: at the beginning of a line."""
_OLD_COMMAND = re.compile(r"##(?=\w*\[)")
"""GitHub's `##[error]`, Azure's `##vso[...]`, TeamCity's `##teamcity[...]`: anywhere."""


class ReaderGoneError(BrokenPipeError):
    """The program that read standard output or standard error has closed the pipe, as `head` does.

    It has no error number: click would end the program with exit code 1.
    """


class GuardedStream:
    """A stream of text that passes on only what `keep` leaves of it.

    Once a write has failed, that and every later one raise ReaderGoneError or OutputsError.
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
            os.dup2(os.open(os.devnull, os.O_WRONLY), self._stream.fileno())  # Python flushes again when it ends
            name = "standard error" if self._stream.fileno() == _STDERR else "standard output"
            text = f"{name} cannot be written ({error.strerror}). What was finished is kept."
            self._failure = ReaderGoneError() if isinstance(error, BrokenPipeError) else OutputsError(text)
        if self._failure is not None:  # again, as click ignores errors of its first, empty write
            raise self._failure

    def writelines(self, lines: list[str]) -> None:
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - whatever the stream has
        return getattr(self._stream, name)


def open_missing_streams() -> None:
    """Open /dev/null as each of the standard streams that the shell has closed (`>&-`).

    Otherwise the next file that is opened would get its number, and what native libraries print would be written there.
    """
    while (descriptor := os.open(os.devnull, os.O_RDWR)) <= _STDERR:
        os.set_inheritable(descriptor, True)  # for workers
    os.close(descriptor)
    sys.stdout = sys.stdout or open(_STDOUT, "w", encoding="utf-8", closefd=False)  # noqa: SIM115
    sys.stderr = sys.stderr or open(_STDERR, "w", encoding="utf-8", closefd=False)  # noqa: SIM115


@contextlib.contextmanager
def guarded_output() -> Iterator[None]:
    """Inside, standard output and standard error are guarded."""
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
    """A text as a terminal may have it."""
    return _between(_OURS, visible_text, text)


def for_file(text: str) -> str:
    """A text as a file, a pipe or a CI system may have it."""
    return _OLD_COMMAND.sub("# #", _COMMAND.sub("\\1\N{PROPORTION}", visible_text(text)))


def for_coloured_file(text: str) -> str:
    """The same, with the colours that somebody asked for."""
    return _between(_COLOURS, for_file, text)


def _between(kept: re.Pattern[str], change: Callable[[str], str], text: str) -> str:
    """A text in which all but what is kept is changed."""
    pieces, end = [], 0
    for found in kept.finditer(text):
        pieces += [change(text[end : found.start()]), found[0]]
        end = found.end()
    return "".join([*pieces, change(text[end:])])
