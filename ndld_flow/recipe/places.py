"""Values at a place inside plain data, such as `("operations", 3, "merge_model", "model")`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

Place = Sequence[str | int]


def take_value(data: Any, place: Place) -> None:  # noqa: ANN401 - plain data of any shape
    """Take out the value at a place, where there is one."""
    holder = _holder(data, place)
    if isinstance(holder, dict):
        holder.pop(place[-1], None)


def put_value(data: Any, place: Place, value: object) -> None:  # noqa: ANN401
    """Put a value where `take_value` took one out."""
    holder = _holder(data, place)
    if isinstance(holder, dict):
        holder[place[-1]] = value


def _holder(data: Any, place: Place) -> Any:  # noqa: ANN401
    """What holds the last key of a place; None where the way there is not in the data."""
    for key in place[:-1]:
        inside = key in data if isinstance(data, dict) else isinstance(data, list) and key in range(len(data))
        data = data[key] if inside else None
    return data
