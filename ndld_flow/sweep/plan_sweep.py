"""Plan a sweep: its points, the steps that they share, the results that are stored, and the duration of the rest."""

from __future__ import annotations

import contextlib
import math
import statistics
from collections import defaultdict
from collections.abc import Hashable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from itertools import chain, islice, zip_longest
from pathlib import Path
from typing import TypeAlias

from pydantic import JsonValue

from ndld_flow.base.errors import NdldFlowError, Problem, RecipeError, RequestError
from ndld_flow.base.quantities import seconds
from ndld_flow.execution.events import Notice
from ndld_flow.execution.executor import Executor, Task
from ndld_flow.execution.listener import Listener
from ndld_flow.execution.request import Request
from ndld_flow.execution.ssh.targets import open_targets
from ndld_flow.machine.host import describe_machine, is_this_machine
from ndld_flow.recipe.points import Sweep
from ndld_flow.recipe.recipe import Recipe, RecipeStep
from ndld_flow.records.document import Record
from ndld_flow.records.run_folder import read_run_record, read_sweep_record
from ndld_flow.records.run_record import RunStep, StepRecord
from ndld_flow.runner.check_inputs import Inputs, find_wrong_inputs
from ndld_flow.runner.plan import Reason, Unit, arrange_steps
from ndld_flow.runner.run_state import RunOpener, choose_forced, open_cache
from ndld_flow.runs.outputs import Outputs
from ndld_flow.store.digest import digest_json
from ndld_flow.store.hidden_credentials import hide_in_values
from ndld_flow.store.store import Store
from ndld_flow.sweep.state import Goals, PointRun, SweepState, describe_trial, judge_point
from ndld_flow.sweep.try_points import TriedPoints, ask_batches, depends_on_results, open_points, run_session
from ndld_flow.sweep.winners import choose_finalists, is_measured, measure_again
from ndld_flow.sweep_search.searches import make_search
from ndld_flow.sweep_search.space import Assignment, NumberedSpace

_ASSUMED_SPREAD = 0.5
"""Assumed relative standard deviation of a step that ran once: the effect of other settings is unknown."""
_LEAST_SPREAD = 0.1

Pending: TypeAlias = "Mapping[str, tuple[str, float]]"
"""Step's name -> its type, and how many times it must run."""
Durations: TypeAlias = "Mapping[tuple[str, str], Sequence[float]]"
"""Step's name and its type -> its durations in seconds."""


class Estimate(Record):
    """Estimated duration of steps that run one after another."""

    seconds: float
    low_s: float
    """With `high_s` the 95 % interval, if points are like earlier ones."""
    high_s: float
    step_type_count: int
    unknown: tuple[str, ...] = ()
    """Step types that this recipe has not run here: their time is not included."""

    @property
    def text(self) -> str:
        """Return the estimate as text."""
        about = f"about {seconds(self.seconds)} ({seconds(self.low_s)} to {seconds(self.high_s)}) from earlier runs"
        if not self.unknown:
            return about
        return f"{about}; {len(self.unknown)} of {self.step_type_count} step types have not run yet"


def add_up(pending: Pending, durations: Durations) -> Estimate | None:
    """Add up the durations of all steps, with a 95 % interval; None if none is known.

    A step is expected to take as long as in this recipe's latest run and sweep.

    The prediction of a sum of `count` durations from `n` observed ones has a standard error of the standard deviation
    times sqrt(count + count² / n). Errors of steps are independent; the interval is two standard errors on each side.
    """
    total, variance = 0.0, 0.0
    types = {step for step, count in pending.values() if count > 0}
    unknown: dict[str, None] = {}
    for name, (step, count) in pending.items():
        times = durations.get((name, step), ())
        if count <= 0:
            continue
        if not times:
            unknown[step] = None
            continue
        mean = statistics.fmean(times)
        total += count * mean
        least = _LEAST_SPREAD * mean
        deviation = _ASSUMED_SPREAD * mean if len(times) < 2 else max(statistics.stdev(times), least)
        variance += deviation**2 * (count + count**2 / len(times))
    if types == set(unknown):
        return None
    off = 2 * math.sqrt(variance)
    return Estimate(
        seconds=total,
        low_s=max(total - off, 0.0),
        high_s=total + off,
        step_type_count=len(types),
        unknown=tuple(unknown),
    )


def read_own_times(recipe: str, outputs: Outputs) -> Durations:
    """Return the durations of the steps of a recipe's latest run and sweep on this machine."""
    durations: dict[tuple[str, str], list[float]] = defaultdict(list)
    for name, step, wall_s in (*_times_of_run(outputs.latest(recipe)), *_times_of_sweep(outputs.latest_sweep(recipe))):
        durations[name, step].append(wall_s)
    return durations


def _times_of_run(folder: Path | None) -> Iterator[tuple[str, str, float]]:
    try:
        run = read_run_record(folder) if folder is not None else None
    except RequestError:
        return
    for step in run.steps if run is not None else ():
        if step.record is not None and is_this_machine(step.record.parts.machine):
            yield step.name, step.step, step.record.wall_s


def _times_of_sweep(folder: Path | None) -> Iterator[tuple[str, str, float]]:
    """Yield the durations of steps that the sweep computed itself."""
    try:
        sweep = read_sweep_record(folder) if folder is not None else None
    except RequestError:
        return
    if sweep is None or sweep.machine.hardware != describe_machine().hardware:
        return
    for point in sweep.points:
        yield from ((step.name, step.step, step.wall_s) for step in point.steps if step.outcome == "done")


@dataclass(frozen=True)
class PlannedStep:
    """A step of the recipe over all known points."""

    name: str
    step: str
    uses: int
    """Number of points that have it."""
    distinct: int
    """Number of different computations: each runs once."""
    stored: int
    """Number of these whose results are in the store, or in the shared cache."""
    cached: int = 0
    """Number of these that only the shared cache has."""


@dataclass
class _Counter:
    """Identifies the computation of each step of a batch by everything that its result depends on."""

    digests: dict[tuple[int, str], str] = field(default_factory=dict)
    """Point's number and step's name -> the digest of its computation."""

    def add(self, units: Sequence[tuple[PointRun, Unit]]) -> None:
        """Add steps that run at the same time: a measurement depends on all others of its session."""
        alone = {(point.number, step.name): self._digest(point, step) for point, unit in units for step in unit}
        groups = defaultdict[Hashable, set[str]](set)
        for point, unit in units:
            groups[_session_of(unit[0])] |= {alone[point.number, step.name] for step in unit}
        for point, unit in units:
            together: list[JsonValue] = [*sorted(groups[_session_of(unit[0])])] if _session_of(unit[0]) else []
            for step in unit:
                own = alone[point.number, step.name]
                self.digests[point.number, step.name] = digest_json([own, together]) if len(together) > 1 else own

    def _digest(self, point: PointRun, step: RecipeStep) -> str:
        models = point.run.models
        reads: dict[str, JsonValue] = {
            key: models[name].record.digest if name in models else self.digests[point.number, name]
            for key, name in step.reads.items()
        }
        used = step.used_inputs(point.run.recipe.file.inputs)
        inputs: dict[str, JsonValue] = {name: part.model_dump(mode="json") for name, part in used.items()}
        return digest_json([step.type.name, step.type.version, step.settings, reads, inputs])


def count_steps(batches: Sequence[Sequence[PointRun]]) -> tuple[PlannedStep, ...]:
    """Count each step of the recipe over all points, as far as is known without running them.

    `batches`: points that run together.
    """
    types: dict[str, str] = {}
    found: dict[str, list[tuple[str, RunStep | None]]] = defaultdict(list)
    for batch in batches:
        points = [point for point in batch if point.failure is None]
        counter = _Counter()
        for of_points in zip_longest(*(arrange_steps(point.run.recipe) for point in points)):
            units = [(point, unit) for point, unit in zip(points, of_points, strict=True) if unit is not None]
            counter.add(units)
            for point, step in ((point, step) for point, unit in units for step in unit):
                done = point.run.done.get(step.name)
                if done is None or done.record is not None:  # else skipped after a failure
                    types.setdefault(step.name, step.type.name)
                    found[step.name].append((counter.digests[point.number, step.name], done))
    return tuple(
        PlannedStep(
            name,
            types[name],
            uses=len(uses),
            distinct=len({digest for digest, _ in uses}),
            stored=len({digest for digest, done in uses if done is not None}),
            cached=len({digest for digest, done in uses if done is not None and done.reason == Reason.CACHED.text}),
        )
        for name, uses in found.items()
    )


def _session_of(step: RecipeStep) -> Hashable:
    """Return the common properties of the steps of a session; empty for steps that do not measure."""
    return (step.type.name, step.step.device, step.target) if step.type.cls.takes_turns else ()


MOST_POINTS = 2000
"""Maximum number of points that are examined; further ones are only counted."""


@dataclass(frozen=True)
class PlannedPoint:
    """One point, as far as it is known in advance."""

    number: int
    values: Assignment
    waiting: tuple[str, ...]
    """Names of the steps without a stored result."""
    problem: str = ""
    """The contradiction between its settings that prevents its run; empty without one."""


class SweepPlan(Record):
    """The work of a sweep."""

    method: str
    """The search, such as `grid`."""
    point_count: int | None
    """Upper bound of the points to try; None where it is unknown."""
    excluded_count: int | None
    """Points that `exclude:` removes; None where it is unknown."""
    points: tuple[PlannedPoint, ...]
    """Points that are known in advance: the next points of some searches depend on results."""
    steps: tuple[PlannedStep, ...]
    """The steps of the recipe over all known points."""
    remeasured: tuple[int, ...] | None
    """Points that will be measured again at the end; empty if their results are stored or none will be, None where they
    are not known yet."""
    estimate: Estimate | None
    """Duration of the work that is not stored; None if this recipe has run none of its steps here."""


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
    with open_state(sweep, request, listener, looks_only=True) as state:
        state.listener = lambda event: listener(event) if isinstance(event, Notice) else None  # such as downloads
        return _plan(sweep, state)


@contextlib.contextmanager
def open_state(sweep: Sweep, request: Request, listener: Listener, *, looks_only: bool = False) -> Iterator[SweepState]:
    """Yield the state that the points share; at the end, or after an error, all tasks are stopped."""
    outputs = Outputs(request.outputs)
    with contextlib.ExitStack() as opened:
        targets = open_targets(
            sweep.base.sent_to(request.on), listener, typed=request.on, trust=request.trust, axes=sweep.axes
        )
        if targets is not None:
            opened.callback(targets.close)
        cache = open_cache(request, outputs.store, listener, looks_only=looks_only)
        if cache is not None:
            opened.callback(cache.close)
        executor: Executor = _StoreOnly()
        machine_of = None
        if not looks_only:
            from ndld_flow.execution.choose_executor import open_executor

            chosen = open_executor(sweep, request, outputs.store, listener, targets)
            executor, machine_of = chosen.executor, chosen.machine_of
            opened.callback(executor.close)
        yield SweepState(
            outputs=outputs,
            executor=executor,
            machine_of=machine_of,
            cache=cache,
            targets=targets,
            on=request.on,
            looks_only=looks_only,
            listener=listener,
            goals=Goals(sweep.objectives, sweep.constraints),
            section=sweep.section,
            forced=choose_forced(request.force, sweep.base),
        )


def _plan(sweep: Sweep, state: SweepState) -> SweepPlan:
    state.open_run(sweep.base)
    search = make_search(sweep.space, sweep.options)
    batches: list[list[PointRun]] = []
    points: list[PointRun] = []
    for batch in ask_batches(sweep, search):
        opened = open_points(sweep, state, batch)
        points += opened
        batches.append(opened)
        _advance_over_store(opened, state)
        if len(points) >= MOST_POINTS or (depends_on_results(sweep) and not all(point.finished for point in opened)):
            break
        if depends_on_results(sweep):
            search.tell([describe_trial(point, judge_point(point, state.goals)) for point in opened])
    if not all(point.finished for point in points):
        refuse_wrong_inputs_of_points(sweep, state)
    points.sort(key=lambda point: point.number)
    steps, known = count_steps(batches), len(points)
    scale = max(search.size or known, known) / known if known else 0.0  # unknown points count like known ones
    pending = {step.name: (step.step, scale * (step.distinct - step.stored)) for step in steps}
    return SweepPlan(
        method=sweep.section.method,
        point_count=search.size,
        excluded_count=NumberedSpace(sweep.space).excluded_count,
        points=tuple(_describe(point) for point in points),
        steps=steps,
        remeasured=_plan_again(sweep, points, state),
        estimate=add_up(pending, read_own_times(sweep.base.name, state.outputs)),
    )


def _advance_over_store(points: Sequence[PointRun], state: SweepState) -> None:
    """Advance points as far as the store has their results."""
    while True:
        for point in points:
            _take_found(point, state)
        unfinished = [point for point in points if not point.finished]
        if not unfinished or not all(_measures(point) for point in unfinished):
            return
        try:
            run_session(unfinished, state)
        except _NotStoredError:
            return


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


def _plan_again(sweep: Sweep, points: Sequence[PointRun], state: SweepState) -> tuple[int, ...] | None:
    if not sweep.section.winners or not any(is_measured(objective, sweep) for objective in sweep.objectives):
        return ()
    if len(points) >= MOST_POINTS or not all(point.finished for point in points):
        return None
    tried = TriedPoints(list(points), [judge_point(point, state.goals) for point in points])
    numbers = choose_finalists(tried, sweep)
    winners = [point for point in points if point.number in numbers]
    try:
        measure_again(winners, sweep, state)
    except _NotStoredError:
        return tuple(point.number for point in winners)
    return ()


def _measures(point: PointRun) -> bool:
    return point.waiting[0][0].type.cls.takes_turns


def _describe(point: PointRun) -> PlannedPoint:
    waiting = tuple(step.name for unit in point.waiting for step in unit)
    values = hide_in_values(point.point)
    return PlannedPoint(point.number, values, waiting, str(point.failure) if point.failure is not None else "")


_NAMING = ("inputs", "model", "models")
"""Words in the key of an axis that changes the names of inputs, or those of the model."""


def refuse_wrong_inputs_of_points(sweep: Sweep, opener: RunOpener) -> None:
    """Raise RecipeError with all inputs of all points known in advance that their models do not have or accept.

    Points beyond `MOST_POINTS`, and those that depend on results, are checked when they run.
    """
    known: dict[Path, Inputs | None] = {}
    problems: dict[Problem, None] = {}
    for recipe in _differing_recipes(sweep):
        try:
            models = opener.find_models(recipe)
        except NdldFlowError:
            continue  # the point that names a missing model fails alone
        paths = {name: model.artifact.path for name, model in models.items()}
        problems |= dict.fromkeys(find_wrong_inputs(recipe, paths, known))
    if problems:
        raise RecipeError(list(problems))


def _differing_recipes(sweep: Sweep) -> Iterator[Recipe]:
    """Yield the recipes of points that may differ in the names of inputs; the base recipe if none do."""
    naming = [axis.name for axis in sweep.axes if any(set(key.split(".")) & set(_NAMING) for key in axis.keys)]
    if not naming:
        yield sweep.base
        return
    seen = set()
    batches = ask_batches(sweep, make_search(sweep.space, sweep.options))
    known = islice(batches, 1) if depends_on_results(sweep) else batches
    for _, point in islice(chain.from_iterable(known), MOST_POINTS):
        values = digest_json([point[name] for name in naming])
        if values in seen:
            continue
        seen.add(values)
        try:
            yield sweep.point(point)
        except NdldFlowError:
            continue  # its settings contradict each other: it fails alone
