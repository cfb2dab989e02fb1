"""An end to searching when going on is not worth it."""

from __future__ import annotations

from collections.abc import Sequence

from pydantic import JsonValue

from ndld_flow.base.text import suggest, visible_name
from ndld_flow.sweep_search.axis_values import values_of
from ndld_flow.sweep_search.numbered_space import NumberedSpace
from ndld_flow.sweep_search.search import Direction, Quality, Saturation, Search, Trial, quality_of
from ndld_flow.sweep_search.space import Assignment, Space


class Saturating:
    """A search that ends after so many points in a row that brought too little.

    It asks for no more at once than could be needed, so where it ends does not depend on how many are asked for.
    """

    def __init__(self, search: Search, saturation: Saturation, direction: Direction) -> None:
        self._search = search
        self._row = _Row(saturation, direction)
        self.size = search.size

    @property
    def stopped_because(self) -> str:
        return f"saturated: {self._row}" if self._row.is_over else self._search.stopped_because

    def ask(self, count: int) -> list[Assignment]:
        return [] if self._row.is_over else self._search.ask(min(count, self._row.needed))

    def tell(self, trials: Sequence[Trial]) -> None:
        self._search.tell(trials)
        for trial in trials:
            self._row.add(trial)


class Ladders:
    """One axis tried in order, value by value, for each point of a search over the others; each ends by itself.

    What the search over the others is told is the best of each ladder, by the first objective.
    A ladder is ended before the next is begun, and no more is asked at once than it could need, so the order does not
    depend on how many are asked for.
    Raises ValueError, with a sentence, when `saturation.along` is not an axis of countable values.
    """

    def __init__(self, space: Space, others: Search, saturation: Saturation, direction: Direction) -> None:
        self._space = NumberedSpace(space)
        self._values = _values_along(space, saturation.along)
        self._others = others
        self._saturation = saturation
        self._direction = direction
        self._ladder: Assignment | None = None
        self._rungs: list[Assignment] = []
        self._told: list[Trial] = []
        self._row = _Row(saturation, direction)
        self._asked = self._begun = self._ended_early = 0

    @property
    def size(self) -> int | None:
        if self._others.size is None:
            return self._space.size
        most = self._others.size * len(self._values)
        return most if self._space.size is None else min(most, self._space.size)

    @property
    def stopped_because(self) -> str:
        if self._ladder is not None or not self._others.stopped_because:
            return ""
        if not self._ended_early:
            return f"all {self._asked} points tried"
        times = f"{self._ended_early} of {self._begun} times"
        return f"saturated along {visible_name(self._saturation.along)}: {times} {self._row}"

    def ask(self, count: int) -> list[Assignment]:
        while self._ladder is None and (others := self._others.ask(1)):
            self._begin(others[0])
        asked = min(count, self._row.needed)
        points, self._rungs = self._rungs[:asked], self._rungs[asked:]
        self._asked += len(points)
        return points

    def tell(self, trials: Sequence[Trial]) -> None:
        for trial in trials:
            self._told.append(trial)
            self._row.add(trial)
        if self._ladder is not None and (self._row.is_over or not self._rungs):
            self._ended_early += bool(self._rungs)
            self._end()

    def _begin(self, others: Assignment) -> None:
        at_each = ({**others, self._saturation.along: value} for value in self._values)
        places = (self._space.start(point) for point in at_each)
        self._ladder, self._told = others, []
        self._row = _Row(self._saturation, self._direction)
        self._rungs = [self._space.point(place) for place in places if self._space.number(place) is not None]
        self._begun += bool(self._rungs)
        if not self._rungs:
            self._end()

    def _end(self) -> None:
        """Tell the search over the others what the ladder came to."""
        assert self._ladder is not None
        best = min(self._told, key=self._row.quality_of, default=Trial({}, None))
        self._others.tell([Trial(self._ladder, best.objectives, best.violation)])
        self._ladder, self._rungs = None, []


class _Row:
    """Points in a row that brought too little, since the last that brought enough.

    Before anything that is allowed was measured there is nothing to compare with, and nothing counts. After it, what
    fails or is refused counts as bringing nothing.
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
        """Points that must be tried before it can be over."""
        return self._saturation.points - self._length + (self._level is None)

    def quality_of(self, trial: Trial) -> Quality:
        return quality_of(trial, self._direction)

    def add(self, trial: Trial) -> None:
        rank, height = self.quality_of(trial)
        if rank == 0 and (self._level is None or self._gains(height, self._level)):
            self._level, self._length = height, 0
        elif self._level is not None:
            self._length += 1

    def __str__(self) -> str:
        saturation = self._saturation
        row = "1 point" if saturation.points == 1 else f"{saturation.points} points in a row"
        return f"{row} gained less than {100 * saturation.gain:.4g} %"

    def _gains(self, height: float, level: float) -> bool:
        return height < level and level - height >= self._saturation.gain * abs(level)


def without_axis(space: Space, name: str) -> Space:
    """The space of the other axes. What is excluded only together with values of this one stays in."""
    exclude = tuple(named for named in space.exclude if name not in named)
    return Space(tuple(axis for axis in space.axes if axis.name != name), exclude)


def _values_along(space: Space, name: str) -> list[JsonValue]:
    axis = next((axis for axis in space.axes if axis.name == name), None)
    if axis is None:
        nearest = suggest(name, (axis.name for axis in space.axes))
        raise ValueError(f"saturation goes along {visible_name(name)}, which is not swept; {nearest}")
    values = values_of(axis)
    if values.count is None:
        raise ValueError(f"saturation goes along {visible_name(name)} value by value: give it a `step`.")
    return [values.value(position) for position in range(values.count)]
