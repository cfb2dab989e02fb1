"""The points of a space, numbered: their count, the n-th point, its neighbours, and those not tried yet.

Nothing is listed, so a space of 10^12 points costs as much as one of ten.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from pydantic import JsonValue

from ndld_flow.base.text import suggest, visible_name
from ndld_flow.sweep_search.space import Assignment, AxisValues, Position, Space, values_of

Place = tuple[Position, ...]
"""A point by its position on each axis, in the order of the axes."""

_Exclusion = dict[int, set[Position]]
"""Index of an axis -> positions: a place with one of them on each of these axes is excluded."""


@dataclass(frozen=True)
class _Run:
    """Adjacent positions that all exclusions treat alike."""

    first: int
    length: int
    matched: int
    """Exclusions that contain these positions, or do not name the axis, as bits."""


class NumberedSpace:
    """Points in the order of a grid, the last axis fastest; excluded points have no number.

    The axes form a tree whose leaves are the points. The number of leaves below a branch depends only on the exclusions
    that its path matches so far, so each such set is counted once. A continuous axis counts as one position. Raises
    ValueError for invalid bounds and for exclusions of unknown axes.
    """

    def __init__(self, space: Space) -> None:
        self.names = tuple(axis.name for axis in space.axes)
        self.axes = tuple(values_of(axis) for axis in space.axes)
        self.finite = all(axis.count is not None for axis in self.axes)
        self._exclusions = [self._exclusion(named) for named in space.exclude]
        self._runs = [self._runs_of(depth) for depth in range(len(self.axes))]
        # Exclusions that name no axis at this depth or below: a path that matches one of them is excluded.
        self._complete = [
            sum(1 << rule for rule, named in enumerate(self._exclusions) if max(named, default=-1) < depth)
            for depth in range(len(self.axes) + 1)
        ]
        self._counts: dict[tuple[int, int], int] = {}
        self._any = (1 << len(self._exclusions)) - 1
        self.count = self._below(0, self._any)
        self.with_excluded = math.prod(_length(axis) for axis in self.axes)

    @property
    def size(self) -> int | None:
        """Number of points; None with a continuous axis, unless everything is excluded."""
        return self.count if self.finite or not self.count else None

    def place(self, number: int) -> Place:
        """Return the place of a point by its number, from 0; on continuous axes 0."""
        place, matched = [], self._any
        for depth, runs in enumerate(self._runs):
            for run in runs:
                each = self._below(depth + 1, matched & run.matched)
                if number < each * run.length:
                    break
                number -= each * run.length
            further, number = divmod(number, each)
            place.append(run.first + further)
            matched &= run.matched
        return tuple(place)

    def number(self, place: Place) -> int | None:
        """Return the number of the point at a place; None if it is excluded."""
        if self._excludes(place):
            return None
        number, matched = 0, self._any
        for depth, runs in enumerate(self._runs):
            position = int(place[depth]) if self.axes[depth].count is not None else 0
            for run in runs:
                each = self._below(depth + 1, matched & run.matched)
                if position < run.first + run.length:
                    break
                number += each * run.length
            number += each * (position - run.first)
            matched &= run.matched
        return number

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

    def _excludes(self, place: Place) -> bool:
        return any(all(place[depth] in at for depth, at in named.items()) for named in self._exclusions)

    def _runs_of(self, depth: int) -> list[_Run]:
        always = sum(1 << rule for rule, named in enumerate(self._exclusions) if depth not in named)
        if self.axes[depth].count is None:
            return [_Run(0, 1, always)]
        matched: dict[int, int] = {}
        for rule, named in enumerate(self._exclusions):
            for position in named.get(depth, ()):
                matched[int(position)] = matched.get(int(position), always) | 1 << rule
        return _runs_around(matched, _length(self.axes[depth]), always)

    def _below(self, depth: int, matched: int) -> int:
        """Return the number of points below a branch whose path matches these exclusions so far."""
        if matched & self._complete[depth]:
            return 0
        if depth == len(self.axes):
            return 1
        if (depth, matched) not in self._counts:
            below = (run.length * self._below(depth + 1, matched & run.matched) for run in self._runs[depth])
            self._counts[depth, matched] = sum(below)
        return self._counts[depth, matched]


def _runs_around(matched: Mapping[int, int], count: int, always: int) -> list[_Run]:
    """Return the positions that exclusions name, and the runs between them."""
    ends = {0, *matched, *(position + 1 for position in matched)} - {count}
    runs: list[_Run] = []
    for first, end in pairwise((*sorted(ends), count)) if count else ():
        alike = matched.get(first, always)
        begin = runs.pop().first if runs and runs[-1].matched == alike else first
        runs.append(_Run(begin, end - begin, alike))
    return runs


def _length(axis: AxisValues) -> int:
    return 1 if axis.count is None else axis.count


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
