"""Plan a sweep: its points, the steps that they share, and the results that are stored."""

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
from ndld_flow.records.run_record import StepRecord
from ndld_flow.runner.events import Listener, Notice
from ndld_flow.runner.executors.executor import Task
from ndld_flow.runner.open_run import choose_forced
from ndld_flow.runner.outputs import Outputs
from ndld_flow.runner.plan import Unit, arrange_steps
from ndld_flow.runner.request import Request
from ndld_flow.runner.sweep.estimate import Estimate, estimate_seconds
from ndld_flow.runner.sweep.judge import Goals, describe_trial, judge_point
from ndld_flow.runner.sweep.point_run import PointRun
from ndld_flow.runner.sweep.session import run_session
from ndld_flow.runner.sweep.state import SweepState
from ndld_flow.runner.sweep.try_points import TriedPoints, ask_batches, depends_on_results, open_point
from ndld_flow.runner.sweep.winners import choose_finalists, is_measured, measure_again
from ndld_flow.store.digest import digest_json
from ndld_flow.store.hidden_credentials import hide_all_credentials
from ndld_flow.store.store import Store
from ndld_flow.sweep_search.make_search import make_search
from ndld_flow.sweep_search.numbered_space import excluded_count
from ndld_flow.sweep_search.space import Assignment


@dataclass
class CountedStep:
    """A step over all points, counted by the inputs that its result depends on."""

    step: str
    """Its type."""
    uses: int = 0
    """Points that have it."""
    distinct: set[str] = field(default_factory=set)
    there: set[str] = field(default_factory=set)


@dataclass
class _Counter:
    """Counts the steps of the points of one batch."""

    counted: dict[str, CountedStep]
    digests: dict[tuple[int, str], str] = field(default_factory=dict)
    """Point's number and step's name -> the digest of everything that its result depends on."""

    def count(self, units: Sequence[tuple[PointRun, Unit]]) -> None:
        """Count steps that run at the same time: a measurement depends on all others of its session."""
        alone = {(point.number, step.name): self._digest(point, step) for point, unit in units for step in unit}
        groups = defaultdict[Hashable, set[str]](set)
        for point, unit in units:
            groups[_session_of(unit[0])] |= {alone[point.number, step.name] for step in unit}
        for point, unit in units:
            together: list[JsonValue] = [*sorted(groups[_session_of(unit[0])])] if _session_of(unit[0]) else []
            for step in unit:
                own = alone[point.number, step.name]
                self.digests[point.number, step.name] = digest_json([own, together]) if len(together) > 1 else own
                self._note(point, step)

    def _digest(self, point: PointRun, step: RecipeStep) -> str:
        models = point.run.models
        reads: dict[str, JsonValue] = {
            key: models[name].record.digest if name in models else self.digests[point.number, name]
            for key, name in step.reads.items()
        }
        used = step.used_inputs(point.run.recipe.file.inputs)
        inputs: dict[str, JsonValue] = {name: part.model_dump(mode="json") for name, part in used.items()}
        return digest_json([step.type.name, step.type.version, step.settings, reads, inputs])

    def _note(self, point: PointRun, step: RecipeStep) -> None:
        done = point.run.done.get(step.name)
        if done is not None and done.record is None:
            return  # skipped after a failure
        counted_step = self.counted.setdefault(step.name, CountedStep(step.type.name))
        counted_step.uses += 1
        counted_step.distinct.add(self.digests[point.number, step.name])
        if done is not None:
            counted_step.there.add(self.digests[point.number, step.name])


def count_steps(batches: Sequence[Sequence[PointRun]]) -> Mapping[str, CountedStep]:
    """Count each step of the recipe over all points, as far as that is known without running them.

    `batches`: points that run together.
    """
    counted: dict[str, CountedStep] = {}
    for batch in batches:
        points = [point for point in batch if point.failure is None]
        counter = _Counter(counted)
        for units in zip_longest(*(arrange_steps(point.run.recipe) for point in points)):
            counter.count([(point, unit) for point, unit in zip(points, units, strict=True) if unit is not None])
    return counted


def _session_of(step: RecipeStep) -> Hashable:
    """Return what the steps of a session have in common; empty for steps that do not measure."""
    return (step.type.name, step.step.device) if step.type.cls.takes_turns else ()


MOST_POINTS = 2000
"""Points that are examined; of further ones only the number is shown."""


@dataclass(frozen=True)
class PlannedPoint:
    """One point, as far as it is known in advance."""

    number: int
    values: Assignment
    waiting: tuple[str, ...]
    """Names of the steps without a stored result."""
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
    """Number of different computations: each runs once."""
    there: int
    """Number of these that are in the store."""


@dataclass(frozen=True)
class SweepPlan:
    """The work of a sweep."""

    sweep: Sweep
    point_count: int | None
    """Upper bound of the points to try; None where it is unknown."""
    excluded_count: int | None
    points: tuple[PlannedPoint, ...]
    """Points that are known in advance: the next points of some searches depend on results."""
    steps: tuple[PlannedStep, ...]
    again: tuple[int, ...] | None
    """Points that will be measured again at the end; empty where their results are stored or none will be, None where
    they are not known yet."""
    estimate: Estimate | None
    """Duration of the work that is not stored; None when no such step ever ran here."""


class _NotStoredError(Exception):
    """A result that a plan needs is not in the store."""


class _StoreOnly:
    """An executor that computes nothing, for plans."""

    slots = 1

    def submit(self, task: Task, store: Store) -> Future[Sequence[StepRecord]]:
        raise _NotStoredError

    def close(self) -> None:
        """Do nothing: nothing was started."""


def plan_sweep(sweep: Sweep, request: Request, listener: Listener) -> SweepPlan:
    """Plan a sweep. Nothing is computed, but models are downloaded if necessary. Raises NdldFlowError."""
    outputs = Outputs(request.outputs)
    state = SweepState(
        outputs,
        lambda event: listener(event) if isinstance(event, Notice) else None,  # such as downloads
        choose_forced(request.force, sweep.base),
        executor=_StoreOnly(),
        goals=Goals(sweep.objectives, sweep.constraints),
        section=sweep.section,
    )
    state.open_run(sweep.base)
    search = make_search(sweep.space, sweep.options)
    batches: list[list[PointRun]] = []
    points: list[PointRun] = []
    for batch in ask_batches(sweep, search):
        opened = [open_point(sweep, state, number, point) for number, point in batch]
        points += opened
        batches.append(opened)
        _advance_over_store(opened, state)
        if len(points) >= MOST_POINTS or (depends_on_results(sweep) and not all(point.finished for point in opened)):
            break
        if depends_on_results(sweep):
            search.tell([describe_trial(point, judge_point(point, state.goals)) for point in opened])
    points.sort(key=lambda point: point.number)
    counted = count_steps(batches)
    again = _plan_again(sweep, points, state)
    return SweepPlan(
        sweep=sweep,
        point_count=search.size,
        excluded_count=excluded_count(sweep.space),
        points=tuple(_describe(point) for point in points),
        steps=tuple(
            PlannedStep(name, counted_step.step, counted_step.uses, len(counted_step.distinct), len(counted_step.there))
            for name, counted_step in counted.items()
        ),
        again=again,
        estimate=_estimate(counted, len(points), search.size, outputs, sweep),
    )


def _advance_over_store(points: Sequence[PointRun], state: SweepState) -> None:
    """Advance points as far as the store has their results."""
    advanced = True
    while advanced:
        for point in points:
            _take_found(point, state)
        unfinished = [point for point in points if not point.finished]
        advanced = (
            bool(unfinished) and all(_measures(point) for point in unfinished) and _find_session(unfinished, state)
        )


def _take_found(point: PointRun, state: SweepState) -> None:
    while point.waiting and not _measures(point):
        try:
            [decision] = point.run.planner.decide(point.waiting[0], point.run.digests)
        except NdldFlowError as error:
            point.fail(point.waiting[0][0], error)
            return
        if decision.record is None:
            return
        state.place_found(point, [decision], [decision.record])


def _find_session(points: Sequence[PointRun], state: SweepState) -> bool:
    """Place the stored results of the next session of these points; return whether there are any."""
    try:
        run_session(points, state)
    except _NotStoredError:
        return False
    return True


def _plan_again(sweep: Sweep, points: Sequence[PointRun], state: SweepState) -> tuple[int, ...] | None:
    if not sweep.section.winners or not any(is_measured(objective, sweep) for objective in sweep.objectives):
        return ()
    if len(points) >= MOST_POINTS or not all(point.finished for point in points):
        return None
    tried = TriedPoints(list(points), [judge_point(point, state.goals) for point in points])
    numbers = choose_finalists(tried, sweep)
    winners = [point for point in points if point.number in numbers]
    try:
        measure_again(winners, state)
    except _NotStoredError:
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
    """Estimate the steps that are not stored, with unknown points counted like known ones."""
    scale = max(point_count or known, known) / known if known else 0.0
    pending = {
        name: (counted_step.step, scale * (len(counted_step.distinct) - len(counted_step.there)))
        for name, counted_step in counted.items()
    }
    return estimate_seconds(pending, sweep.base.name, outputs)
