"""Proposals of Bayesian optimization (Optuna)."""

from __future__ import annotations

import math
import random
import warnings
from collections.abc import Sequence
from typing import TYPE_CHECKING

from ndld_flow.base.extras import require
from ndld_flow.sweep_search.search import SearchMethod, SearchOptions, Trial
from ndld_flow.sweep_search.space import (
    Assignment,
    AxisValues,
    NumberedSpace,
    Place,
    Position,
    Space,
    UntriedPoints,
    neighbours_of,
)

if TYPE_CHECKING:
    import optuna
    from optuna.distributions import BaseDistribution

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


METHOD = SearchMethod(Tpe, counts=False, adapts=True)
