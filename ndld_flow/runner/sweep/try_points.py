"""Ask a search for points, run them, and report their results to it."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from ndld_flow.base.errors import BackendError, NdldFlowError, RequestError
from ndld_flow.base.quantities import seconds
from ndld_flow.recipe.points import Sweep
from ndld_flow.runner.plan import refuse_impossible_run
from ndld_flow.runner.sweep.advance import advance_points
from ndld_flow.runner.sweep.state import Judgement, PointRun, SweepState, describe_trial, judge_point
from ndld_flow.sweep_search.search import Search
from ndld_flow.sweep_search.space import Assignment

UNMEASURED_AT_ONCE = 64
"""Points that run together where nothing is measured: enough to keep every worker busy."""
MIXED_SITTINGS = 8
"""Sessions over which the points of a grid are shuffled: a wider grid leaves earlier ones unchanged."""

Batch = list[tuple[int, Assignment]]
"""Points with their numbers, in the order of numbers."""


def ask_batches(sweep: Sweep, search: Search) -> Iterator[Batch]:
    """Yield the points that run together, batch by batch.

    A search that learns gets the results of each batch before the next. Otherwise the points of several sessions are
    shuffled, by the seed: neighbours in a grid differ only in the last axes, so the first axes would otherwise change
    with the time of day, and the machine's drift would look like their effect.
    """
    size = batch_size(sweep)
    number = 0
    mixes = measures(sweep) and not depends_on_results(sweep)
    while asked := search.ask(size * MIXED_SITTINGS if mixes else size):
        points = list(enumerate(asked, number + 1))
        number += len(points)
        if mixes and len(points) > size:
            random.Random(f"{sweep.section.seed} {number}").shuffle(points)  # noqa: S311 - no secret
        for begin in range(0, len(points), size):
            yield sorted(points[begin : begin + size], key=lambda numbered: numbered[0])


def batch_size(sweep: Sweep) -> int:
    """Return the number of points that run together."""
    return sweep.section.together if measures(sweep) or depends_on_results(sweep) else UNMEASURED_AT_ONCE


def measures(sweep: Sweep) -> bool:
    """Return whether points have steps that are measured in turns."""
    return any(step.type.cls.takes_turns for step in sweep.base.steps)


def depends_on_results(sweep: Sweep) -> bool:
    """Return whether the next points depend on earlier results."""
    return sweep.section.method in ("hill_climb", "tpe") or sweep.section.saturation is not None


ENOUGH_LACKING = 64
"""When this many points, and no others, need something that this machine lacks, the rest is not examined."""


@dataclass
class TriedPoints:
    """Points that were tried, and the reason why there are no more."""

    points: list[PointRun] = field(default_factory=list)
    judgements: list[Judgement] = field(default_factory=list)
    stopped_because: str = ""

    def sort(self) -> None:
        """Sort points, which ran in shuffled order, by number."""
        both = sorted(zip(self.points, self.judgements, strict=True), key=lambda pair: pair[0].number)
        self.points, self.judgements = [point for point, _ in both], [judged for _, judged in both]


def try_points(sweep: Sweep, search: Search, state: SweepState) -> TriedPoints:
    """Try points until the search has no more, or the time is used up.

    Raises RequestError when the objectives name a metric that no step records, BackendError when this machine lacks
    what the first points need, and ModelError when a model changes meanwhile.
    """
    tried = TriedPoints()
    start = time.perf_counter()
    limit_s = None if sweep.section.time is None else sweep.section.time / 1e3
    for batch in ask_batches(sweep, search):
        state.check_models()
        points = [open_point(sweep, state, number, point) for number, point in batch]
        advance_points(points, state)
        judgements = [judge_point(point, state.goals) for point in points]
        tried.points += points
        tried.judgements += judgements
        _refuse_hopeless(tried)
        if depends_on_results(sweep):
            search.tell([describe_trial(point, judged) for point, judged in zip(points, judgements, strict=True)])
        if limit_s is not None and time.perf_counter() - start >= limit_s:
            tried.stopped_because = f"the time of {seconds(limit_s)} is used up"
            break
    state.check_models()
    _refuse_lacking(tried.points)
    tried.sort()
    tried.stopped_because = tried.stopped_because or search.stopped_because or f"all {len(tried.points)} points tried"
    return tried


def open_point(sweep: Sweep, state: SweepState, number: int, point: Assignment) -> PointRun:
    """Open a point; one whose settings contradict each other has failed already."""
    changes = sweep.changes(point)
    try:
        run = state.open_run(sweep.point(point))
        if state.machine_of is None:  # only the other machine knows what it lacks
            refuse_impossible_run(run.recipe, run.planner, run.digests)
        return PointRun.begin(number, point, changes, run)
    except NdldFlowError as error:
        return PointRun(number, point, changes, state.open_run(sweep.base), failure=error)


def _refuse_lacking(points: Sequence[PointRun], at_least: int = 1) -> None:
    """Raise the error of the first point if this machine can run none of the points; they have cost nothing."""
    lacks = [point.failure for point in points if isinstance(point.failure, BackendError) and not point.run.done]
    if len(lacks) == len(points) >= at_least:
        raise lacks[0]


def _refuse_hopeless(tried: TriedPoints) -> None:
    """Raise the error of the first point if every point has failed in a way that no other point can avoid."""
    points = tried.points
    _refuse_lacking(points, at_least=ENOUGH_LACKING)
    whole = [judged for point, judged in zip(points, tried.judgements, strict=True) if point.is_whole]
    if whole and all(judged.missing for judged in whole):
        raise RequestError(
            "sweep: no point records every metric that the objectives need; results are kept. Correct it, run again: "
            f"{whole[0].missing}"
        )
