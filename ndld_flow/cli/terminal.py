"""Width, colours and wrapped lines of terminals, without rich: the end of a reused run must not wait for its import."""

from __future__ import annotations

import os
import shutil
import sys
import textwrap
from collections.abc import Sequence
from typing import IO

NO_TERMINAL_WIDTH = 120
"""Columns of tables in a pipe or a log, which have no width, unless COLUMNS gives one."""
_LEAST_WIDTH = 20
_PARAGRAPH = 100
"""Columns beyond which lines of prose are hard to read."""
KEYWORDS = frozenset(
    {"graph", "engine", "precision", "accuracy", "latency", "gates", "and", "report", "result", "warning", "best"}
)
"""First words of the last lines of runs and sweeps."""
_KEYWORD_WIDTH = 11
_KEYWORD_STYLES = {"and": "red", "warning": "yellow"}
_STYLES = {"bold": "1", "dim": "2", "red": "31", "green": "32", "yellow": "33", "magenta": "35", "cyan": "36"}


def is_terminal(stream: IO[str]) -> bool:
    """Return whether a stream is a terminal that moves its cursor and shows colours."""
    return stream.isatty() and os.environ.get("TERM") != "dumb"


def has_colours(stream: IO[str]) -> bool:
    """Return whether a stream shows colours; NO_COLOR and FORCE_COLOR decide first (no-color.org)."""
    if os.environ.get("NO_COLOR"):
        return False
    return bool(os.environ.get("FORCE_COLOR")) or is_terminal(stream)


def width_of(stream: IO[str]) -> int:
    """Return the columns of a stream: COLUMNS, else the terminal's, else `NO_TERMINAL_WIDTH`."""
    width = os.environ.get("COLUMNS", "")
    if width.isdecimal() and int(width):
        return max(int(width), _LEAST_WIDTH)
    if not stream.isatty():
        return NO_TERMINAL_WIDTH
    try:
        columns = os.get_terminal_size(stream.fileno()).columns or 80
    except (OSError, ValueError):
        columns = shutil.get_terminal_size().columns
    return max(columns, _LEAST_WIDTH)


def styled(text: str, style: str, stream: IO[str] | None = None) -> str:
    """Return text in a style, such as `bold red`, if the stream (standard output) shows colours."""
    if not style or not text or not has_colours(stream or sys.stdout):
        return text
    return f"\x1b[{';'.join(_STYLES[word] for word in style.split())}m{text}\x1b[0m"


def wrapped(text: str, width: int, indent: str) -> str:
    """Return text broken between words; following lines begin with the indent. Long words, such as paths, stay whole.

    A terminal breaks those itself, so that they can be copied and followed.
    """
    if len(text) <= width:
        return text
    return textwrap.fill(
        text, width, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False, drop_whitespace=True
    )


def text_width() -> int:
    """Return the columns of paragraphs on standard output."""
    return min(width_of(sys.stdout), _PARAGRAPH)


def hanging(start: str, text: str) -> str:
    """Return a start and a text, which a terminal shows in lines beside the start; a log gets one line."""
    if not is_terminal(sys.stdout) and not os.environ.get("COLUMNS"):
        return start + text
    indent = " " * (len(start) if len(start) < width_of(sys.stdout) // 2 else 4)
    return start + wrapped(f"{start}{text}", width_of(sys.stdout), indent)[len(start) :]


def format_end(lines: Sequence[str], style: str, stream: IO[str]) -> list[str]:
    """Return the last lines of a run or a sweep as a stream shows them; the first is the verdict.

    Lines begin with a keyword: `gates 2 of 2 passed`. A terminal shows keywords in a column of their own, before
    wrapped text; a log gets the lines as they are, so that they can be searched.
    """
    head, *rest = lines
    if not is_terminal(stream):
        return [styled(head, f"bold {style}", stream), *rest]
    width = width_of(stream)
    shown = [styled(wrapped(head, width, ""), f"bold {style}", stream)]
    for line in rest:
        keyword, _, text = line.partition(" ")
        if keyword not in KEYWORDS:
            shown.append(wrapped(line, width, "  "))
            continue
        start = f"{keyword:<{_KEYWORD_WIDTH}}"
        body = wrapped(f"{start}{text}", width, " " * _KEYWORD_WIDTH) if " " in text else f"{start}{text}"
        shown.append(styled(start, _KEYWORD_STYLES.get(keyword, "dim"), stream) + body[_KEYWORD_WIDTH:])
    return shown
