"""Ask a search for points, run them, and report their results to it."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from ndld_flow.base.errors import BackendError, NdldFlowError, RequestError
from ndld_flow.base.quantities import seconds
from ndld_flow.recipe.points import Sweep
from ndld_flow.runner.plan import refuse_hopeless_run
from ndld_flow.runner.sweep.advance import advance_points
from ndld_flow.runner.sweep.judge import Judgement, describe_trial, judge_point
from ndld_flow.runner.sweep.point_run import PointRun
from ndld_flow.runner.sweep.state import Desk
from ndld_flow.sweep_search.search import Search
from ndld_flow.sweep_search.space import Assignment

UNMEASURED_AT_ONCE = 64
"""Points done together where nothing is measured: enough to keep every worker busy."""
MIXED_SITTINGS = 8
"""Sittings over which the points of a grid are mixed: a wider grid leaves those before it as they are."""

Batch = list[tuple[int, Assignment]]
"""Points with their numbers, in the order of numbers."""


def ask_batches(sweep: Sweep, search: Search) -> Iterator[Batch]:
    """Points that are done together, one batch after the other.

    A search that learns is asked for one batch at a time, and told in between. Of the others the points of several
    sittings are mixed, by the seed: neighbours in a grid differ in its last axes only, so that else the first ones
    would change with the time of day, and the machine's drift would look like an effect of theirs.
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
            yield sorted(points[begin : begin + size], key=lambda one: one[0])


def batch_size(sweep: Sweep) -> int:
    """How many points are done together."""
    return sweep.section.together if measures(sweep) or depends_on_results(sweep) else UNMEASURED_AT_ONCE


def measures(sweep: Sweep) -> bool:
    """Whether points have steps that take turns."""
    return any(step.type.cls.takes_turns for step in sweep.base.steps)


def depends_on_results(sweep: Sweep) -> bool:
    """Whether which points come next depends on what the first ones came to."""
    return sweep.section.method in ("hill_climb", "tpe") or sweep.section.saturation is not None


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
