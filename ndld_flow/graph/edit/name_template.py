"""Templates for new names: `backbone_{name}`, `conv_{index:03}`, `layer{1}_{2}`."""

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
"""Placeholders; `stem` is the part after the last `/` or `.`, `output` the first output of a node."""


def fill(template: str, facts: Mapping[str, str]) -> str:
    """Fill in the placeholders. Raises `RequestError` for a group that the pattern lacks."""

    def put(part: re.Match[str]) -> str:
        word = part["word"]
        if word is None:
            return part[0][0]
        if word not in facts:
            raise RequestError(f"{template!r}: no `/regular expression/` of `select` has a group {{{word}}}")
        return facts[word].rjust(int(part["width"] or 0), "0")

    return _PART.sub(put, template)


def groups_of(patterns: Sequence[str], name: str) -> dict[str, str]:
    """Return the groups of the first regular expression that matches a name as `1`, `2`, ...; `0` is the match."""
    for pattern in filter(is_regex, patterns):
        groups = groups_found(pattern, name)
        if groups is not None:
            return {str(number): group for number, group in enumerate(groups)}
    return {}


def stem_of(name: str) -> str:
    """Return the part after the last `/` or `.`: `/model/layers.3/Conv` -> `Conv`."""
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
"""A setting that is a template for names."""
