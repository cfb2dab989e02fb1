"""Patterns of names in recipes: a name, a glob, or a regular expression between slashes.

Recipes and models may be untrusted, so regular expressions are those of RE2
(https://github.com/google/re2/wiki/Syntax), which searches in time linear in the length of a name.
"""

from __future__ import annotations

from collections.abc import Callable
from fnmatch import fnmatchcase
from functools import lru_cache
from typing import TYPE_CHECKING, Annotated

from pydantic import AfterValidator

from ndld_flow.base.errors import RequestError
from ndld_flow.base.text import shortened

if TYPE_CHECKING:
    import re2

MAX_PATTERN = 1000
"""Maximum length of a pattern in characters."""
MAX_MEMORY = 2**18
"""Bytes that RE2 may use for a pattern. This also bounds its time to some milliseconds for names of usual length."""


def is_regex(pattern: str) -> bool:
    """Return whether a pattern is a regular expression, `/.../`."""
    return len(pattern) > 2 and pattern.startswith("/") and pattern.endswith("/")


def is_plain(pattern: str) -> bool:
    """Return whether a pattern is a plain name, without wildcards."""
    return not is_regex(pattern) and not any(wild in pattern for wild in "*?[")


def name_matcher(pattern: str) -> Callable[[str], bool]:
    """Return the predicate for a pattern. `*` and `?` are wildcards; `/.../` is searched in the name.

    Raises RequestError for a regex that RE2 rejects.
    """
    if not is_regex(pattern):
        return lambda name: name == pattern or fnmatchcase(name, pattern)
    regex = _regex(pattern)
    return lambda name: regex.search(_encode(name)) is not None


def groups_found(pattern: str, name: str) -> tuple[str, ...] | None:
    """Return the match of a `/.../` in a name, followed by the match of each group; None if there is no match.

    Raises RequestError as `name_matcher` does.
    """
    match = _regex(pattern).search(_encode(name))
    if match is None:
        return None
    return tuple(group.decode("utf-8", "surrogatepass") for group in (match[0], *match.groups(default=b"")))


def _encode(name: str) -> bytes:
    """Encode a name for RE2, which works on bytes; given text it would count characters to report unused offsets."""
    return name.encode("utf-8", "surrogatepass")


def _regex(pattern: str) -> re2._Regexp:
    try:
        return _compile(pattern[1:-1])
    except ValueError as error:
        raise RequestError(f"the name pattern {shortened(pattern, 80)!r}: {error}") from None


@lru_cache
def _compile(pattern: str) -> re2._Regexp:
    import re2

    if len(pattern) > MAX_PATTERN:
        raise ValueError(f"it has {len(pattern):,} characters; at most {MAX_PATTERN:,} are allowed")
    options = re2.Options()
    options.max_mem = MAX_MEMORY
    options.log_errors = False  # RE2 would print them; they are raised anyway
    try:
        return re2.compile(pattern, options)
    except re2.error as error:
        reason = error.args[0].decode("utf-8", "replace")
        raise ValueError(
            f"RE2 rejects it: {reason}. Patterns are in the syntax of RE2, which has no look-around, such as `(?!a)`, "
            "and no back references, such as `\\1`"
        ) from None


def _check(pattern: str) -> str:
    if is_regex(pattern):
        try:
            _compile(pattern[1:-1])
        except ValueError as error:
            raise ValueError(f"{shortened(pattern, 80)!r}: {error}") from None
    elif len(pattern) > MAX_PATTERN:
        raise ValueError(f"the pattern has {len(pattern):,} characters; at most {MAX_PATTERN:,} are allowed")
    return pattern


NamePattern = Annotated[str, AfterValidator(_check)]
"""A setting that is a pattern; an invalid regular expression is a problem of the recipe."""
