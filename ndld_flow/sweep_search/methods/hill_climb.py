"""Better neighbours, step by step."""

from __future__ import annotations

import math
from collections.abc import Sequence

from ndld_flow.sweep_search.search import Quality, SearchMethod, SearchOptions, Trial, quality_of
from ndld_flow.sweep_search.space import Assignment, NumberedSpace, Place, Space, UntriedPoints, neighbours_of

_STRIDES = tuple(2.0**-halvings for halvings in range(2, 9))
"""Distances of neighbours, as fractions of an axis's length."""


class HillClimb:
    """Measure all neighbours, move to the best if it is better, else restart from a random point.

    A neighbour differs on one axis. On a long axis neighbours are at first a quarter of its length away; if none is
    better, the stride is halved, down to the next value (a compass search: Kolda, Lewis and Torczon, 2003, Optimization
    by direct search). Neighbours that were measured before are not requested again.

    It starts at the recipe's own point. The order does not depend on the size of requests. Raises ValueError unless
    there is exactly one objective.
    """

    def __init__(self, space: Space, options: SearchOptions) -> None:
        if len(options.directions) != 1:
            number = f"there are {len(options.directions)}" if options.directions else "there is none"
            raise ValueError(f"`method: hill_climb` requires exactly one objective, but {number}.")
        self._direction = options.directions[0]
        self._space = NumberedSpace(space)
        self._untried = UntriedPoints(self._space, options.seed)
        self._known: dict[Place, Quality] = {}
        lengths = [math.inf if axis.count is None else axis.count for axis in self._space.axes if axis.ordered]
        longest = max(lengths, default=1) - 1
        # Those that exceed the distance of values on the longest axis, and at last the next value.
        self._strides = (*(stride for stride in _STRIDES if stride * longest > 1), 0.0)
        self._stride = 0
        self._here: Place | None = None
        start = self._space.start(options.start)
        self._neighbours = [start] if self._untried.take(start) else []
        self._waiting = list(self._neighbours)
        self._requested: list[Place] = []
        self.size = self._space.size

    @property
    def stopped_because(self) -> str:
        return "" if self._waiting else self._untried.exhausted_because

    def ask(self, count: int) -> list[Assignment]:
        while not self._waiting and not self._untried.exhausted_because:
            if not self._climb():
                drawn = self._untried.draw()
                self._neighbours = [] if drawn is None else [drawn]
                self._waiting = list(self._neighbours)
                self._here, self._stride = None, 0
        self._requested, self._waiting = self._waiting[:count], self._waiting[count:]
        return [self._space.point(place) for place in self._requested]

    def tell(self, trials: Sequence[Trial]) -> None:
        for place, trial in zip(self._requested, trials, strict=True):
            self._known[place] = quality_of(trial, self._direction)

    def _climb(self) -> bool:
        """Move to the best neighbour, or reduce the stride; False if none is better at the smallest stride."""
        best = min(self._neighbours, key=self._known.__getitem__, default=None)
        if best is not None and (self._here is None or self._known[best] < self._known[self._here]):
            self._here = best
        else:
            self._stride += 1
        if self._here is None or self._stride == len(self._strides):
            return False
        around = list(neighbours_of(self._here, self._space.axes, self._strides[self._stride]))
        self._waiting = [place for place in around if self._untried.take(place)]
        self._neighbours = [place for place in around if place in self._known or place in self._waiting]
        return True


METHOD = SearchMethod(HillClimb, adapts=True, one_objective=True)
