"""How a recipe says which names it means: a name, a glob, or a regular expression between slashes."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from fnmatch import fnmatchcase
from functools import lru_cache
from typing import Annotated

from pydantic import AfterValidator

from ndld_flow.bounded_regex import MAX_PATTERN, BoundedRegex
from ndld_flow.errors import RequestError
from ndld_flow.plain_text import shortened


def is_regex(pattern: str) -> bool:
    """Whether a pattern is written as `/.../`."""
    return len(pattern) > 2 and pattern.startswith("/") and pattern.endswith("/")


def is_plain(pattern: str) -> bool:
    """Whether a pattern is a name and nothing else."""
    return not is_regex(pattern) and not any(wild in pattern for wild in "*?[")


def name_matcher(pattern: str) -> Callable[[str], bool]:
    """Says which names a pattern fits. `*` and `?` are wild; `/.../` is a regex, searched in the name.

    Raises RequestError, also when a name is told, for a regex that is broken or takes too long.
    """
    if not is_regex(pattern):
        return lambda name: name == pattern or fnmatchcase(name, pattern)
    with _telling(pattern):
        regex = BoundedRegex(pattern[1:-1])

    def fits(name: str) -> bool:
        with _telling(pattern):
            return regex.fits(name)

    return fits


def groups_found(pattern: str, name: str) -> tuple[str, ...] | None:
    """What the regex of a `/.../` finds in a name, then what each of its groups does; None where it finds nothing.

    Raises RequestError as `name_matcher` does.
    """
    with _telling(pattern):
        found = _compile(pattern[1:-1]).search(name)
    return (found[0], *found.groups(default="")) if found is not None else None


_compile = lru_cache(BoundedRegex)


@contextlib.contextmanager
def _telling(pattern: str) -> Iterator[None]:
    try:
        yield
    except ValueError as error:
        raise RequestError(f"the name pattern {shortened(pattern, 80)!r}: {error}. Write a simpler one.") from None


def _check(pattern: str) -> str:
    if is_regex(pattern):
        try:
            BoundedRegex(pattern[1:-1])
        except ValueError as error:
            raise ValueError(f"{shortened(pattern, 80)!r} is not a regular expression: {error}") from None
    elif len(pattern) > MAX_PATTERN:
        raise ValueError(f"a pattern has at most {MAX_PATTERN:,} characters, this one has {len(pattern):,}")
    return pattern


NamePattern = Annotated[str, AfterValidator(_check)]
"""A setting that is such a pattern; a broken regular expression is told before anything runs."""
