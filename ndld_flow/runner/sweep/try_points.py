"""Ask a search for points, do them, tell it what they came to; until it has enough, or a budget is used up."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from ndld_flow.errors import BackendError, NdldFlowError, RequestError
from ndld_flow.quantities import seconds
from ndld_flow.recipe.points import Sweep
from ndld_flow.runner.foresight import refuse_hopeless_run
from ndld_flow.runner.sweep.advance import advance_points
from ndld_flow.runner.sweep.desk import Desk
from ndld_flow.runner.sweep.judge import Judgement, describe_trial, judge_point
from ndld_flow.runner.sweep.point_run import PointRun
from ndld_flow.sweeping.search import Search
from ndld_flow.sweeping.space import Assignment

UNMEASURED_AT_ONCE = 64
"""Points done together where nothing is measured: enough to keep every worker busy."""


@dataclass
class Tried:
    """Points that were tried, and why no more were."""

    points: list[PointRun] = field(default_factory=list)
    judgements: list[Judgement] = field(default_factory=list)
    stopped_because: str = ""


def try_points(sweep: Sweep, search: Search, desk: Desk) -> Tried:
    """Try points until the search has no more, or time is up.

    Raises RequestError when the objectives name what no step tells, BackendError when this machine lacks what the first
    points need: then nothing can be found. Raises ModelError when a model changes meanwhile.
    """
    tried = Tried()
    start = time.perf_counter()
    limit_s = None if sweep.section.time is None else sweep.section.time / 1e3
    while batch := search.ask(batch_size(sweep)):
        desk.check_models()
        points = [open_point(sweep, desk, len(tried.points) + place, point) for place, point in enumerate(batch, 1)]
        advance_points(points, desk)
        judgements = [judge_point(point, desk.goals) for point in points]
        tried.points += points
        tried.judgements += judgements
        _refuse_hopeless(tried)
        search.tell([describe_trial(point, judged) for point, judged in zip(points, judgements, strict=True)])
        if limit_s is not None and time.perf_counter() - start >= limit_s:
            tried.stopped_because = f"the time of {seconds(limit_s)} is used up"
            break
    desk.check_models()
    tried.stopped_because = tried.stopped_because or search.stopped_because or f"all {len(tried.points)} points tried"
    return tried


def batch_size(sweep: Sweep) -> int:
    """How many points are done together."""
    measures = any(step.type.cls.takes_turns for step in sweep.base.steps)
    return sweep.section.together if measures or depends_on_results(sweep) else UNMEASURED_AT_ONCE


def depends_on_results(sweep: Sweep) -> bool:
    """Whether which points come next depends on what the first ones came to."""
    return sweep.section.method in ("hill_climb", "tpe") or sweep.section.saturation is not None


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


def _refuse_hopeless(tried: Tried) -> None:
    """Raise what every point so far has failed by, where no other point can do better."""
    points = tried.points
    lacks = [point.failure for point in points if isinstance(point.failure, BackendError) and not point.run.done]
    if lacks and len(lacks) == len(points):
        raise lacks[0]
    whole = [judged for point, judged in zip(points, tried.judgements, strict=True) if point.is_whole]
    if whole and all(judged.missing for judged in whole):
        raise RequestError(
            "sweep: no point tells all that it is asked for; what was done is kept, so mend that and run again: "
            f"{whole[0].missing}"
        )
