"""Values of JSON that a stranger wrote: each is taken for what it should be, or left out."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from pydantic import JsonValue

_MAX_TEXT = 20_000
_MAX_NUMBER = 1e15
"""Beyond it nothing here is measured, and squares of samples would overflow."""
_MAX_DIMENSIONS = 32
_MAX_ITEMS = 1_000


def text_of(value: object) -> str:
    """A text that UTF-8 can carry, of at most 20,000 characters; empty for anything else."""
    if not isinstance(value, str):
        return ""
    text = value[:_MAX_TEXT]
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    return text


def number_of(value: object) -> float | None:
    """A finite number of a size that can be measured."""
    # Not isinstance: a bool is no number here, and this is asked for millions of values.
    if (type(value) is float or type(value) is int) and abs(value) <= _MAX_NUMBER:
        return float(value)
    return None


def whole_of(value: object) -> int | None:
    """A number that is whole."""
    number = number_of(value)
    return int(number) if number is not None and number.is_integer() else None


def shape_of(value: object) -> tuple[int, ...] | None:
    """A list of whole numbers; None for anything else."""
    if not isinstance(value, list) or len(value) > _MAX_DIMENSIONS:
        return None
    dims = tuple(dim for dim in map(whole_of, value) if dim is not None)
    return dims if len(dims) == len(value) else None


def objects_in(value: object) -> Iterator[Mapping[str, object]]:
    """The objects of a list."""
    if isinstance(value, list):
        yield from (entry for entry in value if isinstance(entry, dict))


def plain_json(value: object, depth: int = 0) -> JsonValue:
    """A value that a record can keep: bounded, and without numbers that JSON does not have."""
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
