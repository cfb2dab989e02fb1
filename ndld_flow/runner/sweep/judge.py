"""Judge finished points: their objectives, constraints and gates."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from ndld_flow.base.quantities import apart
from ndld_flow.recipe.gates import Gate, GateError
from ndld_flow.recipe.points import Objective
from ndld_flow.records.measurement import Metric
from ndld_flow.records.run_record import GateResult
from ndld_flow.records.sweep import PointOutcome
from ndld_flow.runner.sweep.point_run import PointRun, decide_gate
from ndld_flow.sweep_search.search import Trial


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
    """None where a metric was not reached."""
    constraints: tuple[GateResult, ...]
    """Those that could be decided."""
    violation: float
    """0: all constraints hold."""
    missing: str = ""
    """A metric that objectives, constraints or gates need and that no step recorded, although all have finished."""


def judge_point(point: PointRun, goals: Goals) -> Judgement:
    """Judge a finished point."""
    metrics = point.metrics
    values = tuple(_evaluate(objective, metrics) for objective in goals.objectives)
    missing = _describe_missing(point, goals, metrics)
    decided = [(gate, result) for gate in goals.constraints if (result := decide_gate(gate, metrics)) is not None]
    reason = "; ".join(_objections(point, goals, metrics))
    outcome: PointOutcome = "passed" if not reason else "inconclusive" if _is_undecided(point, goals) else "refused"
    if point.failure is not None:
        outcome, reason = "failed", describe_failure(point)
    elif missing and not reason:
        outcome, reason = "failed", missing
    return Judgement(
        outcome=outcome,
        reason=reason,
        objectives=values,
        constraints=tuple(result for _, result in decided),
        violation=max((gate.violation(metrics) for gate, _ in decided), default=0.0) or float(bool(reason)),
        missing=missing,
    )


def describe_trial(point: PointRun, judgement: Judgement) -> Trial:
    """Return a point's result for its search."""
    known = tuple(value for value in judgement.objectives if value is not None)
    reached = judgement.outcome != "failed" and len(known) == len(judgement.objectives)
    return Trial(point.point, known if reached else None, judgement.violation)


def _evaluate(objective: Objective, metrics: Mapping[str, Metric]) -> float | None:
    try:
        return objective.expression.evaluate(metrics).value
    except GateError:
        return None


def _describe_missing(point: PointRun, goals: Goals, metrics: Mapping[str, Metric]) -> str:
    """Return what cannot be decided of a point whose steps have all finished; empty when all can."""
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


def _objections(point: PointRun, goals: Goals, metrics: Mapping[str, Metric]) -> Iterator[str]:
    """Yield sentences about failed or undecided steps, gates and constraints."""
    for step in point.run.steps:
        if step.record is not None and not step.record.passed:
            verb = "is inconclusive" if step.record.inconclusive else "failed"
            yield f"{step.name} {verb}: {step.record.summary}"
    for result in _failed_gates(point, goals, metrics):
        yield f"{result.gate} failed: {' against '.join(apart((result.left, result.right), result.unit))}"


def _failed_gates(point: PointRun, goals: Goals, metrics: Mapping[str, Metric]) -> Iterator[GateResult]:
    for gate in (*goals.constraints, *point.run.recipe.gates):
        result = decide_gate(gate, metrics)
        if result is not None and not result.passed:
            yield result


def _is_undecided(point: PointRun, goals: Goals) -> bool:
    """Return whether nothing failed, although not everything passed."""
    records = [step.record for step in point.run.steps if step.record is not None]
    failed = any(not record.passed and not record.inconclusive for record in records)
    return not failed and not any(_failed_gates(point, goals, point.metrics))


def describe_failure(point: PointRun) -> str:
    """Return a point's error with the recipe's names of steps: the point's number is shown separately."""
    assert point.failure is not None
    prefix = f"step {point.failed_step}: " if point.failure.step else ""
    return prefix + re.sub(r"\bstep (\w+)#\d+", r"step \1", point.failure.message)
