"""One point of a sweep while it goes on."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from pydantic import JsonValue

from ndld_flow.base.errors import NdldFlowError
from ndld_flow.recipe.gates import Gate, GateError
from ndld_flow.recipe.recipe import RecipeStep
from ndld_flow.records.metric import Metric
from ndld_flow.records.run_record import GateResult
from ndld_flow.records.step_record import RunStep
from ndld_flow.runner.plan import Unit, arrange_steps
from ndld_flow.runner.state import RunState
from ndld_flow.runner.unit_work import skip_step
from ndld_flow.sweep_search.space import Assignment


def decide_gate(gate: Gate, metrics: Mapping[str, Metric]) -> GateResult | None:
    """What a gate says; None where it cannot be decided: a metric is not there, or something is divided by zero."""
    try:
        return gate.decide(metrics)
    except GateError:
        return None


@dataclass
class PointRun:
    """One point of a sweep while it goes on."""

    number: int
    """From 1, in the order in which points are tried."""
    point: Assignment
    changes: Mapping[str, JsonValue]
    """Recipe key -> value."""
    run: RunState
    waiting: deque[Unit] = field(default_factory=deque)
    """Steps that are not done yet."""
    failure: NdldFlowError | None = None
    failed_step: str = ""
    refused: bool = False
    """Something said no before anything was measured."""
    sitting: int | None = None
    told: bool = False
    """Whether a listener knows that it is finished."""

    @classmethod
    def begin(cls, number: int, point: Assignment, changes: Mapping[str, JsonValue], run: RunState) -> PointRun:
        """A point whose steps all wait."""
        return cls(number, point, changes, run, deque(arrange_steps(run.recipe)))

    @property
    def finished(self) -> bool:
        return not self.waiting

    @property
    def is_begun(self) -> bool:
        """Whether it is a recipe of its own: its settings do not contradict each other, and nothing is lacking here."""
        return self.failure is None or bool(self.failed_step)

    @property
    def is_whole(self) -> bool:
        """Whether every step was done."""
        return not self.waiting and bool(self.run.done) and all(step.record is not None for step in self.run.steps)

    @property
    def metrics(self) -> dict[str, Metric]:
        """`STEP.METRIC` -> value, of all steps that are done."""
        return {
            f"{step.name}.{name}": metric
            for step in self.run.steps
            if step.record is not None
            for name, metric in step.record.metrics.items()
        }

    def add(self, steps: Sequence[RunStep]) -> None:
        """Note steps of the first waiting unit that are done; one that says no may stop the rest."""
        self.run.done |= {step.name: step for step in steps}
        unit = self.waiting[0]
        if all(step.name in self.run.done for step in unit):
            self.waiting.popleft()
            said_no = [step.name for step in unit if self.run.done[step.name].outcome == "failed"]
            if said_no and unit[0].step.stops_run:
                self._skip(f"{said_no[0]} failed")

    def fail(self, step: RecipeStep, error: NdldFlowError) -> None:
        """An error ended the point."""
        self.failure, self.failed_step = error, step.name
        self._skip(f"{step.name} failed")

    def refuse_by(self, constraints: Sequence[Gate]) -> bool:
        """Whether a step or a constraint that can be decided by now said no: then measuring it would tell nothing."""
        said_no = next((step.name for step in self.run.steps if step.outcome == "failed"), "")
        decided = (decide_gate(gate, self.metrics) for gate in constraints)
        broken = next((result.gate for result in decided if result is not None and not result.passed), "")
        if said_no or broken:
            self.refused = True
            self._skip(f"{said_no} failed" if said_no else f"{broken} failed")
        return self.refused

    def _skip(self, reason: str) -> None:
        for unit in self.waiting:
            self.run.done |= {step.name: skip_step(step, reason) for step in unit if step.name not in self.run.done}
        self.waiting.clear()
