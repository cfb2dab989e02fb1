"""A tolerant parser for the nearly valid JSON that trtexec writes.

trtexec prints names without escaping them: quotes, backslashes and control characters end up in the file as they are. A
run that was stopped leaves its end out, and C++ prints `nan` and `inf`. Valid JSON is left to the standard library; the
rest is read by these rules:

- a quote ends a text only if it is followed by a valid token: a colon after a key; after a value in an object `}`
  or the next key; after a value in a list `]` or the next value;
- a backslash that does not begin a JSON escape is literal;
- if the text is truncated, the innermost unfinished object of each list is left out and the enclosing ones are kept.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass

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
        found = _SPACE.match(self.text, self.at)
        self.at = found.end() if found else self.at
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
        found = _BARE.match(self.text, self.at)
        if found is None:
            self.at += 1
            return None
        self.at = found.end()
        self.ended = self.ended or self.at == len(self.text)
        word = found[0]
        return _WORDS[word] if word in _WORDS else _number(word)


def _number(word: str) -> float | None:
    try:
        return float(word)
    except ValueError:
        return None


def _unescape(found: re.Match[str]) -> str:
    return chr(int(found[2], 16)) if found[2] else _ESCAPED.get(found[1], found[1])
