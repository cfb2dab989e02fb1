"""How a recipe says which names it means: a name, a glob, or a regular expression between slashes."""

from __future__ import annotations

import re
from collections.abc import Callable
from fnmatch import fnmatchcase
from typing import Annotated

from pydantic import AfterValidator


def is_regex(pattern: str) -> bool:
    """Whether a pattern is written as `/.../`."""
    return len(pattern) > 2 and pattern.startswith("/") and pattern.endswith("/")


def is_plain(pattern: str) -> bool:
    """Whether a pattern is a name and nothing else."""
    return not is_regex(pattern) and not any(wild in pattern for wild in "*?[")


def name_matcher(pattern: str) -> Callable[[str], bool]:
    """Says which names a pattern fits. `*` and `?` are wild; `/.../` is a regex, searched in the name."""
    if is_regex(pattern):
        regex = re.compile(pattern[1:-1])
        return lambda name: regex.search(name) is not None
    return lambda name: name == pattern or fnmatchcase(name, pattern)


def _check(pattern: str) -> str:
    if is_regex(pattern):
        try:
            re.compile(pattern[1:-1])
        except re.error as error:
            raise ValueError(f"{pattern!r} is not a regular expression: {error}") from None
    return pattern


NamePattern = Annotated[str, AfterValidator(_check)]
"""A setting that is such a pattern; a broken regular expression is told before anything runs."""
