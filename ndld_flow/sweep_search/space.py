"""The space of a sweep: its axes, their values by position, and its points, listed."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from functools import cached_property
from itertools import product
from typing import Protocol

from pydantic import JsonValue

from ndld_flow.base.text import suggest, visible_name

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
    """Return the values of an axis, whose bounds were checked in the recipe. Raises ValueError if there is none."""
    if isinstance(axis, Choices):
        if not axis.values:
            raise ValueError(f"{visible_name(axis.name)}: it has no values to try.")
        return Listed(axis.values)
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


Place = tuple[Position, ...]
"""A point by its position on each axis, in the order of the axes."""

_Exclusion = dict[int, set[Position]]
"""Index of an axis -> positions: a place with one of them on each of these axes is excluded."""


MOST_POINTS = 1_000_000
"""Maximum number of points of a space, excluded ones included."""


class NumberedSpace:
    """Points in the order of a grid, the last axis fastest, without excluded ones.

    A continuous axis counts as one position. Raises ValueError for axes without values, exclusions of unknown axes, and
    more than `MOST_POINTS` points.
    """

    def __init__(self, space: Space) -> None:
        self.names = tuple(axis.name for axis in space.axes)
        self.axes = tuple(values_of(axis) for axis in space.axes)
        self.finite = all(axis.count is not None for axis in self.axes)
        self._exclusions = [self._exclusion(named) for named in space.exclude]
        counts = [1 if axis.count is None else axis.count for axis in self.axes]
        self.with_excluded = math.prod(counts)
        if self.with_excluded > MOST_POINTS:
            raise ValueError(
                f"the axes have {self.with_excluded:,} points together, and a sweep has at most {MOST_POINTS:,}: give "
                "larger steps, or fewer values."
            )
        self._places = tuple(self._list_places(counts))
        self.count = len(self._places)

    @property
    def size(self) -> int | None:
        """Number of points; None with a continuous axis, unless everything is excluded."""
        return self.count if self.finite or not self.count else None

    @property
    def excluded_count(self) -> int | None:
        """Number of excluded points; None with a continuous axis."""
        return self.with_excluded - self.count if self.finite else None

    def place(self, number: int) -> Place:
        """Return the place of a point by its number, from 0; on continuous axes 0."""
        return self._places[number]

    def excludes(self, place: Place) -> bool:
        """Return whether the point at a place is excluded."""
        return any(all(place[depth] in at for depth, at in named.items()) for named in self._exclusions)

    def point(self, place: Place) -> Assignment:
        """Return axis -> value of a place."""
        values = (axis.value(position) for axis, position in zip(self.axes, place, strict=True))
        return dict(zip(self.names, values, strict=True))

    def positions(self, point: Assignment) -> list[Position | None]:
        """Return the point's position on each axis; None without a value, or with one that is not on the axis."""
        named = zip(self.names, self.axes, strict=True)
        return [axis.position(point[name]) if name in point else None for name, axis in named]

    def start(self, point: Assignment | None) -> Place:
        """Return the place of a point, with the first value of each axis on which it has none."""
        positions = self.positions(point or {})
        first = (axis.nearest(0.0) if axis.count is None else 0 for axis in self.axes)
        return tuple(at if known is None else known for known, at in zip(positions, first, strict=True))

    def _exclusion(self, named: Mapping[str, tuple[JsonValue, ...]]) -> _Exclusion:
        for name in named:
            if name not in self.names:
                raise ValueError(f"{visible_name(name)} is in `exclude` but is not swept; {suggest(name, self.names)}")
        depths = {name: depth for depth, name in enumerate(self.names)}
        return {
            depths[name]: {at for value in values if (at := self.axes[depths[name]].position(value)) is not None}
            for name, values in named.items()
        }

    def _list_places(self, counts: Sequence[int]) -> Iterator[Place]:
        """Return the places that are not excluded whatever their positions on continuous axes are.

        Positions that one axis excludes by itself are left out first: a space has up to a million places.
        """
        listed = [named for named in self._exclusions if all(self.axes[depth].count is not None for depth in named)]
        alone = {(depth, at) for named in listed if len(named) == 1 for depth, ats in named.items() for at in ats}
        several = [tuple(named.items()) for named in listed if len(named) != 1]
        places = product(*([at for at in range(n) if (depth, at) not in alone] for depth, n in enumerate(counts)))
        if not several:
            return places
        return (
            place for place in places if not any(all(place[depth] in at for depth, at in named) for named in several)
        )


def neighbours_of(place: Place, axes: Sequence[AxisValues], stride: float = 0.0) -> Iterator[Place]:
    """Yield places that differ on one axis, by a fraction of its length or by one value, whichever is more.

    On an axis without an order, all other values are neighbours.
    """
    for depth, axis in enumerate(axes):
        for position in _away(axis, place[depth], stride):
            yield (*place[:depth], position, *place[depth + 1 :])


def _away(axis: AxisValues, position: Position, stride: float) -> list[Position]:
    if not axis.ordered:
        return axis.adjacent(position)
    share = axis.share(position)
    ends = (axis.nearest(max(0.0, share - stride)), axis.nearest(min(1.0, share + stride)))
    return [end for end in dict.fromkeys(ends) if end != position] or axis.adjacent(position)


_TRIES = 64


def all_tried(count: int) -> str:
    """Return the reason why a search that left no point out has ended."""
    return "the only point tried" if count == 1 else f"all {count} points tried"


class UntriedPoints:
    """Gives each point once, at random or by place; the order depends only on the seed."""

    def __init__(self, space: NumberedSpace, seed: int) -> None:
        self._space = space
        self._random = random.Random(seed)  # noqa: S311 (it keeps nothing secret)
        self._numbers = iter(self._random.sample(range(space.count), space.count) if space.finite else ())
        """Points of a finite space in random order: those that were not drawn evenly yet."""
        self._taken: set[Place] = set()
        self._found_none = False

    @property
    def exhausted_because(self) -> str:
        """`all 24 points tried` when none is left; else empty."""
        is_exhausted = self._found_none or (self._space.finite and len(self._taken) == self._space.count)
        return all_tried(len(self._taken)) if is_exhausted else ""

    def take(self, place: Place) -> bool:
        """Take this point; False if it is excluded or was taken before."""
        if self._space.excludes(place) or place in self._taken:
            return False
        self._taken.add(place)
        return True

    def draw(self) -> Place | None:
        """Take a random point, uniformly, and log-uniformly on logarithmic axes. None if none is left.

        When logarithmic axes are nearly exhausted, the remaining points are equally likely.
        """
        place = None
        if any(axis.log for axis in self._space.axes):
            place = self._first_free(
                tuple(axis.nearest(self._random.random()) if axis.log else at for axis, at in self._anywhere())
                for _ in range(_TRIES)
            )
        if place is None and self._space.finite:
            place = self._first_free(map(self._space.place, self._numbers))
        elif place is None:
            place = self._first_free(tuple(at for _, at in self._anywhere()) for _ in range(_TRIES))
        self._found_none = place is None
        return place

    def _first_free(self, places: Iterable[Place]) -> Place | None:
        return next((place for place in places if self.take(place)), None) if self._space.count else None

    def _anywhere(self) -> Iterator[tuple[AxisValues, Position]]:
        """Yield each axis with a position of a random point that is not excluded."""
        place = self._space.place(self._random.randrange(self._space.count))
        for axis, at in zip(self._space.axes, place, strict=True):
            yield axis, axis.nearest(self._random.random()) if axis.count is None else at
