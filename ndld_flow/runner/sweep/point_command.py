"""Write a point of a sweep as a command, in Hydra's override grammar."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from pydantic import JsonValue

from ndld_flow.recipe.places import find_value, split_key

_PLAIN = re.compile(r"[A-Za-z_][A-Za-z0-9_./-]*")
_WORDS = {"true", "false", "null", "nan", "inf"}
_WORD_OF_PATH = re.compile(r"[A-Za-z_][A-Za-z0-9_-]*|0|[1-9][0-9]*")
_KEY_OF_MAPPING = re.compile(r"[A-Za-z_/]([A-Za-z0-9_./: -]*[A-Za-z0-9_./:-])?")


class NoOverrideError(ValueError):
    """Hydra's grammar cannot express a key."""


def point_overrides(changes: Mapping[str, JsonValue], recipe: dict[str, JsonValue]) -> tuple[str, ...]:
    """Return overrides that give a recipe a point's values: `steps.speed.threads=2`.

    `recipe` shows which keys contain dots. Raises NoOverrideError for a key that cannot be written.
    """
    return tuple(override for key, value in changes.items() for override in _write_change(key, value, recipe))


def write_value(value: JsonValue) -> str:
    """Return a value in Hydra's override grammar. Raises NoOverrideError."""
    if isinstance(value, dict):
        return "{" + ",".join(f"{_write_key(key)}:{write_value(inner)}" for key, inner in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ",".join(map(write_value, value)) + "]"
    if isinstance(value, str):
        return _write_text(value)
    if value is None:
        return "null"
    return str(value).lower() if isinstance(value, bool) else repr(value)


def _write_change(key: str, value: JsonValue, recipe: dict[str, JsonValue]) -> Iterator[str]:
    path = list(_split_path(key.split("."), recipe))
    plain = next((place for place, word in enumerate(path) if not _WORD_OF_PATH.fullmatch(word)), len(path))
    inside = plain < len(path)
    if not plain or (inside and (isinstance(value, dict) or not _leads_through_mappings(path, plain, recipe))):
        raise NoOverrideError(key)
    for word in reversed(path[plain:]):
        value = {word: value}
    written = ".".join(path[:plain])
    if isinstance(value, dict) and not inside:
        yield f"{written}=null"  # Hydra merges mappings; this one replaces the old value
    yield f"{written}={write_value(value)}"


def _split_path(words: list[str], recipe: JsonValue) -> Iterator[str]:
    """Yield the keys of a path; a key that contains dots is one."""
    rest = words
    while rest:
        if isinstance(recipe, dict):
            key, left = split_key(recipe, rest)
        else:
            key, left = rest[0], rest[1:]
        yield key
        recipe, rest = find_value(recipe, [key]), list(left)


def _leads_through_mappings(path: list[str], begin: int, recipe: JsonValue) -> bool:
    """Return whether a path leads through mappings only, from position `begin` on: only these are merged."""
    for place, word in enumerate(path[:-1]):
        recipe = recipe.get(word) if isinstance(recipe, dict) else find_value(recipe, [word])
        if place >= begin and not isinstance(recipe, dict | None):
            return False
    return True


def _write_key(key: str) -> str:
    if not _KEY_OF_MAPPING.fullmatch(key) or key.lower() in _WORDS:
        raise NoOverrideError(key)
    return re.sub("([: ])", r"\\\1", key)


def _write_text(text: str) -> str:
    if _PLAIN.fullmatch(text) and text.lower() not in _WORDS:
        return text
    # In Hydra's grammar a backslash is an escape only in front of a quote.
    escaped = re.sub(r"(\\*)('|$)", lambda found: found[1] * 2 + ("\\'" if found[2] else ""), text)
    return f"'{escaped}'"
