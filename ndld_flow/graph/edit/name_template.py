"""New names made of old ones: `backbone_{name}`, `conv_{index:03}`, `layer{1}_{2}`."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Annotated

from pydantic import AfterValidator, Field

from ndld_flow.base.errors import RequestError
from ndld_flow.base.name_patterns import groups_found, is_regex
from ndld_flow.base.text import suggest

_PART = re.compile(r"\{\{|\}\}|\{(?P<word>[^{}:]*)(?::0?(?P<width>[1-9]))?\}|[{}]")
WORDS = ("name", "stem", "op_type", "index", "output")
"""`stem` is what stands after the last `/` or `.` of the old name, `output` the first tensor that a node makes."""


def fill(template: str, facts: Mapping[str, str]) -> str:
    """The template with facts in place of their words. Raises `RequestError` for a group that the pattern lacks."""

    def put(part: re.Match[str]) -> str:
        word = part["word"]
        if word is None:
            return part[0][0]
        if word not in facts:
            raise RequestError(f"{template!r}: no `/regular expression/` of `select` has a group {{{word}}}")
        return facts[word].rjust(int(part["width"] or 0), "0")

    return _PART.sub(put, template)


def groups_of(patterns: Sequence[str], name: str) -> dict[str, str]:
    """`1`, `2`, ...: what the groups of the first regular expression that fits found in a name; `0` is all it found."""
    for pattern in filter(is_regex, patterns):
        groups = groups_found(pattern, name)
        if groups is not None:
            return {str(number): group for number, group in enumerate(groups)}
    return {}


def stem_of(name: str) -> str:
    """`/model/layers.3/Conv` -> `Conv`."""
    return re.split(r"[/.]", name.rstrip("/."))[-1]


def _check(template: str) -> str:
    for part in _PART.finditer(template):
        word = part["word"]
        if word is None and part[0] not in ("{{", "}}"):
            raise ValueError(f"{template!r} has a single `{part[0]}`; write `{part[0] * 2}` for the character itself")
        if word is not None and word not in WORDS and not word.isdecimal():
            raise ValueError(f"{template!r}: there is no {{{word}}}; {suggest(word, WORDS)}")
    return template


NameTemplate = Annotated[str, Field(min_length=1), AfterValidator(_check)]
"""A setting that says new names."""
