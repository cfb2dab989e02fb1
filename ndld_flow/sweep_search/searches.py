"""The searches of sweeps."""

from __future__ import annotations

import math
import random
import warnings
from collections.abc import Iterable, Sequence
from itertools import islice
from typing import TYPE_CHECKING

from pydantic import JsonValue

from ndld_flow.base.extras import require
from ndld_flow.base.text import suggest, visible_name
from ndld_flow.sweep_search.search import Direction, Quality, Saturation, Search, SearchOptions, Trial, quality_of
from ndld_flow.sweep_search.space import (
    Assignment,
    AxisValues,
    NumberedSpace,
    Numbers,
    Place,
    Position,
    Space,
    UntriedPoints,
    all_tried,
    neighbours_of,
    values_of,
)

if TYPE_CHECKING:
    import optuna
    from optuna.distributions import BaseDistribution


class InOrder:
    """Points in an order that depends on neither results nor the size of requests."""

    def __init__(self, space: NumberedSpace, places: Iterable[Place], size: int | None) -> None:
        self._space, self._places, self.size = space, iter(places), size
        self._asked, self._is_over = 0, size == 0

    @property
    def stopped_because(self) -> str:
        return all_tried(self._asked) if self._is_over else ""

    def ask(self, count: int) -> list[Assignment]:
        points = [self._space.point(place) for place in islice(self._places, count)]
        self._asked += len(points)
        self._is_over = self._asked == self.size or len(points) < count
        return points

    def tell(self, trials: Sequence[Trial]) -> None:
        pass


def grid(space: Space) -> InOrder:
    """Return a search over all points, the last axis fastest. Raises ValueError for an axis that is not countable."""
    check_countable(space, "grid")
    numbered = NumberedSpace(space)
    return InOrder(numbered, map(numbered.place, range(numbered.count)), numbered.count)


def one_at_a_time(space: Space, start: Assignment | None) -> InOrder:
    """Return a search over the recipe's own point, then every other value of each axis, with all other axes as in the
    recipe.

    If the recipe has no value for an axis, the first value is used. Raises ValueError as `grid`.
    """
    check_countable(space, "one_at_a_time")
    numbered = NumberedSpace(space)
    own = numbered.start(start)
    varied = (
        (*own[:depth], position, *own[depth + 1 :])
        for depth, axis in enumerate(numbered.axes)
        for position in range(axis.count or 0)
        if position != own[depth]
    )
    places = [place for place in (own, *varied) if not numbered.excludes(place)]
    return InOrder(numbered, places, len(places))


def random_points(space: Space, seed: int) -> InOrder:
    """Return a search over seeded draws, until a finite space is exhausted."""
    numbered = NumberedSpace(space)
    return InOrder(numbered, iter(UntriedPoints(numbered, seed).draw, None), numbered.size)


def check_countable(space: Space, method: str) -> None:
    """Raise ValueError for an axis whose values are not countable."""
    for axis in space.axes:
        if isinstance(axis, Numbers) and axis.step is None and not axis.integer and axis.low < axis.high:
            raise ValueError(
                f"{visible_name(axis.name)}: {method} cannot try every number from {axis.low:g} to {axis.high:g}; "
                "give a `step`, or use `method: random` or `method: tpe`."
            )


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


_VIOLATION = "violation"


class Tpe:
    """The tree-structured Parzen estimator of Optuna, several objectives and constraints included.

    Bergstra et al., 2011, Algorithms for hyper-parameter optimization; Watanabe, 2023, arXiv:2304.11127. The recipe's
    own point comes first, then random points, then those of Optuna. Its repeated and excluded proposals are replaced by
    a random neighbour, or any other point if no neighbour is left. Failed points count as worse than any that violates
    a constraint.

    The order depends on the size of requests: the points of a batch are chosen without each other's results. The same
    results of the same batches give the same points. Raises ValueError without objectives, and BackendError without
    Optuna.
    """

    def __init__(self, space: Space, options: SearchOptions) -> None:
        if not options.directions:
            raise ValueError("`method: tpe` requires an objective: set one with `minimize` or `maximize`.")
        self._space = NumberedSpace(space)
        self._untried = UntriedPoints(self._space, options.seed)
        self._random = random.Random(options.seed)  # noqa: S311 (it keeps nothing secret)
        self._study = _new_study(options)
        self._distributions = {
            str(depth): _distribution(axis) for depth, axis in enumerate(self._space.axes) if axis.count != 1
        }
        self._startup = _startup(options.points, self._space.size)
        start = self._space.positions(options.start or {})
        self._start = None if None in start else self._space.start(options.start)
        self._trials: list[optuna.Trial] = []
        self._asked = 0
        self.size = self._space.size

    @property
    def stopped_because(self) -> str:
        return self._untried.exhausted_because

    def ask(self, count: int) -> list[Assignment]:
        self._trials.clear()
        places: list[Place] = []
        while len(places) < count and (place := self._next()) is not None:
            places.append(place)
        return [self._space.point(place) for place in places]

    def tell(self, trials: Sequence[Trial]) -> None:
        from optuna.trial import TrialState

        for asked, trial in zip(self._trials, trials, strict=True):
            failed = trial.objectives is None or not all(map(math.isfinite, trial.objectives))
            asked.set_user_attr(_VIOLATION, math.inf if failed and trial.violation <= 0 else trial.violation)
            if failed:
                self._study.tell(asked, state=TrialState.PRUNED)
            else:
                self._study.tell(asked, trial.objectives)

    def _next(self) -> Place | None:
        self._asked += 1
        if self._asked == 1 and self._start is not None and self._untried.take(self._start):
            return self._enqueue(self._start)
        if self._asked <= self._startup:
            return self._enqueue(self._untried.draw())
        return self._propose()

    def _propose(self) -> Place | None:
        from optuna.trial import TrialState

        if self._untried.exhausted_because:
            return None
        trial = self._study.ask(self._distributions)
        place = tuple(
            _position(axis, trial.params[str(depth)]) if axis.count != 1 else 0
            for depth, axis in enumerate(self._space.axes)
        )
        if self._untried.take(place):
            self._trials.append(trial)
            return place
        self._study.tell(trial, state=TrialState.FAIL)
        near = list(neighbours_of(place, self._space.axes))
        self._random.shuffle(near)
        free = next((place for place in near if self._untried.take(place)), None)
        return self._enqueue(free if free is not None else self._untried.draw())

    def _enqueue(self, place: Place | None) -> Place | None:
        if place is None:
            return None
        parameters = {str(depth): _parameter(axis, place[depth]) for depth, axis in enumerate(self._space.axes)}
        self._study.enqueue_trial({name: parameters[name] for name in self._distributions})
        self._trials.append(self._study.ask(self._distributions))
        return place


def _startup(points: int | None, size: int | None) -> int:
    """Return the number of random points before the estimator is used."""
    wanted = min((number for number in (points, size) if number is not None), default=100)
    return max(4, min(20, wanted // 4))


def _new_study(options: SearchOptions) -> optuna.Study:
    require("tpe", "`method: tpe`")
    import optuna

    with warnings.catch_warnings():
        # Optuna 4 calls some of these experimental, Optuna 5 one of them deprecated; both have all of them.
        warnings.simplefilter("ignore")
        sampler = optuna.samplers.TPESampler(
            seed=options.seed,
            n_startup_trials=1,
            multivariate=True,
            constant_liar=True,
            constraints_func=lambda trial: (trial.user_attrs[_VIOLATION],),
        )
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    return optuna.create_study(sampler=sampler, directions=list(options.directions))


def _distribution(axis: AxisValues) -> BaseDistribution:
    from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

    if axis.count is None or axis.log:
        return FloatDistribution(0.0, 1.0)
    return IntDistribution(0, axis.count - 1) if axis.ordered else CategoricalDistribution(range(axis.count))


def _parameter(axis: AxisValues, position: Position) -> Position:
    """Return Optuna's parameter for a position: a rank among countable values, else the relative position."""
    if not axis.ordered:
        return position
    share = axis.share(position)
    return share if axis.count is None or axis.log else round(share * (axis.count - 1))


def _position(axis: AxisValues, parameter: Position) -> Position:
    if not axis.ordered:
        return parameter
    return axis.nearest(parameter if axis.count is None or axis.log else parameter / (axis.count - 1))


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
    search = _by_method(space, options) if options.saturation is None else _saturating(space, options)
    return search if options.points is None else Budget(search, options.points)


def _saturating(space: Space, options: SearchOptions) -> Search:
    saturation = options.saturation
    assert saturation is not None
    if not options.directions:
        raise ValueError("`saturation` requires an objective: set one with `minimize` or `maximize`.")
    direction = options.directions[0]
    if not saturation.along:
        return Saturating(_by_method(space, options), saturation, direction)
    exclude = tuple(named for named in space.exclude if saturation.along not in named)
    others = Space(tuple(axis for axis in space.axes if axis.name != saturation.along), exclude)
    return SaturatingAxis(space, _by_method(others, options), saturation, direction)


def _by_method(space: Space, options: SearchOptions) -> Search:
    match options.method:
        case "grid":
            return grid(space)
        case "one_at_a_time":
            return one_at_a_time(space, options.start)
        case "random":
            return random_points(space, options.seed)
        case "hill_climb":
            return HillClimb(space, options)
        case "tpe":
            return Tpe(space, options)
