"""The run of a recipe that fails: what must stay the same while its model becomes smaller, and the evidence."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ndld_flow.recipe.recipe import Recipe
from ndld_flow.records.run_folder import read_run_record
from ndld_flow.records.run_record import RunRecord
from ndld_flow.reduction.part import NodeFacts
from ndld_flow.runner.events import Event, RunFailed
from ndld_flow.runner.outputs import Outputs
from ndld_flow.runner.reduce.failure import Failure, failure_of_error, read_failures
from ndld_flow.runner.request import Request
from ndld_flow.runner.run import run_recipe


def run_once(recipe: Recipe, request: Request) -> tuple[RunRecord, Exception | None]:
    """Run a recipe, and return its record, and the error that ended it.

    Raises NdldFlowError for a recipe that cannot start, and KeyboardInterrupt.
    """
    ended, raised = list[str](), None

    def listen(event: Event) -> None:
        if isinstance(event, RunFailed):
            ended.append(event.folder)

    try:
        ended.append(run_recipe(recipe, request, listen).folder)
    except Exception as error:
        if not ended:
            raise
        raised = error
    return read_run_record(Path(ended[-1])), raised


@dataclass(frozen=True)
class FailedRun:
    """A run that failed."""

    recipe: Recipe
    record: RunRecord
    failure: Failure
    """Only its place."""
    error: Exception | None

    def read_evidence(self, outputs: Outputs, nodes: Sequence[NodeFacts]) -> Failure | None:
        """Return the failure with the evidence of the run; None for a crash, whose function only a trial records."""
        names = {name for node in nodes for name in (node.name, *node.inputs, *node.outputs)}
        if self.error is not None:
            found = [failure_of_error(self.failure.kind, self.failure.where, self.error, names)]
        else:
            kinds = {step.name: step.type.cls.kinds()[1] for step in self.recipe.steps}
            documents = {
                step.name: outputs.store.object_folder(step.record.artifact.digest) / kinds[step.name].main
                for step in self.record.steps
                if step.record is not None
            }
            found = list(read_failures(self.record.steps, self.record.gates, documents, names))
        same = (each for each in found if each.resembles(self.failure) and each.kind != "killed")
        return next(same, None)
