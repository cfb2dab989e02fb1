"""Validate values of untrusted JSON: each has the expected type or is dropped."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from pydantic import JsonValue

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
