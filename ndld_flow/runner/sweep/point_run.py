"""The state of one point of a sweep while it runs."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from pydantic import JsonValue

from ndld_flow.base.errors import NdldFlowError
from ndld_flow.recipe.gates import Gate, GateError
from ndld_flow.recipe.recipe import RecipeStep
from ndld_flow.records.measurement import Metric
from ndld_flow.records.run_record import GateResult, RunStep, metrics_of
from ndld_flow.runner.open_run import RunState
from ndld_flow.runner.plan import Unit, arrange_steps
from ndld_flow.runner.unit_work import skip_step
from ndld_flow.sweep_search.space import Assignment


def decide_gate(gate: Gate, metrics: Mapping[str, Metric]) -> GateResult | None:
    """Decide a gate; None where a metric is missing, or a divisor is zero."""
    try:
        return gate.decide(metrics)
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
    """Whether its end was reported to the listener."""

    @classmethod
    def begin(cls, number: int, point: Assignment, changes: Mapping[str, JsonValue], run: RunState) -> PointRun:
        """Create a point whose steps are all waiting."""
        return cls(number, point, changes, run, deque(arrange_steps(run.recipe)))

    @property
    def finished(self) -> bool:
        return not self.waiting

    @property
    def is_begun(self) -> bool:
        """True if it is a valid recipe: its settings are consistent, and this machine can run it."""
        return self.failure is None or bool(self.failed_step)

    @property
    def is_whole(self) -> bool:
        """True if every step has finished."""
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
        decided = (decide_gate(gate, self.metrics) for gate in constraints)
        broken = next((result.gate for result in decided if result is not None and not result.passed), "")
        if failed_step or broken:
            self.refused = True
            self._skip(f"{failed_step} failed" if failed_step else f"{broken} failed")
        return self.refused

    def _skip(self, reason: str) -> None:
        for unit in self.waiting:
            self.run.done |= {step.name: skip_step(step, reason) for step in unit if step.name not in self.run.done}
        self.waiting.clear()
