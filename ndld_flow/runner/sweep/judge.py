"""What a finished point came to: its objectives, its constraints, and whether anything said no."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from ndld_flow.recipe.gates import Gate, GateError
from ndld_flow.recipe.points import Objective
from ndld_flow.records.metric import Metric
from ndld_flow.records.run_record import GateResult
from ndld_flow.records.sweep import PointOutcome
from ndld_flow.runner.sweep.point_run import PointRun
from ndld_flow.sweeping.search import Trial


@dataclass(frozen=True)
class Goals:
    """What a sweep looks for."""

    objectives: tuple[Objective, ...] = ()
    constraints: tuple[Gate, ...] = ()


@dataclass(frozen=True)
class Judgement:
    """What a point came to."""

    outcome: PointOutcome
    reason: str
    objectives: tuple[float | None, ...]
    """None where a metric was not reached."""
    constraints: tuple[GateResult, ...]
    """Those that could be decided."""
    violation: float
    """0: all constraints hold."""
    missing: str = ""
    """What the objectives need and no step of a finished point told."""


def judge_point(point: PointRun, goals: Goals) -> Judgement:
    """What a finished point came to."""
    metrics = point.metrics
    values, missing = _evaluate(goals.objectives, metrics)
    decided = [gate for gate in goals.constraints if _is_known(gate, metrics)]
    reason = "; ".join(_objections(point, goals, metrics))
    outcome: PointOutcome = "refused" if reason else "passed"
    if point.failure is not None:
        outcome, reason = "failed", _say_failure(point)
    elif missing and not reason:
        outcome, reason = "failed", missing
    return Judgement(
        outcome=outcome,
        reason=reason,
        objectives=values,
        constraints=tuple(gate.decide(metrics) for gate in decided),
        violation=max((gate.violation(metrics) for gate in decided), default=0.0) or float(bool(reason)),
        missing=missing if point.failure is None and not point.refused else "",
    )


def describe_trial(point: PointRun, judgement: Judgement) -> Trial:
    """A point as its search is told of it."""
    known = tuple(value for value in judgement.objectives if value is not None)
    reached = judgement.outcome != "failed" and len(known) == len(judgement.objectives)
    return Trial(point.point, known if reached else None, judgement.violation)


def _evaluate(objectives: Sequence[Objective], metrics: Mapping[str, Metric]) -> tuple[tuple[float | None, ...], str]:
    values: list[float | None] = []
    missing = ""
    for objective in objectives:
        try:
            values.append(objective.expression.evaluate(metrics).value)
        except GateError as error:
            values.append(None)
            missing = missing or f"{objective.text}: {error}"
    return tuple(values), missing


def _objections(point: PointRun, goals: Goals, metrics: Mapping[str, Metric]) -> Iterator[str]:
    """Sentences about all that said no: steps, the recipe's gates, the sweep's constraints."""
    for step in point.run.steps:
        if step.record is not None and not step.record.passed:
            yield f"{step.name} said no: {step.record.summary}"
    for gate in (*goals.constraints, *point.run.recipe.gates):
        if _is_known(gate, metrics):
            result = gate.decide(metrics)
            if not result.passed:
                yield f"{gate.text} does not hold: {_side(result.left, result)} against {_side(result.right, result)}"


def _say_failure(point: PointRun) -> str:
    """The error without the names by which points' steps are told apart: the point is told beside it."""
    text = re.sub(r"^step (\w+#\d+ and )+\w+#\d+: (?=step )", "", str(point.failure))
    return re.sub(r"\bstep (\w+)#\d+", r"step \1", text)


def _side(value: float, result: GateResult) -> str:
    return f"{value:.6g} {result.unit}".strip()


def _is_known(gate: Gate, metrics: Mapping[str, Metric]) -> bool:
    return all(name in metrics for name in gate.names)
