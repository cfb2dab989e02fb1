"""Lists of `name:precision`, in the format of TAO and trtexec."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from ndld_flow.base.errors import RequestError
from ndld_flow.base.text import suggest
from ndld_flow.records.layer_arithmetic import PRECISIONS

_COMMENT = re.compile(r"(^|\s)#.*")
_KNOWN = (*PRECISIONS, "none")


@dataclass(frozen=True)
class ListedPrecision:
    """One entry of a list."""

    line: int
    """Line number, from 1."""
    name: str
    """A node's name or a glob. It may contain colons: the last one ends it."""
    precision: str
    """One of `records.precision.PRECISIONS`, or `none`."""


def read_precision_list(path: Path) -> tuple[ListedPrecision, ...]:
    """Return the entries in the file's order: one per line, or several separated by commas; `#` starts a comment.

    Raises `RequestError` for a file that cannot be read, and one for all invalid entries together.
    """
    try:
        text = path.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise RequestError(f"{path}: the list of precisions cannot be read ({error.strerror}).") from None
    except UnicodeDecodeError:
        raise RequestError(f"{path}: this is not a list of precisions: it is not UTF-8 text.") from None
    entries = [
        ListedPrecision(number, name.strip(), precision.strip().lower())
        for number, entry in _entries(text)
        for name, _, precision in (entry.rpartition(":"),)
    ]
    problems = [f"{path}:{entry.line}: {problem}" for entry in entries if (problem := _problem(entry))]
    if problems:
        raise RequestError("\n".join(problems))
    return tuple(entries)


def _entries(text: str) -> Iterator[tuple[int, str]]:
    for number, line in enumerate(text.splitlines(), 1):
        for entry in _COMMENT.sub("", line).split(","):
            if entry.strip():
                yield number, entry.strip()


def _problem(entry: ListedPrecision) -> str:
    if not entry.name:
        return f"{entry.precision!r} is not `name:precision`"
    if entry.precision not in _KNOWN:
        return f"{entry.name!r} has no precision {entry.precision!r}; {suggest(entry.precision, _KNOWN)}"
    return ""
