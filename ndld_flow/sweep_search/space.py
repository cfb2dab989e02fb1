"""The space of a sweep: its axes, their values by position, and points."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from decimal import Decimal
from functools import cached_property
from typing import Protocol

from pydantic import JsonValue

from ndld_flow.base.text import visible_name

Assignment = Mapping[str, JsonValue]
"""Axis -> the value a point has on it: one point of the space. Equal points have the same
`json.dumps(sort_keys=True)`."""


@dataclass(frozen=True)
class Choices:
    """An axis of listed values, in the given order."""

    name: str
    values: tuple[JsonValue, ...]


@dataclass(frozen=True)
class Numbers:
    """An axis of numbers between two bounds, both included."""

    name: str
    low: float
    high: float
    step: float | None = None
    """Distance between neighbours; None for any number between the bounds (for integers, every integer)."""
    integer: bool = False
    log: bool = False
    """True if searches draw and move on a logarithmic scale."""


Axis = Choices | Numbers


@dataclass(frozen=True)
class Space:
    """All combinations of the axes' values, without excluded points."""

    axes: tuple[Axis, ...]
    exclude: tuple[Mapping[str, tuple[JsonValue, ...]], ...] = ()
    """A point is excluded by a mapping if it has one of the listed values on every named axis."""


Position = int | float
_DIGITS = 6
"""Significant digits of numbers drawn between two bounds: users read them and write them into recipes."""


class AxisValues(Protocol):
    """The values of an axis, as searches use them."""

    @property
    def count(self) -> int | None:
        """Number of positions, from 0; None if every number between two bounds is a value."""

    @property
    def ordered(self) -> bool:
        """True if adjacent values are similar."""

    @property
    def log(self) -> bool:
        """True if the axis is logarithmic."""

    def value(self, position: Position) -> JsonValue:
        """Return the value at a position."""

    def position(self, value: JsonValue) -> Position | None:
        """Return the position of a value; None if it is not on the axis. 2 equals 2.0, but 1 does not equal true."""

    def share(self, position: Position) -> float:
        """Return the relative position: 0 for the smallest value, 1 for the largest; logarithmic if the axis is."""

    def nearest(self, share: float) -> Position:
        """Return the position nearest to a relative one."""

    def adjacent(self, position: Position) -> list[Position]:
        """Return the next smaller and larger positions; all others without an order, none between bounds."""


def values_of(axis: Axis) -> AxisValues:
    """Return the values of an axis. Raises ValueError for invalid bounds."""
    if isinstance(axis, Choices):
        if not axis.values:
            raise ValueError(f"{visible_name(axis.name)}: it has no values to try.")
        return Listed(axis.values)
    _check_bounds(axis)
    step = axis.step if axis.step is not None else 1 if axis.integer else None
    if step is not None:
        return Stepped(axis, Decimal(str(step)))
    return Between(axis) if axis.low < axis.high else Listed((axis.low,))


def key_of(value: JsonValue) -> str:
    """Return a text that is equal for equal values of a recipe: the order of keys, and 2 or 2.0, do not matter."""
    return json.dumps(_plain(value), sort_keys=True)


class Listed:
    """Listed values without repetition. Numbers count as ordered regardless of the order in which they are listed."""

    log = False

    def __init__(self, values: Iterable[JsonValue]) -> None:
        unique: dict[str, JsonValue] = {}
        for value in values:
            unique.setdefault(key_of(value), value)
        self._values = tuple(unique.values())
        self._positions = {key: position for position, key in enumerate(unique)}
        self.ordered = all(isinstance(value, int | float) and not isinstance(value, bool) for value in self._values)

    @property
    def count(self) -> int:
        return len(self._values)

    def value(self, position: Position) -> JsonValue:
        return self._values[int(position)]

    def position(self, value: JsonValue) -> int | None:
        return self._positions.get(key_of(value))

    def share(self, position: Position) -> float:
        return self._ascending.index(int(position)) / max(1, self.count - 1)

    def nearest(self, share: float) -> int:
        return self._ascending[round(share * (self.count - 1))]

    def adjacent(self, position: Position) -> list[Position]:
        if not self.ordered:
            return [other for other in range(self.count) if other != position]
        rank = self._ascending.index(int(position))
        return [*self._ascending[max(0, rank - 1) : rank], *self._ascending[rank + 1 : rank + 2]]

    @cached_property
    def _ascending(self) -> list[int]:
        positions = range(self.count)
        return sorted(positions, key=self._values.__getitem__) if self.ordered else list(positions)  # type: ignore[arg-type]


@dataclass(frozen=True)
class Stepped:
    """Numbers at equal distances. They are decimal, so that 0.1 + 2 * 0.1 is 0.3."""

    axis: Numbers
    step: Decimal
    ordered = True

    @property
    def log(self) -> bool:
        return self.axis.log

    @cached_property
    def count(self) -> int:
        return int((Decimal(str(self.axis.high)) - self._low) / self.step) + 1

    def value(self, position: Position) -> int | float:
        number = self._low + int(position) * self.step
        return int(number) if self.axis.integer else float(number)

    def position(self, value: JsonValue) -> int | None:
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
            return None
        steps = (Decimal(str(value)) - self._low) / self.step
        return int(steps) if steps == int(steps) and 0 <= steps < self.count else None

    def share(self, position: Position) -> float:
        if self.count == 1:
            return 0.0
        if not self.axis.log:
            return position / (self.count - 1)
        return _log_share(self.value(position), self.axis.low, self.value(self.count - 1))

    def nearest(self, share: float) -> int:
        if not self.axis.log:
            return round(share * (self.count - 1))
        number = _log_number(share, self.axis.low, self.value(self.count - 1))
        return round((number - self.axis.low) / float(self.step))

    def adjacent(self, position: Position) -> list[Position]:
        return [other for other in (position - 1, position + 1) if 0 <= other < self.count]

    @cached_property
    def _low(self) -> Decimal:
        return Decimal(str(self.axis.low))


@dataclass(frozen=True)
class Between:
    """Any number between two bounds: a position is the number."""

    axis: Numbers
    count = None
    ordered = True

    @property
    def log(self) -> bool:
        return self.axis.log

    def value(self, position: Position) -> float:
        return float(position)

    def position(self, value: JsonValue) -> float | None:
        if isinstance(value, bool) or not isinstance(value, int | float):
            return None
        return float(value) if self.axis.low <= value <= self.axis.high else None

    def share(self, position: Position) -> float:
        low, high = self.axis.low, self.axis.high
        return _log_share(position, low, high) if self.axis.log else (position - low) / (high - low)

    def nearest(self, share: float) -> float:
        low, high = self.axis.low, self.axis.high
        number = _log_number(share, low, high) if self.axis.log else low + share * (high - low)
        finest = min(number, high - low) if self.axis.log else high - low
        number = round(number, _DIGITS - 1 - math.floor(math.log10(finest)))
        return min(high, max(low, number))

    def adjacent(self, position: Position) -> list[Position]:
        return []


def _check_bounds(axis: Numbers) -> None:
    if not (math.isfinite(axis.low) and math.isfinite(axis.high) and axis.low <= axis.high):
        raise ValueError(
            f"{visible_name(axis.name)}: it goes from {axis.low:g} to {axis.high:g}; give the smaller number first."
        )
    if axis.log and axis.low <= 0:
        raise ValueError(
            f"{visible_name(axis.name)}: it starts at {axis.low:g}, but a logarithmic axis must start above 0."
        )
    if axis.step is not None and not (math.isfinite(axis.step) and axis.step > 0):
        raise ValueError(f"{visible_name(axis.name)}: its step is {axis.step:g}, but must be above 0.")
    if axis.integer and not all(float(number).is_integer() for number in (axis.low, axis.step or 1)):
        raise ValueError(f"{visible_name(axis.name)}: integers must start at an integer and have an integer step.")


def _log_share(number: float, low: float, high: float) -> float:
    return math.log(number / low) / math.log(high / low)


def _log_number(share: float, low: float, high: float) -> float:
    return low * math.exp(share * math.log(high / low))


def _plain(value: JsonValue) -> JsonValue:
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, list):
        return [_plain(item) for item in value]
    if isinstance(value, dict):
        return {name: _plain(item) for name, item in value.items()}
    return value
