"""Create the search of a recipe."""

from __future__ import annotations

from collections.abc import Sequence

from ndld_flow.sweep_search.fixed_searches import Grid, OneAtATime, RandomPoints
from ndld_flow.sweep_search.hill_climb import HillClimb
from ndld_flow.sweep_search.saturation import Saturating, SaturatingAxis, without_axis
from ndld_flow.sweep_search.search import Saturation, Search, SearchOptions, Trial
from ndld_flow.sweep_search.space import Assignment, Space


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


def make_search(space: Space, options: SearchOptions) -> Search:
    """Create the search of a space.

    Raises ValueError if the method does not fit the space or the objectives. Raises BackendError if the method needs a
    library that is not installed.
    """
    search = (
        _by_method(space, options) if options.saturation is None else _saturating(space, options, options.saturation)
    )
    return search if options.points is None else Budget(search, options.points)


def _saturating(space: Space, options: SearchOptions, saturation: Saturation) -> Search:
    if not options.directions:
        raise ValueError("`saturation` requires an objective: set one with `minimize` or `maximize`.")
    direction = options.directions[0]
    if not saturation.along:
        return Saturating(_by_method(space, options), saturation, direction)
    others = _by_method(without_axis(space, saturation.along), options)
    return SaturatingAxis(space, others, saturation, direction)


def _by_method(space: Space, options: SearchOptions) -> Search:
    match options.method:
        case "grid":
            return Grid(space)
        case "one_at_a_time":
            return OneAtATime(space, options.start)
        case "random":
            return RandomPoints(space, options.seed)
        case "hill_climb":
            return HillClimb(space, options)
        case "tpe":
            from ndld_flow.sweep_search.tpe import Tpe

            return Tpe(space, options)
