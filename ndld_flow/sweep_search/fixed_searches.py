"""Searches whose points do not depend on results: grid, one axis at a time, random."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice

from ndld_flow.base.text import visible_name
from ndld_flow.sweep_search.numbered_space import NumberedSpace, Place, UntriedPoints
from ndld_flow.sweep_search.search import Trial
from ndld_flow.sweep_search.space import Assignment, Numbers, Space


class Grid:
    """All points in order, the last axis fastest. The order does not depend on the size of requests."""

    def __init__(self, space: Space) -> None:
        check_countable(space, "grid")
        self._space = NumberedSpace(space)
        self._asked = 0
        self.size = self._space.count

    @property
    def stopped_because(self) -> str:
        return f"all {self.size} points tried" if self._asked == self.size else ""

    def ask(self, count: int) -> list[Assignment]:
        numbers = range(self._asked, min(self._asked + count, self.size))
        self._asked = numbers.stop
        return [self._space.point(self._space.place(number)) for number in numbers]

    def tell(self, trials: Sequence[Trial]) -> None:
        pass


def check_countable(space: Space, method: str) -> None:
    """Raise ValueError for an axis whose values are not countable."""
    for axis in space.axes:
        if isinstance(axis, Numbers) and axis.step is None and not axis.integer and axis.low < axis.high:
            raise ValueError(
                f"{visible_name(axis.name)}: {method} cannot try every number from {axis.low:g} to {axis.high:g}; "
                "give a `step`, or use `method: random` or `method: tpe`."
            )


class OneAtATime:
    """The recipe's own point first, then every other value of each axis, with all other axes as in the recipe.

    If the recipe has no value for an axis, the first value is used. The order does not depend on the size of requests.
    """

    def __init__(self, space: Space, start: Assignment | None) -> None:
        check_countable(space, "one_at_a_time")
        self._space = NumberedSpace(space)
        self._start = self._space.start(start)
        self._places = self._in_order()
        self._asked = 0
        self.size = sum(1 for _ in self._in_order())

    @property
    def stopped_because(self) -> str:
        return f"all {self.size} points tried" if self._asked == self.size else ""

    def ask(self, count: int) -> list[Assignment]:
        points = [self._space.point(place) for place in islice(self._places, count)]
        self._asked += len(points)
        return points

    def tell(self, trials: Sequence[Trial]) -> None:
        pass

    def _in_order(self) -> Iterator[Place]:
        return (place for place in self._varied() if self._space.number(place) is not None)

    def _varied(self) -> Iterator[Place]:
        yield self._start
        for depth, axis in enumerate(self._space.axes):
            for position in range(axis.count or 0):
                if position != self._start[depth]:
                    yield (*self._start[:depth], position, *self._start[depth + 1 :])


class RandomPoints:
    """Seeded draws, until a finite space is exhausted. The order does not depend on the size of requests."""

    def __init__(self, space: Space, seed: int) -> None:
        self._space = NumberedSpace(space)
        self._untried = UntriedPoints(self._space, seed)
        self.size = self._space.size

    @property
    def stopped_because(self) -> str:
        return self._untried.exhausted_because

    def ask(self, count: int) -> list[Assignment]:
        drawn = (self._untried.draw() for _ in range(count))
        return [self._space.point(place) for place in drawn if place is not None]

    def tell(self, trials: Sequence[Trial]) -> None:
        pass
