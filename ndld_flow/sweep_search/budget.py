"""No more points than were allowed."""

from __future__ import annotations

from collections.abc import Sequence

from ndld_flow.sweep_search.search import Search, Trial
from ndld_flow.sweep_search.space import Assignment


class Budget:
    """The first `points` points of a search."""

    def __init__(self, search: Search, points: int) -> None:
        self._search = search
        self._points = points
        self._asked = 0

    @property
    def size(self) -> int:
        return self._points if self._search.size is None else min(self._points, self._search.size)

    @property
    def stopped_because(self) -> str:
        if self._search.stopped_because or self._asked < self._points:
            return self._search.stopped_because
        of = "" if self._search.size is None else f" of {self._search.size}"
        return f"{self._points}{of} points: the budget"

    def ask(self, count: int) -> list[Assignment]:
        points = self._search.ask(min(count, self._points - self._asked))
        self._asked += len(points)
        return points

    def tell(self, trials: Sequence[Trial]) -> None:
        self._search.tell(trials)
