"""Try the points of a search: run their steps, all at the same time, and measure in turns, in sessions on a device."""

from __future__ import annotations

import os
import random
import time
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import dataclass, field

from ndld_flow.base.errors import BackendError, NdldFlowError, OutputsError, RequestError
from ndld_flow.base.quantities import counted, seconds
from ndld_flow.execution.events import StepStarted
from ndld_flow.execution.execute import Work
from ndld_flow.execution.executor import Task, find_records, fit
from ndld_flow.execution.keys import join_keys, make_key
from ndld_flow.machine.host import UNKNOWN_HOST, fingerprint_machine
from ndld_flow.recipe.points import Sweep
from ndld_flow.recipe.recipe import RecipeStep
from ndld_flow.records.key_parts import KeyParts
from ndld_flow.records.run_record import StepRecord
from ndld_flow.records.sweep import MeasurementSession
from ndld_flow.runner.plan import Decision, Reason, look_ahead, refuse_impossible_run
from ndld_flow.runner.run_record import gather_work, set_damaged_aside
from ndld_flow.step import Reuse
from ndld_flow.sweep.state import Judgement, PointRun, SweepState, describe_trial, judge_point
from ndld_flow.sweep_search.search import Search, find_method
from ndld_flow.sweep_search.space import Assignment, all_tried


@dataclass(frozen=True)
class SessionPlan:
    """The computations of a session, and the steps that they belong to."""

    works: tuple[Work, ...]
    """Each distinct step once."""
    assignments: tuple[tuple[PointRun, RecipeStep, int], ...]
    """Point, its step, and the position of its computation in `works`."""


def run_session(blocked: Sequence[PointRun], state: SweepState) -> list[PointRun]:
    """Measure the next step of the first of these points, together with all points that wait for the same device.

    Points that violate a constraint are not measured. Returns the points that can continue.
    """
    refused = [point for point in blocked if point.refuse_by(state.goals.constraints)]
    if refused:
        return []  # the caller tries again with the others
    kind = _session_kind(blocked[0])
    members = [point for point in blocked if _session_kind(point) == kind]
    _measure(members, state)
    return members


def _session_kind(point: PointRun) -> tuple[str, str, str]:
    step = point.waiting[0][0]
    return step.type.name, step.step.device, step.target


def _measure(members: Sequence[PointRun], state: SweepState) -> None:
    """Measure points in turns; when one fails, measure the others again without it."""
    waiting = [point for point in members if not point.finished]
    if not waiting:
        return
    try:
        plan = plan_session(waiting, state)
    except NdldFlowError as error:  # a missing data file
        _split(waiting, state, error)
        return
    if not _must_measure(plan, state) and _place_found_session(plan, state):
        return
    state.check_names()
    for work in plan.works:
        set_damaged_aside(work.step.name, make_key(work.parts), state.store, state.listener)
        state.listener(
            StepStarted(
                name=work.step.name, step=work.step.type.name, reason=_reason(plan).text, detail=_describe_others(plan)
            )
        )
    names = {place: step.name for _, step, place in plan.assignments}
    limits = [state.limit_s(name) for name in names.values()]
    known = [limit for limit in limits if limit is not None]
    answer = state.executor.submit(
        Task(plan.works, _must_measure(plan, state), sum(known) if len(known) == len(limits) else None), state.store
    )
    try:
        place_session(plan, answer.result(), state)
    except OutputsError:
        raise  # a full disk is not a point's error
    except NdldFlowError as error:
        if _fail_culprits(plan, state, error):
            _measure(waiting, state)
        else:
            _split(waiting, state, error)


def _place_found_session(plan: SessionPlan, state: SweepState) -> bool:
    """Give points the records of a session that the store, or the shared cache, has; return whether one has them."""
    records = find_records(plan.works, state.store)
    if records is not None:
        place_session(plan, records, state, found=Reason.REUSED)
        return True
    cached = state.cache.find([make_key(work.parts) for work in plan.works]) if state.cache is not None else None
    if cached is None or state.cache is None or not fit(cached, plan.works) or not state.cache.take(cached):
        return False
    place_session(plan, cached, state, found=Reason.CACHED)
    return True


def _split(members: Sequence[PointRun], state: SweepState, error: NdldFlowError) -> None:
    """Measure each half separately, as the error does not name its point."""
    if len(members) == 1:
        step = members[0].waiting[0][0]
        members[0].fail(step, error)
        state.report_step(members[0], step)
        return
    middle = len(members) // 2
    _measure(members[:middle], state)
    _measure(members[middle:], state)


def plan_session(members: Sequence[PointRun], state: SweepState) -> SessionPlan:
    """Plan a session with each distinct step once. Equal steps of one point remain separate: they measure noise."""
    places: dict[tuple[str, int], int] = {}
    parts: list[KeyParts] = []
    owners: list[tuple[PointRun, RecipeStep]] = []
    assignments: list[tuple[PointRun, RecipeStep, int]] = []
    for point in members:
        unit, twins = point.waiting[0], dict[str, int]()
        for step, own in zip(unit, point.run.planner.describe(unit, point.run.digests), strict=True):
            alone = make_key(own)
            twins[alone] = twins.get(alone, 0) + 1
            place = places.setdefault((alone, twins[alone]), len(parts))
            if place == len(parts):
                parts.append(own)
                owners.append((point, step))
            assignments.append((point, step, place))
    # A repeated measurement has a key of its own, although all its parts are the same.
    marks = (state.again,) if state.again else ()
    joined = [own.model_copy(update={"together": (*own.together, *marks)}) for own in join_keys(parts)]
    works = tuple(
        gather_work(point.run, Decision(step, Reason.TOGETHER, "", own), f"{step.name}#{point.number}")
        for (point, step), own in zip(owners, joined, strict=True)
    )
    return SessionPlan(works, tuple(assignments))


def _must_measure(plan: SessionPlan, state: SweepState) -> bool:
    steps = [step for _, step, _ in plan.assignments]
    unknown = any(UNKNOWN_HOST in work.parts.machine for work in plan.works)
    return unknown or any(step.name in state.forced or step.step.reused_where() is Reuse.NEVER for step in steps)


def _reason(plan: SessionPlan) -> Reason:
    return Reason.TOGETHER if len(plan.works) > 1 else Reason.NEW


def _describe_others(plan: SessionPlan) -> str:
    others = len(plan.works) - 1
    return f"with {counted(others, 'other')}" if others else ""


def _fail_culprits(plan: SessionPlan, state: SweepState, error: NdldFlowError) -> bool:
    """Fail the points that have the step which an error names; return whether it names one."""
    blamed = {place for place, work in enumerate(plan.works) if work.step.name == error.step}
    culprits = [(point, step) for point, step, place in plan.assignments if place in blamed and len(blamed) == 1]
    started = {work.step.name for work in plan.works}
    for point, step in culprits:
        point.fail(step, error)
        if f"{step.name}#{point.number}" in started:
            state.report_step(point, step)
    return bool(culprits)


def place_session(
    plan: SessionPlan, records: Sequence[StepRecord], state: SweepState, *, found: Reason | None = None
) -> None:
    """Give each point its measurement, and add the session to the sweep. `found`: why it did not have to run."""
    number = len(state.sessions) + 1
    points = tuple(dict.fromkeys(point.number for point, _, _ in plan.assignments))
    given: set[int] = set()
    for point, step, place in plan.assignments:
        decision = Decision(step, found or _reason(plan), _describe_others(plan), plan.works[place].parts)
        is_computed = found is None and place not in given
        (state.place_computed if is_computed else state.place_found)(point, [decision], [records[place]])
        if place not in given and found is None:
            state.report_step(point, step)
        given.add(place)
        point.session = point.session or number
    machine = records[0].parts.machine.partition("; ")[0]
    is_here = machine == fingerprint_machine()
    state.sessions.append(
        MeasurementSession(
            number=number,
            points=points,
            steps=tuple(dict.fromkeys(step.name for _, step, _ in plan.assignments)),
            device=plan.works[0].step.step.device,
            again=bool(state.again),
            reused=found is not None,
            started_at=min(record.started_at for record in records),
            ended_at=max(record.ended_at or record.started_at for record in records),
            concurrent=tuple(dict.fromkeys(step for record in records for step in record.concurrent)),
            machine="" if is_here else machine,
            load=round(os.getloadavg()[0], 2) if is_here and found is None else None,
        )
    )


IN_FLIGHT = 2
"""Number of steps per worker: the one that it computes, and one that is ready when it has finished."""


@dataclass
class _Computation:
    """A step that is being computed, for one point."""

    point: PointRun
    decision: Decision
    waiting: list[PointRun] = field(default_factory=list)
    """Points that need the same result."""


@dataclass
class _Computations:
    """All steps that are being computed."""

    state: SweepState
    running: dict[Future[Sequence[StepRecord]], _Computation] = field(default_factory=dict)
    by_key: dict[str, _Computation] = field(default_factory=dict)

    def start(self, point: PointRun, decision: Decision) -> None:
        """Submit a step of a point."""
        self.state.check_names()
        name = f"{decision.step.name}#{point.number}"
        set_damaged_aside(name, decision.key, self.state.store, self.state.listener)
        self.state.listener(
            StepStarted(name=name, step=decision.step.type.name, reason=decision.reason.text, detail=decision.detail)
        )
        work = gather_work(point.run, decision, name)
        fresh = decision.reason in (Reason.FORCED, Reason.NEVER)
        task = Task((work,), fresh, self.state.limit_s(decision.step.name))
        computation = self.by_key[decision.key] = _Computation(point, decision)
        self.running[self.state.executor.submit(task, self.state.store)] = computation

    def finish_one(self) -> list[PointRun]:
        """Wait until a step has finished; return the points that can continue."""
        done, _ = wait(self.running, return_when=FIRST_COMPLETED)
        return [point for future in done for point in self._finish(future)]

    def _finish(self, future: Future[Sequence[StepRecord]]) -> list[PointRun]:
        computation = self.running.pop(future)
        del self.by_key[computation.decision.key]
        error = future.exception()
        if isinstance(error, NdldFlowError) and not isinstance(error, OutputsError):
            for point in (computation.point, *computation.waiting):
                point.fail(point.waiting[0][0], error)  # by the point's own name of the step
        else:  # a full disk or a bug is not a point's error, and is raised
            self.state.place_computed(computation.point, [computation.decision], future.result())
        self.state.report_step(computation.point, computation.decision.step)
        return [computation.point, *computation.waiting]


def advance_points(points: Sequence[PointRun], state: SweepState) -> None:
    """Run all steps of these points, each distinct one once; measuring steps in sessions, after all others.

    A point that fails keeps its error. Raises errors that do not concern a single point.
    """
    computations = _Computations(state)
    ready = deque(points)
    while True:
        while ready and len(computations.running) < IN_FLIGHT * state.executor.slots:
            _advance(ready.popleft(), computations)
        state.report_finished(points)
        if computations.running:
            ready += computations.finish_one()
        elif blocked := [point for point in points if not point.finished]:
            ready += run_session(blocked, state)
        else:
            return


def _advance(point: PointRun, computations: _Computations) -> None:
    """Advance a point until it must wait."""
    will_measure = any(step.type.cls.takes_turns for unit in point.waiting for step in unit)
    while point.waiting and not point.waiting[0][0].type.cls.takes_turns:
        if will_measure and point.refuse_by(computations.state.goals.constraints):
            return
        (step,) = unit = point.waiting[0]
        try:
            [decision] = point.run.planner.decide(unit, point.run.digests)
        except NdldFlowError as error:
            point.fail(step, error)
            return
        if decision.key in computations.by_key:  # even if its record exists: the reason depends on who computed it
            computations.by_key[decision.key].waiting.append(point)
            return
        if decision.record is None:
            computations.start(point, decision)
            return
        state = computations.state
        # Without a lock: if another process computes the step at this moment, either record is as good.
        if decision.reason is Reason.REUSED or (state.cache is not None and state.cache.take([decision.record])):
            state.place_found(point, [decision], [decision.record])


UNMEASURED_AT_ONCE = 64
"""Number of points that run together if nothing is measured: enough to keep every worker busy."""
MIXED_SITTINGS = 8
"""Number of sessions over which the points of a grid are shuffled: extending the grid leaves earlier ones unchanged."""

Batch = list[tuple[int, Assignment]]
"""Points with their numbers, in the order of numbers."""


def ask_batches(sweep: Sweep, search: Search) -> Iterator[Batch]:
    """Yield the points that run together, batch by batch.

    A search that learns gets the results of each batch before the next. Otherwise the points of several sessions are
    shuffled, by the seed: neighbours in a grid differ only in the last axes, so the first axes would otherwise change
    with the time of day, and the machine's drift would look like their effect.
    """
    size = sweep.section.together if _measures(sweep) or depends_on_results(sweep) else UNMEASURED_AT_ONCE
    number = 0
    mixes = sweep.section.mixed and _measures(sweep) and not depends_on_results(sweep)
    while asked := search.ask(size * MIXED_SITTINGS if mixes else size):
        points = list(enumerate(asked, number + 1))
        number += len(points)
        if mixes and len(points) > size:
            random.Random(f"{sweep.section.seed} {number}").shuffle(points)  # noqa: S311 - not a secret
        for begin in range(0, len(points), size):
            yield sorted(points[begin : begin + size], key=lambda numbered: numbered[0])


def _measures(sweep: Sweep) -> bool:
    """Return whether points have steps that are measured in turns."""
    return any(step.type.cls.takes_turns for step in sweep.base.steps)


def depends_on_results(sweep: Sweep) -> bool:
    """Return whether the next points depend on earlier results."""
    return find_method(sweep.section.method).adapts or sweep.section.saturation is not None


ENOUGH_LACKING = 64
"""If this many points, and no others, need something that this machine lacks, the sweep stops."""


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
    """Try the points of a search, batch by batch, until there are no more or the time is used up.

    The results of each batch are pushed to the shared cache at once, since this process may be killed. Raises
    RequestError if the objectives name a metric that no step records, BackendError if this machine lacks what the first
    points need, and ModelError if a model changes during the sweep.
    """
    tried = TriedPoints()
    start = time.perf_counter()
    limit_s = None if sweep.section.time is None else sweep.section.time / 1e3
    for batch in ask_batches(sweep, search):
        state.check_models()
        points = open_points(sweep, state, batch)
        advance_points(points, state)
        if state.cache is not None:
            state.cache.push(list(state.known.values()))
        judgements = [judge_point(point, state.goals) for point in points]
        tried.points += points
        tried.judgements += judgements
        _refuse_hopeless(tried)
        if depends_on_results(sweep):
            search.tell([describe_trial(point, judged) for point, judged in zip(points, judgements, strict=True)])
        if limit_s is not None and time.perf_counter() - start >= limit_s:
            tried.stopped_because = f"the time limit of {seconds(limit_s)} was reached"
            break
    state.check_models()
    _refuse_lacking(tried.points)
    tried.sort()
    tried.stopped_because = tried.stopped_because or search.stopped_because or all_tried(len(tried.points))
    return tried


def open_points(sweep: Sweep, state: SweepState, batch: Batch) -> list[PointRun]:
    """Open points; those whose settings contradict each other have failed already."""
    points = [_open_point(sweep, state, number, point) for number, point in batch]
    if state.cache is not None:
        state.cache.fetch(look_ahead([(point.run.planner, point.run.digests) for point in points if point.waiting]))
    if state.machine_of is not None:  # only the other machine knows what it lacks
        return points
    return [_refuse_impossible(point, sweep, state) for point in points]


def _open_point(sweep: Sweep, state: SweepState, number: int, point: Assignment) -> PointRun:
    changes = sweep.changes(point)
    try:
        return PointRun.begin(number, point, changes, state.open_run(sweep.first_point(point)))
    except NdldFlowError as error:
        return PointRun(number, point, changes, state.open_run(sweep.base), failure=error)


def _refuse_impossible(point: PointRun, sweep: Sweep, state: SweepState) -> PointRun:
    """Return a point, or in its place one that has failed because this machine cannot run it."""
    if point.failure is not None:
        return point
    try:
        refuse_impossible_run(point.run.recipe, point.run.planner, point.run.digests, point.run.paths)
    except NdldFlowError as error:
        return PointRun(point.number, point.point, point.changes, state.open_run(sweep.base), failure=error)
    return point


def _refuse_lacking(points: Sequence[PointRun], at_least: int = 1) -> None:
    """Raise the error of the first point if this machine can run none of the points; none of them has run yet."""
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
            "sweep: no point records every metric that the objectives need; results are kept. Correct this and run "
            f"again: {whole[0].missing}"
        )
