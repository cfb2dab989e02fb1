"""Say what a sweep would do, without doing it: its points, what they share, and what is there already."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from pydantic import JsonValue

from ndld_flow.artifacts.digest import digest_json
from ndld_flow.errors import NdldFlowError
from ndld_flow.recipe.points import Sweep
from ndld_flow.runner.events import Listener
from ndld_flow.runner.executors.compute import find_records
from ndld_flow.runner.executors.in_process import InProcess
from ndld_flow.runner.runs import Outputs
from ndld_flow.runner.state import Request
from ndld_flow.runner.sweep.desk import Desk
from ndld_flow.runner.sweep.estimate import Estimate, estimate_seconds
from ndld_flow.runner.sweep.judge import Goals, describe_trial, judge_point
from ndld_flow.runner.sweep.point_run import PointRun
from ndld_flow.runner.sweep.sitting import place_sitting, seat_points
from ndld_flow.runner.sweep.try_points import batch_size, depends_on_results, open_point
from ndld_flow.sweeping.make_search import make_search
from ndld_flow.sweeping.space import Assignment
from ndld_flow.sweeping.space_size import excluded_count

MOST_POINTS = 2000
"""Points looked at; of more, the rest is told as a number."""


@dataclass(frozen=True)
class PlannedPoint:
    """One point, as far as it is known."""

    number: int
    values: Assignment
    waiting: tuple[str, ...]
    """Names of the steps that are not there."""
    problem: str = ""
    """Why it cannot be run: its settings contradict each other."""


@dataclass(frozen=True)
class PlannedStep:
    """A step of the recipe over all known points."""

    name: str
    step: str
    uses: int
    """Points that have it."""
    distinct: int
    """How many different ones that are: each is done once."""
    there: int
    """How many of these are in the store."""


@dataclass(frozen=True)
class SweepPlan:
    """What a sweep would do."""

    sweep: Sweep
    point_count: int | None
    """Points that will be tried at most; None when that cannot be known."""
    excluded_count: int | None
    points: tuple[PlannedPoint, ...]
    """Those known now: what a search asks for next depends on what the first ones come to."""
    steps: tuple[PlannedStep, ...]
    estimate: Estimate | None
    """Of what is not there; None when nothing like it ever ran here."""


@dataclass
class _Counted:
    """A step over all points, by what its work depends on."""

    step: str
    uses: int = 0
    distinct: set[str] = field(default_factory=set)
    there: set[str] = field(default_factory=set)


def plan_sweep(sweep: Sweep, request: Request, listener: Listener) -> SweepPlan:
    """What a sweep would do. Nothing is computed, but models are fetched if they must be. Raises NdldFlowError."""
    outputs = Outputs(request.outputs)
    desk = Desk(outputs, InProcess(), listener, Goals(sweep.objectives, sweep.constraints), sweep.section)
    search = make_search(sweep.space, sweep.options)
    points: list[PointRun] = []
    while len(points) < MOST_POINTS and (batch := search.ask(batch_size(sweep))):
        opened = [open_point(sweep, desk, len(points) + place, point) for place, point in enumerate(batch, 1)]
        points += opened
        _advance_over_store(opened, desk)
        if depends_on_results(sweep) and not all(point.finished for point in opened):
            break
        search.tell([describe_trial(point, judge_point(point, desk.goals)) for point in opened])
    counted = _count_steps(points)
    return SweepPlan(
        sweep=sweep,
        point_count=search.size,
        excluded_count=excluded_count(sweep.space),
        points=tuple(_describe(point) for point in points),
        steps=tuple(
            PlannedStep(name, one.step, one.uses, len(one.distinct), len(one.there)) for name, one in counted.items()
        ),
        estimate=_estimate(counted, len(points), search.size, outputs, sweep),
    )


def _advance_over_store(points: Sequence[PointRun], desk: Desk) -> None:
    """Take points as far as the store has what they need."""
    going = True
    while going:
        for point in points:
            _take_found(point, desk)
        able = [point for point in points if not point.finished and not point.refuse_by(desk.goals.constraints)]
        going = bool(able) and all(_measures(point) for point in able) and _sit_again(able, desk)


def _take_found(point: PointRun, desk: Desk) -> None:
    while point.waiting and not _measures(point):
        try:
            [decision] = point.run.planner.decide(point.waiting[0], point.run.digests)
        except NdldFlowError as error:
            point.fail(point.waiting[0][0], error)
            return
        if decision.record is None:
            return
        desk.place_found(point, [decision], [decision.record])


def _sit_again(points: Sequence[PointRun], desk: Desk) -> bool:
    """Whether the sitting that these points come to is there."""
    seats = seat_points(points, desk)
    found = find_records(seats.works, desk.store)
    if found is None:
        return False
    place_sitting(seats, found, desk, reused=True)
    return True


def _measures(point: PointRun) -> bool:
    return point.waiting[0][0].type.cls.takes_turns


def _describe(point: PointRun) -> PlannedPoint:
    waiting = tuple(step.name for unit in point.waiting for step in unit)
    return PlannedPoint(point.number, point.point, waiting, str(point.failure) if point.failure is not None else "")


def _count_steps(points: Sequence[PointRun]) -> dict[str, _Counted]:
    """What each step's work depends on, as far as it can be told without doing it."""
    counted: dict[str, _Counted] = {}
    for point in points:
        if point.failure is not None:
            continue
        known: dict[str, str] = {name: model.record.digest for name, model in point.run.models.items()}
        for step in point.run.recipe.steps:
            reads: dict[str, JsonValue] = {key: known[name] for key, name in step.reads.items()}
            inputs = point.run.recipe.file.model_dump(mode="json")["inputs"] if step.step.needs_inputs() else {}
            known[step.name] = digest_json([step.type.name, step.type.version, step.settings, reads, inputs])
            done = point.run.done.get(step.name)
            if done is not None and done.record is None:
                continue  # a constraint said no: it will not be done
            one = counted.setdefault(step.name, _Counted(step.type.name))
            one.uses += 1
            one.distinct.add(known[step.name])
            if done is not None:
                one.there.add(known[step.name])
    return counted


def _estimate(
    counted: Mapping[str, _Counted], known: int, point_count: int | None, outputs: Outputs, sweep: Sweep
) -> Estimate | None:
    """Of the steps that are not there; of points that are not known yet as many as of those that are."""
    scale = max(point_count or known, known) / known if known else 0.0
    todo = {name: (one.step, scale * (len(one.distinct) - len(one.there))) for name, one in counted.items()}
    return estimate_seconds(todo, sweep.base.name, outputs)
