"""Plan a sweep without running it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from itertools import zip_longest

from pydantic import JsonValue

from ndld_flow.base.errors import NdldFlowError
from ndld_flow.recipe.points import Sweep
from ndld_flow.recipe.recipe import RecipeStep
from ndld_flow.records.step_record import StepRecord
from ndld_flow.runner.events import Listener, Said
from ndld_flow.runner.executors.executor import Task
from ndld_flow.runner.outputs import Outputs
from ndld_flow.runner.plan import Unit, arrange_steps
from ndld_flow.runner.run import choose_forced
from ndld_flow.runner.state import Request
from ndld_flow.runner.sweep.estimate import Estimate, estimate_seconds
from ndld_flow.runner.sweep.judge import Goals, describe_trial, judge_point
from ndld_flow.runner.sweep.point_run import PointRun
from ndld_flow.runner.sweep.session import hold_sitting
from ndld_flow.runner.sweep.state import Desk
from ndld_flow.runner.sweep.try_points import Tried, ask_batches, depends_on_results, open_point
from ndld_flow.runner.sweep.winners import choose_finalists, is_measured, measure_again
from ndld_flow.store.digest import digest_json
from ndld_flow.store.hidden_credentials import hide_all_credentials
from ndld_flow.store.store import Store
from ndld_flow.sweep_search.make_search import make_search
from ndld_flow.sweep_search.numbered_space import excluded_count
from ndld_flow.sweep_search.space import Assignment


@dataclass
class CountedStep:
    """A step over all points, by what its work depends on."""

    step: str
    """Its type."""
    uses: int = 0
    """Points that have it."""
    distinct: set[str] = field(default_factory=set)
    there: set[str] = field(default_factory=set)


@dataclass
class _Counter:
    """What is known of the points of one batch."""

    counted: dict[str, CountedStep]
    made: dict[tuple[int, str], str] = field(default_factory=dict)
    """Point's number and the name of what is made -> what its work depends on, as a digest."""

    def count(self, units: Sequence[tuple[PointRun, Unit]]) -> None:
        """Count what points do at the same time: what is measured in one sitting depends on all of it."""
        alone = {(point.number, step.name): self._digest(point, step) for point, unit in units for step in unit}
        company = defaultdict[Hashable, set[str]](set)
        for point, unit in units:
            company[_sitting(unit[0])] |= {alone[point.number, step.name] for step in unit}
        for point, unit in units:
            together: list[JsonValue] = [*sorted(company[_sitting(unit[0])])] if _sitting(unit[0]) else []
            for step in unit:
                own = alone[point.number, step.name]
                self.made[point.number, step.name] = digest_json([own, together]) if len(together) > 1 else own
                self._note(point, step)

    def _digest(self, point: PointRun, step: RecipeStep) -> str:
        models = point.run.models
        reads: dict[str, JsonValue] = {
            key: models[name].record.digest if name in models else self.made[point.number, name]
            for key, name in step.reads.items()
        }
        used = step.used_inputs(point.run.recipe.file.inputs)
        inputs: dict[str, JsonValue] = {name: part.model_dump(mode="json") for name, part in used.items()}
        return digest_json([step.type.name, step.type.version, step.settings, reads, inputs])

    def _note(self, point: PointRun, step: RecipeStep) -> None:
        done = point.run.done.get(step.name)
        if done is not None and done.record is None:
            return  # something said no: it will not be done
        one = self.counted.setdefault(step.name, CountedStep(step.type.name))
        one.uses += 1
        one.distinct.add(self.made[point.number, step.name])
        if done is not None:
            one.there.add(self.made[point.number, step.name])


def count_steps(batches: Sequence[Sequence[PointRun]]) -> Mapping[str, CountedStep]:
    """Name of a step -> how many there are of it, as far as it can be told without doing it.

    `batches`: points that are done together.
    """
    counted: dict[str, CountedStep] = {}
    for batch in batches:
        points = [point for point in batch if point.failure is None]
        counter = _Counter(counted)
        for units in zip_longest(*(arrange_steps(point.run.recipe) for point in points)):
            counter.count([(point, unit) for point, unit in zip(points, units, strict=True) if unit is not None])
    return counted


def _sitting(step: RecipeStep) -> Hashable:
    """What steps of a sitting have in common; empty for those that are not measured."""
    return (step.type.name, step.step.device) if step.type.cls.takes_turns else ()


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
    again: tuple[int, ...] | None
    """Points that will be measured again at the end; empty where that is there or none will be, None where it is not
    known yet which."""
    estimate: Estimate | None
    """Of what is not there; None when nothing like it ever ran here."""


class _NotThereError(Exception):
    """What a plan comes to is not in the store."""


class _Nobody:
    """An executor for plans: nothing is computed."""

    slots = 1

    def submit(self, task: Task, store: Store) -> Future[Sequence[StepRecord]]:
        raise _NotThereError

    def close(self) -> None:
        """Nothing was begun."""


def plan_sweep(sweep: Sweep, request: Request, listener: Listener) -> SweepPlan:
    """What a sweep would do. Nothing is computed, but models are fetched if they must be. Raises NdldFlowError."""
    outputs = Outputs(request.outputs)
    forced = choose_forced(request.force, [step.name for step in sweep.base.steps])
    goals = Goals(sweep.objectives, sweep.constraints)
    desk = Desk(outputs, _Nobody(), _hear_words(listener), goals, sweep.section, forced=forced)
    desk.open_run(sweep.base)
    search = make_search(sweep.space, sweep.options)
    batches: list[list[PointRun]] = []
    points: list[PointRun] = []
    for batch in ask_batches(sweep, search):
        opened = [open_point(sweep, desk, number, point) for number, point in batch]
        points += opened
        batches.append(opened)
        _advance_over_store(opened, desk)
        if len(points) >= MOST_POINTS or (depends_on_results(sweep) and not all(point.finished for point in opened)):
            break
        if depends_on_results(sweep):
            search.tell([describe_trial(point, judge_point(point, desk.goals)) for point in opened])
    points.sort(key=lambda point: point.number)
    counted = count_steps(batches)
    again = _plan_again(sweep, points, desk)
    return SweepPlan(
        sweep=sweep,
        point_count=search.size,
        excluded_count=excluded_count(sweep.space),
        points=tuple(_describe(point) for point in points),
        steps=tuple(
            PlannedStep(name, one.step, one.uses, len(one.distinct), len(one.there)) for name, one in counted.items()
        ),
        again=again,
        estimate=_estimate(counted, len(points), search.size, outputs, sweep),
    )


def _hear_words(listener: Listener) -> Listener:
    """What is fetched is told; what nobody does is not."""
    return lambda event: listener(event) if isinstance(event, Said) else None


def _advance_over_store(points: Sequence[PointRun], desk: Desk) -> None:
    """Take points as far as the store has what they need."""
    going = True
    while going:
        for point in points:
            _take_found(point, desk)
        able = [point for point in points if not point.finished]
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
    try:
        hold_sitting(points, desk)
    except _NotThereError:
        return False
    return True


def _plan_again(sweep: Sweep, points: Sequence[PointRun], desk: Desk) -> tuple[int, ...] | None:
    if not sweep.section.winners or not any(is_measured(objective, sweep) for objective in sweep.objectives):
        return ()
    if len(points) >= MOST_POINTS or not all(point.finished for point in points):
        return None
    tried = Tried(list(points), [judge_point(point, desk.goals) for point in points])
    numbers = choose_finalists(tried, sweep)
    winners = [point for point in points if point.number in numbers]
    try:
        measure_again(winners, desk)
    except _NotThereError:
        return tuple(point.number for point in winners)
    return ()


def _measures(point: PointRun) -> bool:
    return point.waiting[0][0].type.cls.takes_turns


def _describe(point: PointRun) -> PlannedPoint:
    waiting = tuple(step.name for unit in point.waiting for step in unit)
    values = {name: hide_all_credentials(value) for name, value in point.point.items()}
    return PlannedPoint(point.number, values, waiting, str(point.failure) if point.failure is not None else "")


def _estimate(
    counted: Mapping[str, CountedStep], known: int, point_count: int | None, outputs: Outputs, sweep: Sweep
) -> Estimate | None:
    """Of the steps that are not there; of points that are not known yet as many as of those that are."""
    scale = max(point_count or known, known) / known if known else 0.0
    todo = {name: (one.step, scale * (len(one.distinct) - len(one.there))) for name, one in counted.items()}
    return estimate_seconds(todo, sweep.base.name, outputs)
