"""Each setting varied alone."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice

from ndld_flow.sweep_search.grid import check_countable
from ndld_flow.sweep_search.numbered_space import NumberedSpace, Place
from ndld_flow.sweep_search.search import Trial
from ndld_flow.sweep_search.space import Assignment, Space


class OneAtATime:
    """Where the recipe stands first, then every other value of each axis, the rest as in the recipe.

    On an axis where the recipe has no value, its first one stands for it.
    The order does not depend on how many are asked for at once.
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
