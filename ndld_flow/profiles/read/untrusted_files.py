"""Read untrusted text and JSON within limits: oversized or special files are refused, invalid values dropped.

trtexec prints names without escaping them: quotes, backslashes and control characters end up in the file as they are. A
run that was stopped leaves its end out, and C++ prints `nan` and `inf`. Valid JSON is left to the standard library; the
rest is read by these rules:

- a quote ends a text only if it is followed by a valid token: a colon after a key; after a value in an object `}`
  or the next key; after a value in a list `]` or the next value;
- a backslash that does not begin a JSON escape is literal;
- if the text is truncated, the innermost unfinished object of each list is left out and the enclosing ones are kept.
"""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from pydantic import JsonValue

from ndld_flow.base.errors import RequestError

MAX_BYTES = 500_000_000
"""Maximum size of a file that is read in pieces."""
MAX_WHOLE_BYTES = 64_000_000
"""Maximum size of a file that is read as a whole, enough for 50,000 detailed TensorRT layers."""
_HEAD, _TAIL, _PIECE = 1 << 18, 1 << 16, 1 << 20


def read_ends(path: Path) -> str:
    """Return the first 256 KiB and the last 64 KiB, enough to identify a file. Raises RequestError."""
    try:
        with path.open("rb") as file:
            head = file.read(_HEAD)
            file.seek(max(len(head), path.stat().st_size - _TAIL))
            return (head + file.read(_TAIL)).decode(_encoding(head), "replace")
    except OSError as error:
        raise _unreadable(path, error) from error


def read_whole(path: Path) -> str:
    """Return the text of a file. Raises RequestError if it cannot be read or is larger than 64 MB."""
    check_size(path, MAX_WHOLE_BYTES)
    return "".join(read_pieces(path))


def read_pieces(path: Path) -> Iterator[str]:
    """Yield the text of a file, about 1 MiB at a time. Raises RequestError for one over 500 MB."""
    check_size(path)
    try:
        with path.open("rb") as file:
            raw = file.read(_PIECE)
            decoder = codecs.getincrementaldecoder(_encoding(raw))("replace")
            while raw:
                yield decoder.decode(raw)
                raw = file.read(_PIECE)
    except OSError as error:
        raise _unreadable(path, error) from error


def read_lines(path: Path) -> Iterator[str]:
    """Yield the lines of a file; lines over 1 MiB are split. Raises RequestError as `read_pieces` does."""
    rest = ""
    for piece in read_pieces(path):
        *lines, rest = (rest + piece).split("\n")
        yield from lines
        if len(rest) > _PIECE:
            yield rest
            rest = ""
    yield rest


def check_size(path: Path, limit: int = MAX_BYTES) -> None:
    """Raise RequestError if a file is larger than `limit` or inaccessible."""
    try:
        size = path.stat().st_size
    except OSError as error:
        raise _unreadable(path, error) from error
    if size > limit:
        raise RequestError(f"{path} has {size / 1e6:,.0f} MB; the maximum size of a profile is {limit / 1e6:,.0f} MB")


def _encoding(head: bytes) -> str:
    """Return the encoding of a file by its first bytes; PowerShell's `>` writes UTF-16."""
    return "utf-16" if head.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)) else "utf-8-sig"


def _unreadable(path: Path, error: OSError) -> RequestError:
    return RequestError(f"{path} cannot be read: {error.strerror or error}")


_MAX_TEXT = 20_000
_MAX_NUMBER = 1e15
"""Larger values cannot be measurements, and their squares would overflow."""
_MAX_DIMENSIONS = 32
_MAX_ITEMS = 1_000


def text_of(value: object) -> str:
    """Return a text that is valid UTF-8, at most 20,000 characters; empty for anything else."""
    if not isinstance(value, str):
        return ""
    text = value[:_MAX_TEXT]
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    return text


def number_of(value: object) -> float | None:
    """Return a finite number of plausible size; None for anything else."""
    # Not isinstance: a bool is not a number here, and this runs for millions of values.
    if (type(value) is float or type(value) is int) and abs(value) <= _MAX_NUMBER:
        return float(value)
    return None


def whole_of(value: object) -> int | None:
    """Return a whole number; None for anything else."""
    number = number_of(value)
    return int(number) if number is not None and number.is_integer() else None


def shape_of(value: object) -> tuple[int, ...] | None:
    """Return a list of whole numbers; None for anything else."""
    if not isinstance(value, list) or len(value) > _MAX_DIMENSIONS:
        return None
    dims = tuple(dim for dim in map(whole_of, value) if dim is not None)
    return dims if len(dims) == len(value) else None


def objects_in(value: object) -> Iterator[Mapping[str, object]]:
    """Yield the objects of a list."""
    if isinstance(value, list):
        yield from (entry for entry in value if isinstance(entry, dict))


def plain_json(value: object, depth: int = 0) -> JsonValue:
    """Return a value that fits into a record: bounded, without NaN and infinity."""
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        return text_of(value)
    if isinstance(value, int | float):
        return value if number_of(value) is not None else None
    if depth > 4:
        return None
    if isinstance(value, list):
        return [plain_json(entry, depth + 1) for entry in value[:_MAX_ITEMS]]
    if isinstance(value, dict):
        pairs = list(value.items())[:_MAX_ITEMS]
        return {text_of(str(key)): plain_json(entry, depth + 1) for key, entry in pairs}
    return None


_MAX_DEPTH = 64
_SPACE = re.compile(r"[\s,]*")
_BARE = re.compile(r'[^\s,:\[\]{}"]+')
_ENDS_KEY = re.compile(r"\s{0,100}:")
_ENDS_MEMBER = re.compile(r'\s{0,100}(?:\}|,\s{0,100}(?:"[^"\n]{1,100}"\s{0,100}:|\})|\Z)')
_ENDS_ITEM = re.compile(r'\s{0,100}(?:\]|,\s{0,100}["{\[\]\d-]|\Z)')
_ESCAPE = re.compile(r'\\(?:(["\\/bfnrt])|u([0-9a-fA-F]{4}))')
_ESCAPED = {"b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t"}
_WORDS: dict[str, object] = {"true": True, "false": False}


@dataclass(frozen=True)
class Parsed:
    """A parsed value."""

    value: object
    is_proper: bool
    """False if it is not valid JSON."""
    is_cut_off: bool = False
    """True if the text is truncated."""


def parse_tolerantly(text: str) -> Parsed:
    """Read JSON or nearly valid JSON. `NaN` and `inf` become None.

    Raises ValueError if there is nothing to read or the nesting is too deep.
    """
    try:
        return Parsed(json.loads(text, strict=False, parse_constant=lambda _: None), True)
    except ValueError:
        pass
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    reader = _Reader(text)
    value = reader.value(_ENDS_ITEM, 0)
    if not isinstance(value, dict | list):
        raise ValueError("it is not JSON")
    return Parsed(value, False, reader.ended)


class _Reader:
    """A reader with a position in the text that only moves forward."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.at = 0
        self.ended = False

    def value(self, ends: re.Pattern[str], depth: int) -> object:
        if depth > _MAX_DEPTH:
            raise ValueError("it is nested too deeply")
        start = self._next()
        if start == "{":
            return self._object(depth)
        if start == "[":
            return self._list(depth)
        if start == '"':
            return self._text(ends)
        return self._bare()

    def _next(self) -> str:
        """Return the next character that is neither space nor comma; empty at the end."""
        space = _SPACE.match(self.text, self.at)
        self.at = space.end() if space else self.at
        if self.at >= len(self.text):
            self.ended = True
            return ""
        return self.text[self.at]

    def _object(self, depth: int) -> dict[str, object]:
        members: dict[str, object] = {}
        self.at += 1
        while (start := self._next()) not in ("", "]"):
            if start == "}":
                self.at += 1
                break
            key = self._text(_ENDS_KEY) if start == '"' else str(self._bare())
            if self._next() != ":":
                continue
            self.at += 1
            if self._next() == "}":
                continue
            value = self.value(_ENDS_MEMBER, depth + 1)
            if not self.ended or isinstance(value, dict | list):
                members[key] = value
        return members

    def _list(self, depth: int) -> list[object]:
        items: list[object] = []
        self.at += 1
        while (start := self._next()) not in ("", "}"):
            if start == "]":
                self.at += 1
                break
            item = self.value(_ENDS_ITEM, depth + 1)
            if not self.ended or isinstance(item, list):
                items.append(item)
        return items

    def _text(self, ends: re.Pattern[str]) -> str:
        start = quote = self.at + 1
        while (quote := self.text.find('"', quote)) >= 0:
            if ends.match(self.text, quote + 1) and not self._is_escaped(quote):
                self.at = quote + 1
                return _ESCAPE.sub(_unescape, self.text[start:quote])
            quote += 1
        self.at, self.ended = len(self.text), True
        return ""

    def _is_escaped(self, quote: int) -> bool:
        before = quote
        while self.text[before - 1] == "\\":
            before -= 1
        return (quote - before) % 2 == 1

    def _bare(self) -> object:
        match = _BARE.match(self.text, self.at)
        if match is None:
            self.at += 1
            return None
        self.at = match.end()
        self.ended = self.ended or self.at == len(self.text)
        word = match[0]
        return _WORDS[word] if word in _WORDS else float_or_none(word)


def float_or_none(text: str) -> float | None:
    """Return the number that a text is, NaN and infinity included; None if it is none."""
    try:
        return float(text)
    except ValueError:
        return None


def _unescape(match: re.Match[str]) -> str:
    return chr(int(match[2], 16)) if match[2] else _ESCAPED.get(match[1], match[1])
