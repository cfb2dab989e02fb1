"""The state of a sweep while it runs: its points, their judgements, and everything that they share."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar, TypeVar

from pydantic import JsonValue

from ndld_flow.base.errors import NdldFlowError
from ndld_flow.base.quantities import apart
from ndld_flow.execution.events import PointFinished
from ndld_flow.execution.executor import Executor
from ndld_flow.recipe.gates import Gate, GateError
from ndld_flow.recipe.points import Objective
from ndld_flow.recipe.recipe import RecipeStep
from ndld_flow.recipe.sweep_section import SweepSection
from ndld_flow.records.measurement import Metric
from ndld_flow.records.outcomes import PointOutcome
from ndld_flow.records.run_record import GateResult, RunStep, StepRecord, metrics_of
from ndld_flow.records.sweep import MeasurementSession
from ndld_flow.runner.plan import Decision, Reason, Unit, arrange_steps
from ndld_flow.runner.run_record import describe_end, place_records, skip_step
from ndld_flow.runner.run_state import RunOpener, RunState
from ndld_flow.store.hidden_credentials import hide_in_values
from ndld_flow.sweep_search.search import Trial
from ndld_flow.sweep_search.space import Assignment

T = TypeVar("T")


def if_known(decide: Callable[[Mapping[str, Metric]], T], metrics: Mapping[str, Metric]) -> T | None:
    """Decide a gate, or evaluate an expression; None if a metric is missing, or a divisor is zero."""
    try:
        return decide(metrics)
    except GateError:
        return None


@dataclass
class PointRun:
    """The state of one point of a sweep while it runs."""

    number: int
    """From 1, in the order in which points are tried."""
    point: Assignment
    changes: Mapping[str, JsonValue]
    """Recipe key -> value."""
    run: RunState
    waiting: deque[Unit] = field(default_factory=deque)
    """Steps that have not finished."""
    failure: NdldFlowError | None = None
    failed_step: str = ""
    refused: bool = False
    """A step or a constraint failed before anything was measured."""
    session: int | None = None
    reported: bool = False
    """True if its end was reported to the listener."""

    @classmethod
    def begin(cls, number: int, point: Assignment, changes: Mapping[str, JsonValue], run: RunState) -> PointRun:
        """Create a point whose steps are all waiting."""
        return cls(number, point, changes, run, deque(arrange_steps(run.recipe)))

    @property
    def finished(self) -> bool:
        return not self.waiting

    @property
    def is_begun(self) -> bool:
        """Return whether it is a valid recipe: its settings are consistent, and this machine can run it."""
        return self.failure is None or bool(self.failed_step)

    @property
    def is_whole(self) -> bool:
        """Return whether every step has finished."""
        return not self.waiting and bool(self.run.done) and all(step.record is not None for step in self.run.steps)

    @property
    def metrics(self) -> dict[str, Metric]:
        """Return `STEP.METRIC` -> value, of all finished steps."""
        return metrics_of(self.run.steps)

    def add(self, steps: Sequence[RunStep]) -> None:
        """Add finished steps of the first waiting unit; a failed one may stop the rest."""
        self.run.done |= {step.name: step for step in steps}
        unit = self.waiting[0]
        if all(step.name in self.run.done for step in unit):
            self.waiting.popleft()
            failed_step = [step.name for step in unit if self.run.done[step.name].outcome == "failed"]
            if failed_step and unit[0].step.stops_run:
                self._skip(f"{failed_step[0]} failed")

    def fail(self, step: RecipeStep, error: NdldFlowError) -> None:
        """End the point with an error."""
        self.failure, self.failed_step = error, step.name
        self._skip(f"{step.name} failed")

    def refuse_by(self, constraints: Sequence[Gate]) -> bool:
        """Skip the rest of the point if a step, or a constraint that can be decided now, has failed.

        Measuring such a point would be useless. Returns whether it was refused.
        """
        failed_step = next((step.name for step in self.run.steps if step.outcome == "failed"), "")
        decided = (if_known(gate.decide, self.metrics) for gate in constraints)
        broken = next((result.gate for result in decided if result is not None and not result.passed), "")
        if failed_step or broken:
            self.refused = True
            self._skip(f"{failed_step} failed" if failed_step else f"{broken} failed")
        return self.refused

    def _skip(self, reason: str) -> None:
        for unit in self.waiting:
            self.run.done |= {step.name: skip_step(step, reason) for step in unit if step.name not in self.run.done}
        self.waiting.clear()


@dataclass(frozen=True)
class Goals:
    """A sweep's objectives and constraints."""

    objectives: tuple[Objective, ...] = ()
    constraints: tuple[Gate, ...] = ()


@dataclass(frozen=True)
class Judgement:
    """The result of a point."""

    outcome: PointOutcome
    reason: str
    objectives: tuple[float | None, ...]
    """None if a metric was not reached."""
    constraints: tuple[GateResult, ...]
    """Those that could be decided."""
    violation: float
    """0: all constraints hold."""
    missing: str = ""
    """A metric that objectives, constraints or gates need and no step recorded although all have finished."""


def judge_point(point: PointRun, goals: Goals) -> Judgement:
    """Judge a finished point."""
    metrics = point.metrics
    evaluated = [if_known(objective.expression.evaluate, metrics) for objective in goals.objectives]
    missing = _describe_missing(point, goals, metrics)
    decided = [(gate, result) for gate in goals.constraints if (result := if_known(gate.decide, metrics)) is not None]
    objections, is_undecided = _objections(point, goals, metrics)
    reason = "; ".join(objections)
    outcome: PointOutcome = "passed" if not reason else "inconclusive" if is_undecided else "refused"
    if point.failure is not None:
        outcome, reason = "failed", describe_failure(point)
    elif missing and not reason:
        outcome, reason = "failed", missing
    return Judgement(
        outcome=outcome,
        reason=reason,
        objectives=tuple(None if metric is None else metric.value for metric in evaluated),
        constraints=tuple(result for _, result in decided),
        violation=max((gate.violation(metrics) for gate, _ in decided), default=0.0) or float(bool(reason)),
        missing=missing,
    )


def describe_trial(point: PointRun, judgement: Judgement) -> Trial:
    """Return a point's result for its search."""
    known = tuple(value for value in judgement.objectives if value is not None)
    reached = judgement.outcome != "failed" and len(known) == len(judgement.objectives)
    return Trial(point.point, known if reached else None, judgement.violation)


def _describe_missing(point: PointRun, goals: Goals, metrics: Mapping[str, Metric]) -> str:
    """Return the undecidable condition of a point whose steps have all finished; empty if all can be decided."""
    if not point.is_whole:
        return ""
    asked: list[tuple[str, Callable[[Mapping[str, Metric]], object]]] = [
        *((objective.text, objective.expression.evaluate) for objective in goals.objectives),
        *((gate.text, gate.decide) for gate in (*goals.constraints, *point.run.recipe.gates)),
    ]
    for text, decide in asked:
        try:
            decide(metrics)
        except GateError as error:
            return f"{text}: {error}"
    return ""


def _objections(point: PointRun, goals: Goals, metrics: Mapping[str, Metric]) -> tuple[list[str], bool]:
    """Return sentences about failed or undecided steps, gates and constraints, and whether none of them failed."""
    steps = [step for step in point.run.steps if step.record is not None and not step.record.passed]
    decided = (if_known(gate.decide, metrics) for gate in (*goals.constraints, *point.run.recipe.gates))
    failed = [result for result in decided if result is not None and not result.passed]
    sentences = [
        f"{step.name} {'is inconclusive' if step.record.inconclusive else 'failed'}: {step.record.summary}"
        for step in steps
        if step.record is not None
    ]
    sentences += [
        f"{result.gate} failed: {' against '.join(apart((result.left, result.right), result.unit))}"
        for result in failed
    ]
    return sentences, not failed and all(step.record is not None and step.record.inconclusive for step in steps)


def describe_failure(point: PointRun) -> str:
    """Return a point's error with the recipe's names of steps: the point's number is shown separately."""
    assert point.failure is not None
    prefix = f"step {point.failed_step or point.failure.step}: " if point.failure.step else ""
    return prefix + re.sub(r"\bstep (\w+)#\d+", r"step \1", point.failure.message)


@dataclass(kw_only=True)
class SweepState(RunOpener):
    """The state that the points of a sweep share while it runs."""

    in_sweep: ClassVar[bool] = True
    executor: Executor
    goals: Goals = field(default_factory=Goals)
    section: SweepSection = field(default_factory=SweepSection)
    again: str = ""
    """A mark in the keys of repeated measurements; empty the first time."""
    computed: set[str] = field(default_factory=set)
    """Keys of the records that this sweep computed."""
    sessions: list[MeasurementSession] = field(default_factory=list)
    check_names: Callable[[], None] = lambda: None
    """Called before anything is computed; raises an error that concerns the whole sweep."""

    def limit_s(self, step: str) -> float | None:
        """Return the time limit of a step in seconds; None without one."""
        limit_ms = self.section.timeout_ms(step)
        return None if limit_ms is None else limit_ms / 1e3

    def place_computed(self, point: PointRun, decisions: Sequence[Decision], records: Sequence[StepRecord]) -> None:
        """Give a point results that were just computed for it."""
        self.computed |= {record.key for record in records}
        self.known |= {record.key: record for record in records}
        for decision, record in zip(decisions, records, strict=True):
            point.add(place_records(point.run, [decision], [record], "done", record.wall_s))

    def place_found(self, point: PointRun, decisions: Sequence[Decision], records: Sequence[StepRecord]) -> None:
        """Give a point existing results: computed for another point, or before this sweep."""
        self.known |= {record.key: record for record in records}
        for decision, record in zip(decisions, records, strict=True):
            cached = decision.reason is Reason.CACHED
            reason = Reason.SHARED if record.key in self.computed else Reason.CACHED if cached else Reason.REUSED
            reused = replace(decision, reason=reason, detail="")
            point.add(place_records(point.run, [reused], [record], "reused", 0.0))

    def report_step(self, point: PointRun, step: RecipeStep) -> None:
        """Report that a step of a point has ended, for whatever reason."""
        done = point.run.done.get(step.name)
        if done is not None:
            self.listener(describe_end(done).model_copy(update={"name": f"{step.name}#{point.number}"}))

    def report_finished(self, points: Sequence[PointRun]) -> None:
        """Report points that have just finished."""
        for point in points:
            if point.finished and not point.reported:
                point.reported = True
                judgement = judge_point(point, self.goals)
                reached = zip(self.goals.objectives, judgement.objectives, strict=True)
                self.listener(
                    PointFinished(
                        number=point.number,
                        values=hide_in_values(point.point),
                        outcome=judgement.outcome,
                        reason=judgement.reason,
                        objectives={
                            objective.text: objective.expression.evaluate(point.metrics)
                            for objective, value in reached
                            if value is not None
                        },
                        again=bool(self.again),
                    )
                )
