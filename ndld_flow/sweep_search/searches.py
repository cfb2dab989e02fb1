"""The search of a sweep: its method, which a budget or saturation ends early."""

from __future__ import annotations

from collections.abc import Sequence

from pydantic import JsonValue

from ndld_flow.base.text import suggest, visible_name
from ndld_flow.sweep_search.search import (
    Direction,
    Saturation,
    Search,
    SearchOptions,
    StartSearch,
    Trial,
    find_method,
    quality_of,
)
from ndld_flow.sweep_search.space import Assignment, NumberedSpace, Space, all_tried, values_of


class Saturating:
    """A search that ends after several points in a row with too little gain.

    It requests no more points than could be needed, so where it ends does not depend on the size of requests.
    """

    def __init__(self, search: Search, saturation: Saturation, direction: Direction) -> None:
        self._search = search
        self._streak = _Streak(saturation, direction)
        self.size = search.size

    @property
    def stopped_because(self) -> str:
        return f"saturated: {self._streak}" if self._streak.is_over else self._search.stopped_because

    def ask(self, count: int) -> list[Assignment]:
        return [] if self._streak.is_over else self._search.ask(min(count, self._streak.needed))

    def tell(self, trials: Sequence[Trial]) -> None:
        self._search.tell(trials)
        for trial in trials:
            self._streak.add(trial)


class SaturatingAxis:
    """One axis tried in order, value by value, for each point of a search over the others; each series ends separately.

    The search over the others gets the best point of each series, by the first objective. A series ends before the next
    starts, and requests no more points than it could need, so the order does not depend on the size of requests. Raises
    ValueError if `saturation.along` is not an axis of countable values.
    """

    def __init__(self, space: Space, others: Search, saturation: Saturation, direction: Direction) -> None:
        self._space = NumberedSpace(space)
        self._values = _values_along(space, saturation.along)
        self._others = others
        self._saturation = saturation
        self._direction = direction
        self._others_point: Assignment | None = None
        self._remaining: list[Assignment] = []
        self._trials: list[Trial] = []
        self._streak = _Streak(saturation, direction)
        self._asked = self._begun = self._ended_early = 0

    @property
    def size(self) -> int | None:
        if self._others.size is None:
            return self._space.size
        most = self._others.size * len(self._values)
        return most if self._space.size is None else min(most, self._space.size)

    @property
    def stopped_because(self) -> str:
        if self._others_point is not None or not self._others.stopped_because:
            return ""
        if not self._ended_early:
            return all_tried(self._asked)
        times = f"{self._ended_early} of {self._begun} times"
        return f"saturated along {visible_name(self._saturation.along)}: {times} {self._streak}"

    def ask(self, count: int) -> list[Assignment]:
        while self._others_point is None and (others := self._others.ask(1)):
            self._begin(others[0])
        asked = min(count, self._streak.needed)
        points, self._remaining = self._remaining[:asked], self._remaining[asked:]
        self._asked += len(points)
        return points

    def tell(self, trials: Sequence[Trial]) -> None:
        for trial in trials:
            self._trials.append(trial)
            self._streak.add(trial)
        if self._others_point is not None and (self._streak.is_over or not self._remaining):
            self._ended_early += bool(self._remaining)
            self._end()

    def _begin(self, others: Assignment) -> None:
        at_each = ({**others, self._saturation.along: value} for value in self._values)
        places = (self._space.start(point) for point in at_each)
        self._others_point, self._trials = others, []
        self._streak = _Streak(self._saturation, self._direction)
        self._remaining = [self._space.point(place) for place in places if not self._space.excludes(place)]
        self._begun += bool(self._remaining)
        if not self._remaining:
            self._end()

    def _end(self) -> None:
        """Report the best point of the series to the search over the others."""
        assert self._others_point is not None
        best = min(self._trials, key=lambda trial: quality_of(trial, self._direction), default=Trial({}, None))
        self._others.tell([Trial(self._others_point, best.objectives, best.violation)])
        self._others_point, self._remaining = None, []


class _Streak:
    """Points in a row with too little gain, since the last with enough.

    Nothing counts before the first allowed point was measured. Afterwards, points that fail or violate a constraint
    count as no gain.
    """

    def __init__(self, saturation: Saturation, direction: Direction) -> None:
        self._saturation = saturation
        self._direction = direction
        self._level: float | None = None
        self._length = 0

    @property
    def is_over(self) -> bool:
        return self._length >= self._saturation.points

    @property
    def needed(self) -> int:
        """Points that must be tried before the streak can be over."""
        return self._saturation.points - self._length + (self._level is None)

    def add(self, trial: Trial) -> None:
        rank, height = quality_of(trial, self._direction)
        least = 0.0 if self._level is None else self._saturation.gain * abs(self._level)
        if rank == 0 and (self._level is None or (height < self._level and self._level - height >= least)):
            self._level, self._length = height, 0
        elif self._level is not None:
            self._length += 1

    def __str__(self) -> str:
        saturation = self._saturation
        row = "1 point" if saturation.points == 1 else f"{saturation.points} points in a row"
        return f"{row} gained less than {100 * saturation.gain:.4g} %"


def _values_along(space: Space, name: str) -> list[JsonValue]:
    axis = next((axis for axis in space.axes if axis.name == name), None)
    if axis is None:
        nearest = suggest(name, (axis.name for axis in space.axes))
        raise ValueError(f"`saturation.along` names {visible_name(name)}, which is not swept; {nearest}")
    values = values_of(axis)
    if values.count is None:
        raise ValueError(f"`saturation.along` tries {visible_name(name)} value by value: give it a `step`.")
    return [values.value(position) for position in range(values.count)]


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
    start = find_method(options.method).start
    search = start(space, options) if options.saturation is None else _saturating(start, space, options)
    return search if options.points is None else Budget(search, options.points)


def _saturating(start: StartSearch, space: Space, options: SearchOptions) -> Search:
    saturation = options.saturation
    assert saturation is not None
    if not options.directions:
        raise ValueError("`saturation` requires an objective: set one with `minimize` or `maximize`.")
    direction = options.directions[0]
    if not saturation.along:
        return Saturating(start(space, options), saturation, direction)
    exclude = tuple(named for named in space.exclude if saturation.along not in named)
    others = Space(tuple(axis for axis in space.axes if axis.name != saturation.along), exclude)
    return SaturatingAxis(space, start(others, options), saturation, direction)
