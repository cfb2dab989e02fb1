"""Ask a search for points, do them, tell it what they came to; until it has enough, or a budget is used up."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from ndld_flow.base.errors import BackendError, NdldFlowError, RequestError
from ndld_flow.base.quantities import seconds
from ndld_flow.recipe.points import Sweep
from ndld_flow.runner.foresight import refuse_hopeless_run
from ndld_flow.runner.sweep.advance import advance_points
from ndld_flow.runner.sweep.batches import ask_batches, depends_on_results
from ndld_flow.runner.sweep.desk import Desk
from ndld_flow.runner.sweep.judge import Judgement, describe_trial, judge_point
from ndld_flow.runner.sweep.point_run import PointRun
from ndld_flow.sweep_search.search import Search
from ndld_flow.sweep_search.space import Assignment

ENOUGH_LACKING = 64
"""So many points that this machine lacks something for, and no other, and the rest is not looked at."""


@dataclass
class Tried:
    """Points that were tried, and why no more were."""

    points: list[PointRun] = field(default_factory=list)
    judgements: list[Judgement] = field(default_factory=list)
    stopped_because: str = ""

    def sort(self) -> None:
        """Put points, which are done in a mixed order, into the order of their numbers."""
        both = sorted(zip(self.points, self.judgements, strict=True), key=lambda pair: pair[0].number)
        self.points, self.judgements = [point for point, _ in both], [judged for _, judged in both]


def try_points(sweep: Sweep, search: Search, desk: Desk) -> Tried:
    """Try points until the search has no more, or time is up.

    Raises RequestError when the objectives name what no step tells, BackendError when this machine lacks what the first
    points need: then nothing can be found. Raises ModelError when a model changes meanwhile.
    """
    tried = Tried()
    start = time.perf_counter()
    limit_s = None if sweep.section.time is None else sweep.section.time / 1e3
    for batch in ask_batches(sweep, search):
        desk.check_models()
        points = [open_point(sweep, desk, number, point) for number, point in batch]
        advance_points(points, desk)
        judgements = [judge_point(point, desk.goals) for point in points]
        tried.points += points
        tried.judgements += judgements
        _refuse_hopeless(tried)
        if depends_on_results(sweep):
            search.tell([describe_trial(point, judged) for point, judged in zip(points, judgements, strict=True)])
        if limit_s is not None and time.perf_counter() - start >= limit_s:
            tried.stopped_because = f"the time of {seconds(limit_s)} is used up"
            break
    desk.check_models()
    _refuse_lacking(tried.points)
    tried.sort()
    tried.stopped_because = tried.stopped_because or search.stopped_because or f"all {len(tried.points)} points tried"
    return tried


def open_point(sweep: Sweep, desk: Desk, number: int, point: Assignment) -> PointRun:
    """A point ready to be advanced; one whose settings contradict each other has failed already."""
    changes = sweep.changes(point)
    try:
        run = desk.open_run(sweep.point(point))
        if desk.machine_of is None:  # what another machine lacks, only it can tell
            refuse_hopeless_run(run.recipe, run.planner, run.digests)
        return PointRun.begin(number, point, changes, run)
    except NdldFlowError as error:
        return PointRun(number, point, changes, desk.open_run(sweep.base), failure=error)


def _refuse_lacking(points: Sequence[PointRun], at_least: int = 1) -> None:
    """Raise what this machine lacks for every point so far; finding that out has cost nothing."""
    lacks = [point.failure for point in points if isinstance(point.failure, BackendError) and not point.run.done]
    if len(lacks) == len(points) >= at_least:
        raise lacks[0]


def _refuse_hopeless(tried: Tried) -> None:
    """Raise what every point so far has failed by, where no other point can do better."""
    points = tried.points
    _refuse_lacking(points, at_least=ENOUGH_LACKING)
    whole = [judged for point, judged in zip(points, tried.judgements, strict=True) if point.is_whole]
    if whole and all(judged.missing for judged in whole):
        raise RequestError(
            "sweep: no point tells all that it is asked for; what was done is kept, so mend that and run again: "
            f"{whole[0].missing}"
        )
