"""The points of a space, numbered: their count, the n-th point, the number of a point, its neighbours.

Nothing is listed, so a space of 10^12 points costs as much as one of ten."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from pydantic import JsonValue

from ndld_flow.base.text import suggest, visible_name
from ndld_flow.sweep_search.axis_values import AxisValues, Position, values_of
from ndld_flow.sweep_search.space import Assignment, Space

Place = tuple[Position, ...]
"""A point by its position on each axis, in the order of the axes."""

_Exclusion = dict[int, set[Position]]
"""Axis by number -> positions: a place that has one of them on each of these axes is excluded."""


@dataclass(frozen=True)
class _Run:
    """Neighbouring positions that are alike to all exclusions."""

    first: int
    length: int
    met: int
    """Exclusions that have these positions, or do not name the axis: bit n is the n-th."""


class NumberedSpace:
    """Points in the order of a grid, the last axis fastest; what is excluded has no number.

    The axes are a tree, its leaves the points. How many leaves are below a branch depends only on which exclusions its
    path has met so far, so each such set is counted once.
    An axis of any number between two bounds counts as one position.
    Raises ValueError, with a sentence, for bounds that make no axis and exclusions that name none.
    """

    def __init__(self, space: Space) -> None:
        self.names = tuple(axis.name for axis in space.axes)
        self.axes = tuple(values_of(axis) for axis in space.axes)
        self.finite = all(axis.count is not None for axis in self.axes)
        self._exclusions = [self._exclusion(named) for named in space.exclude]
        self._runs = [self._runs_of(depth) for depth in range(len(self.axes))]
        # Exclusions that name no axis this deep or deeper: a path that has met one of them is excluded.
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
        """Points; None when an axis takes any number between two bounds, and not everything is excluded."""
        return self.count if self.finite or not self.count else None

    def place(self, number: int) -> Place:
        """Where the point of this number, from 0, is. On axes of any number: 0."""
        place, met = [], self._any
        for depth, runs in enumerate(self._runs):
            for run in runs:
                each = self._below(depth + 1, met & run.met)
                if number < each * run.length:
                    break
                number -= each * run.length
            further, number = divmod(number, each)
            place.append(run.first + further)
            met &= run.met
        return tuple(place)

    def number(self, place: Place) -> int | None:
        """The number of the point there; None when it is excluded."""
        if self._excludes(place):
            return None
        number, met = 0, self._any
        for depth, runs in enumerate(self._runs):
            position = int(place[depth]) if self.axes[depth].count is not None else 0
            for run in runs:
                each = self._below(depth + 1, met & run.met)
                if position < run.first + run.length:
                    break
                number += each * run.length
            number += each * (position - run.first)
            met &= run.met
        return number

    def point(self, place: Place) -> Assignment:
        """Axis -> value."""
        values = (axis.value(position) for axis, position in zip(self.axes, place, strict=True))
        return dict(zip(self.names, values, strict=True))

    def positions(self, point: Assignment) -> list[Position | None]:
        """On each axis where the point is; None where it has no value, or one that is not on the axis."""
        named = zip(self.names, self.axes, strict=True)
        return [axis.position(point[name]) if name in point else None for name, axis in named]

    def start(self, point: Assignment | None) -> Place:
        """Where a point is; on the first value of axes where it has none, or one that is not on the axis."""
        positions = self.positions(point or {})
        first = (axis.nearest(0.0) if axis.count is None else 0 for axis in self.axes)
        return tuple(at if known is None else known for known, at in zip(positions, first, strict=True))

    def _exclusion(self, named: Mapping[str, tuple[JsonValue, ...]]) -> _Exclusion:
        for name in named:
            if name not in self.names:
                raise ValueError(f"{visible_name(name)} is excluded, and it is not swept; {suggest(name, self.names)}")
        depths = {name: depth for depth, name in enumerate(self.names)}
        return {
            depths[name]: {at for value in values if (at := self.axes[depths[name]].position(value)) is not None}
            for name, values in named.items()
        }

    def _excludes(self, place: Place) -> bool:
        return any(all(place[depth] in at for depth, at in named.items()) for named in self._exclusions)

    def _runs_of(self, depth: int) -> list[_Run]:
        elsewhere = sum(1 << rule for rule, named in enumerate(self._exclusions) if depth not in named)
        if self.axes[depth].count is None:
            return [_Run(0, 1, elsewhere)]
        met: dict[int, int] = {}
        for rule, named in enumerate(self._exclusions):
            for position in named.get(depth, ()):
                met[int(position)] = met.get(int(position), elsewhere) | 1 << rule
        return _runs_around(met, _length(self.axes[depth]), elsewhere)

    def _below(self, depth: int, met: int) -> int:
        """Points below a branch of the tree whose path has met these exclusions so far."""
        if met & self._complete[depth]:
            return 0
        if depth == len(self.axes):
            return 1
        if (depth, met) not in self._counts:
            below = (run.length * self._below(depth + 1, met & run.met) for run in self._runs[depth])
            self._counts[depth, met] = sum(below)
        return self._counts[depth, met]


def _runs_around(met: Mapping[int, int], count: int, elsewhere: int) -> list[_Run]:
    """Positions that exclusions name, and the stretches between them."""
    ends = {0, *met, *(position + 1 for position in met)} - {count}
    runs: list[_Run] = []
    for first, end in pairwise((*sorted(ends), count)) if count else ():
        alike = met.get(first, elsewhere)
        begin = runs.pop().first if runs and runs[-1].met == alike else first
        runs.append(_Run(begin, end - begin, alike))
    return runs


def _length(axis: AxisValues) -> int:
    return 1 if axis.count is None else axis.count


def neighbours_of(place: Place, axes: Sequence[AxisValues], stride: float = 0.0) -> Iterator[Place]:
    """Places that differ on one axis, by a share of its length or by one value, whichever is further.

    Where there is no order, every other value is near.
    """
    for depth, axis in enumerate(axes):
        for position in _away(axis, place[depth], stride):
            yield (*place[:depth], position, *place[depth + 1 :])


def _away(axis: AxisValues, position: Position, stride: float) -> list[Position]:
    if not axis.ordered:
        return axis.beside(position)
    share = axis.share(position)
    ends = (axis.nearest(max(0.0, share - stride)), axis.nearest(min(1.0, share + stride)))
    return [end for end in dict.fromkeys(ends) if end != position] or axis.beside(position)


def count_points(space: Space) -> int | None:
    """Points that are not excluded; None when an axis takes any number between two bounds.

    Raises ValueError, with a sentence, for bounds that make no axis and exclusions that name none.
    """
    return NumberedSpace(space).size


def excluded_count(space: Space) -> int | None:
    """Points that are left out; None when an axis takes any number between two bounds. Raises as `count_points`."""
    numbered = NumberedSpace(space)
    return numbered.with_excluded - numbered.count if numbered.finite else None
