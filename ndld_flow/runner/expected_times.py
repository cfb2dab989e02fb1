"""The expected durations of a run's steps, from comparable work of earlier runs of the recipe on this machine."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from ndld_flow.base.errors import RequestError
from ndld_flow.execution.keys import describe_settings
from ndld_flow.machine.description import describe_machine
from ndld_flow.machine.host import fingerprint_machine
from ndld_flow.recipe.recipe import SOURCE, RecipeStep
from ndld_flow.records.measurement import Machine
from ndld_flow.records.run_folder import RUN_RECORD, read_run_record
from ndld_flow.records.run_record import RunRecord, StepRecord
from ndld_flow.runner.plan import plan_steps
from ndld_flow.runner.run_state import RunState
from ndld_flow.runs.outputs import LATEST

_MOST_RUNS = 5
"""Newest runs that are read."""
_SAME_SIZE = 1.25
"""Largest ratio of the sizes of two inputs on which a step does comparable work."""


@dataclass(frozen=True)
class ExpectedTimes:
    """Expects that a step takes as long as in the newest earlier run in which it did comparable work.

    Work is comparable if type, version and settings of the step are equal, its inputs are of about the same size, as
    far as they exist yet, and the machine is of the same kind. Otherwise the duration is unknown.
    """

    run: RunState

    def of(self, step: RecipeStep) -> float | None:
        """Return the expected seconds of a step; None if they are unknown."""
        settings, inputs = describe_settings(step, self.run.recipe.file.inputs)
        for earlier in self._earlier_runs:
            record = next((each.record for each in earlier.steps if each.name == step.name), None)
            if record is None or (record.parts.step, record.parts.version) != (step.type.name, step.type.version):
                continue
            if not is_this_machine(record.parts.machine):
                continue
            if (record.parts.settings, record.parts.inputs) != (settings, inputs):
                continue
            sources = {SOURCE: earlier.source, **earlier.models}
            sizes = {name: source.artifact.size_bytes for name, source in sources.items()}
            if self._has_similar_inputs(
                step,
                record,
                sizes
                | {step.name: step.record.artifact.size_bytes for step in earlier.steps if step.record is not None},
            ):
                return record.wall_s
        return None

    def remaining(self) -> float | None:
        """Return the expected seconds of all steps that have not finished; None if that of any is unknown.

        Steps whose results are stored take no time.
        """
        total = 0.0
        for step in self.run.recipe.steps:
            if step.name in self.run.done or step.name in self._stored:
                continue
            expected = self.of(step)
            if expected is None:
                return None
            total += expected
        return total

    @cached_property
    def _stored(self) -> frozenset[str]:
        """Return the steps that a plan reuses; planned once, when the first step starts."""
        return frozenset(
            decision.step.name for decision in plan_steps(self.run.planner, self.run.digests) if decision.reused
        )

    @cached_property
    def _earlier_runs(self) -> Sequence[RunRecord]:
        """The newest runs of the recipe on this machine, the newest first."""
        run, here = self.run, hardware_of(describe_machine())
        folders = (path.parent for path in (run.outputs.runs / run.recipe.name).glob(f"*/{RUN_RECORD}"))
        names = sorted((folder.name for folder in folders if folder.name not in (run.id, LATEST)), reverse=True)
        found = []
        for name in names[:_MOST_RUNS]:
            with contextlib.suppress(RequestError):
                found.append(read_run_record(run.outputs.runs / run.recipe.name / name))
        return [earlier for earlier in found if hardware_of(earlier.machine) == here]

    def _has_similar_inputs(self, step: RecipeStep, record: StepRecord, sizes: Mapping[str, int]) -> bool:
        models = {name: model.record.size_bytes for name, model in self.run.models.items()}
        done = self.run.done.items()
        now = models | {name: step.record.artifact.size_bytes for name, step in done if step.record is not None}
        for key, name in step.own_reads.items():
            before, after = sizes.get(record.parents.get(key, "")), now.get(name)
            if before is None or (after is not None and max(before, after) > _SAME_SIZE * min(before, after)):
                return False
        return True


def is_this_machine(machine: str) -> bool:
    """Return whether a result was computed on a machine of this kind; pure transforms do not record the machine."""
    return machine.partition("; ")[0] in ("", fingerprint_machine())


def hardware_of(machine: Machine) -> tuple[str, int | None, tuple[str, ...]]:
    """Return the hardware that decides how long work takes."""
    return machine.cpu, machine.cpu_count, tuple(machine.gpus)
