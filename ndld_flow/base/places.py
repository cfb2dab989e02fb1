"""Values at a place inside plain data, such as `("operations", 3, "merge_model", "model")`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

Place = Sequence[str | int]


def take_value(data: Any, place: Place) -> None:  # noqa: ANN401 - plain data of any shape
    """Remove the value at a place, if there is one."""
    holder = _holder(data, place)
    if isinstance(holder, dict):
        holder.pop(place[-1], None)


def put_value(data: Any, place: Place, value: object) -> None:  # noqa: ANN401
    """Restore a value that `take_value` removed."""
    holder = _holder(data, place)
    if isinstance(holder, dict):
        holder[place[-1]] = value


def _holder(data: Any, place: Place) -> Any:  # noqa: ANN401
    """Return the container of the last key of a path; None if the path is not in the data."""
    for key in place[:-1]:
        inside = key in data if isinstance(data, dict) else isinstance(data, list) and key in range(len(data))
        data = data[key] if inside else None
    return data


def change_value(data: Any, dotted: Sequence[str], value: object) -> Any:  # noqa: ANN401
    """Return the data with the value at a dotted path changed or added; the given data is not modified.

    A key that contains dots, such as the input `images.0`, is found by its whole name. Raises ValueError, with a
    sentence, if the path leads through a value that is neither a mapping nor a list.
    """
    if not dotted:
        return value
    if data is None:
        data = {}
    if isinstance(data, list):
        place = _item(dotted[0])
        if place not in range(len(data)):
            raise ValueError(f"there is no item `{dotted[0]}`: this is a list of {len(data)}, counted from 0")
        return [*data[:place], change_value(data[place], dotted[1:], value), *data[place + 1 :]]
    if not isinstance(data, dict):
        raise ValueError(f"there is nothing to set in {str(data)[:60]!r}: it holds no `{dotted[0]}`")
    key, rest = split_key(data, dotted)
    return {**data, key: change_value(data.get(key), rest, value)}


def find_value(data: Any, dotted: Sequence[str]) -> Any:  # noqa: ANN401
    """Return the value at a dotted path; None if there is none."""
    while dotted and isinstance(data, dict | list):
        if isinstance(data, list):
            place = _item(dotted[0])
            data, dotted = (data[place], dotted[1:]) if place in range(len(data)) else (None, ())
        else:
            key, dotted = split_key(data, dotted)
            data = data.get(key)
    return None if dotted else data


def split_key(data: dict[str, Any], dotted: Sequence[str]) -> tuple[str, Sequence[str]]:
    """Return the key of a mapping that a dotted path begins with, and the rest of the path."""
    for count in range(len(dotted), 1, -1):
        if ".".join(dotted[:count]) in data:
            return ".".join(dotted[:count]), dotted[count:]
    return dotted[0], dotted[1:]


def _item(word: str) -> int:
    """Return the list index that a word names; -1 if it names none."""
    return int(word) if word.isascii() and word.isdigit() and len(word) < 10 else -1
