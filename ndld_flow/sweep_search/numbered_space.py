"""The points of a space, listed: their count, the n-th point, its neighbours, and those not tried yet."""

from __future__ import annotations

import math
import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import product

from pydantic import JsonValue

from ndld_flow.base.text import suggest, visible_name
from ndld_flow.sweep_search.space import Assignment, AxisValues, Position, Space, values_of

Place = tuple[Position, ...]
"""A point by its position on each axis, in the order of the axes."""

_Exclusion = dict[int, set[Position]]
"""Index of an axis -> positions: a place with one of them on each of these axes is excluded."""


MOST_POINTS = 1_000_000
"""Maximum number of points of a space, excluded ones included."""


class NumberedSpace:
    """Points in the order of a grid, the last axis fastest; excluded points have no number.

    A continuous axis counts as one position. Raises ValueError for invalid bounds, exclusions of unknown axes, and more
    than `MOST_POINTS` points.
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
        self._places = tuple(place for place in product(*map(range, counts)) if not self._excludes_listed(place))
        self.count = len(self._places)

    @property
    def size(self) -> int | None:
        """Number of points; None with a continuous axis, unless everything is excluded."""
        return self.count if self.finite or not self.count else None

    def place(self, number: int) -> Place:
        """Return the place of a point by its number, from 0; on continuous axes 0."""
        return self._places[number]

    def number(self, place: Place) -> int | None:
        """Return the number of the point at a place; None if it is excluded."""
        if any(all(place[depth] in at for depth, at in named.items()) for named in self._exclusions):
            return None
        listed = zip(self.axes, place, strict=True)
        return self._numbers.get(tuple(0 if axis.count is None else int(position) for axis, position in listed))

    @cached_property
    def _numbers(self) -> Mapping[Place, int]:
        return {place: number for number, place in enumerate(self._places)}

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

    def _excludes_listed(self, place: Place) -> bool:
        """Return whether a place is excluded whatever its positions on continuous axes are."""
        return any(
            all(self.axes[depth].count is not None and place[depth] in at for depth, at in named.items())
            for named in self._exclusions
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


def count_points(space: Space) -> int | None:
    """Return the number of points that are not excluded; None with a continuous axis.

    Raises ValueError for invalid bounds and for exclusions of unknown axes.
    """
    return NumberedSpace(space).size


def excluded_count(space: Space) -> int | None:
    """Return the number of excluded points; None with a continuous axis. Raises as `count_points`."""
    numbered = NumberedSpace(space)
    return numbered.with_excluded - numbered.count if numbered.finite else None


_TRIES = 64


class UntriedPoints:
    """Gives each point once, at random or by place; the order depends only on the seed.

    The cost of a draw does not depend on how many points are excluded or left.
    """

    def __init__(self, space: NumberedSpace, seed: int) -> None:
        self._space = space
        self._random = random.Random(seed)  # noqa: S311 (it keeps nothing secret)
        self._left = _Remaining(space.count) if space.finite else None
        self._taken: set[Place] = set()
        self._found_none = False

    @property
    def exhausted_because(self) -> str:
        """`all 24 points tried` when none is left; else empty."""
        if self._found_none or (self._left is not None and not self._left.count):
            return f"all {len(self._taken)} points tried"
        return ""

    def take(self, place: Place) -> bool:
        """Take this point; False if it is excluded or was taken before."""
        number = self._space.number(place)
        if number is None or place in self._taken:
            return False
        self._taken.add(place)
        if self._left is not None:
            self._left.remove(number)
        return True

    def draw(self) -> Place | None:
        """Take a random point, uniformly, and log-uniformly on logarithmic axes. None if none is left.

        When logarithmic axes are nearly exhausted, the remaining points are equally likely.
        """
        place = self._draw_by_scale() if any(axis.log for axis in self._space.axes) else None
        if place is None:
            place = self._draw_evenly()
        self._found_none = place is None
        return place

    def _draw_by_scale(self) -> Place | None:
        return self._first_free(
            tuple(axis.nearest(self._random.random()) if axis.log else at for axis, at in self._anywhere())
            for _ in range(_TRIES)
        )

    def _draw_evenly(self) -> Place | None:
        if self._left is None:
            return self._first_free(tuple(at for _, at in self._anywhere()) for _ in range(_TRIES))
        if not self._left.count:
            return None
        place = self._space.place(self._left.at(self._random.randrange(self._left.count)))
        return place if self.take(place) else None

    def _first_free(self, places: Iterable[Place]) -> Place | None:
        return next((place for place in places if self.take(place)), None) if self._space.count else None

    def _anywhere(self) -> Iterator[tuple[AxisValues, Position]]:
        """Yield each axis with a position of a random point that is not excluded."""
        place = self._space.place(self._random.randrange(self._space.count))
        for axis, at in zip(self._space.axes, place, strict=True):
            yield axis, axis.nearest(self._random.random()) if axis.count is None else at


class _Remaining:
    """The numbers from 0 to count - 1 without removed ones, unordered: the last number replaces a removed one.

    Only moved numbers are stored (Fisher and Yates' shuffle without its list).
    """

    def __init__(self, count: int) -> None:
        self.count = count
        self._moved: dict[int, int] = {}
        self._where: dict[int, int] = {}

    def at(self, index: int) -> int:
        return self._moved.get(index, index)

    def remove(self, number: int) -> None:
        self.count -= 1
        index, last = self._where.get(number, number), self.at(self.count)
        self._moved[index] = last
        self._where[last] = index
