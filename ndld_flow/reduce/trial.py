"""A trial of a part: cut it out, write a recipe for it, run this, and write its failures. Runs in a forked process.

Nothing but the outcome is kept: no report, and no folder of the run.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import yaml

from ndld_flow.base.errors import RecipeError
from ndld_flow.inputs import InputSpec
from ndld_flow.recipe.recipe import Recipe
from ndld_flow.records.document import Record
from ndld_flow.records.outcomes import outcome_of_code
from ndld_flow.reduce.failure import Failure, failure_of_error, read_failures
from ndld_flow.reduce.part import MODEL, CaptureError, Cut, CutError, CutPart, Whole
from ndld_flow.runner.check_inputs import refuse_wrong_inputs
from ndld_flow.runner.events import Event, StepStarted
from ndld_flow.runner.executors.executor import InProcess
from ndld_flow.runner.listener import ignore
from ndld_flow.runner.open_run import open_single, working_on
from ndld_flow.runner.plan import refuse_impossible_run
from ndld_flow.runner.request import Request
from ndld_flow.runner.run import run_steps
from ndld_flow.runner.run_record import decide_gates, describe_failure
from ndld_flow.runner.run_state import RunState

RECIPE = "recipe.yaml"
JOB, OUTCOME, DOING = "job.json", "outcome.json", "doing.txt"
CUTTING = "cutting the part"
_OF_ENGINES = ("min", "opt", "max")


class TrialJob(Record):
    """A trial."""

    whole: Whole
    cut: Cut
    recipe: dict[str, Any]
    """The recipe without model and inputs."""
    trust: bool
    run: bool = True
    """False: only write the part."""
    prefix: str
    """Prefix of the paths in the part's recipe, which start at the current directory."""
    steps: tuple[str, ...] = ()
    """Steps that take the length of sequences as `steps`."""


class TrialOutcome(Record):
    """The outcome of a trial."""

    part: CutPart | None = None
    error: str = ""
    """The reason why the nodes cannot be a model, or why the recipe refuses it."""
    no_capture: bool = False
    """True if running the whole model failed, so that no values inside it are known."""
    failures: tuple[Failure, ...] = ()


def run_trial(folder: Path) -> None:
    """Carry out the job in a folder, and write the outcome."""
    job = TrialJob.model_validate_json((folder / JOB).read_bytes())
    outcome = _try(job, folder)
    unfinished = folder / f"{OUTCOME}.new"
    unfinished.write_text(outcome.to_json(), encoding="utf-8")
    unfinished.rename(folder / OUTCOME)


def _try(job: TrialJob, folder: Path) -> TrialOutcome:
    from ndld_flow.reduce.cutting import cut_part

    (folder / DOING).write_text(CUTTING)
    try:
        part = cut_part(job.whole, job.cut, folder)
    except CutError as error:
        return TrialOutcome(error=str(error), no_capture=isinstance(error, CaptureError))
    write_recipe(folder, job, part)
    if not job.run:
        return TrialOutcome(part=part)
    try:
        failures = _run(folder, job.trust, part.names)
    except RecipeError as error:
        return TrialOutcome(part=part, error=str(error))
    return TrialOutcome(part=part, failures=tuple(failures))


def write_recipe(folder: Path, job: TrialJob, part: CutPart) -> None:
    """Write the recipe of a part."""
    inputs = {
        name: _describe_input(
            job.whole.inputs.get(name, InputSpec()), name, [job.prefix + file for file in files], part
        )
        for name, files in part.inputs.items()
    }
    steps = {
        name: {**settings, "steps": len(next(iter(part.inputs.values())))}
        if part.states and name in job.steps
        else settings
        for name, settings in job.recipe["steps"].items()
    }
    recipe = {"model": job.prefix + MODEL, "inputs": inputs, **job.recipe, "steps": steps}
    text = yaml.safe_dump(recipe, sort_keys=False, allow_unicode=True, width=120)
    (folder / RECIPE).write_text(text, encoding="utf-8")


def _describe_input(given: InputSpec, name: str, files: Sequence[str], part: CutPart) -> dict[str, Any]:
    """Return the entry of an input in `inputs:`; ranges of engines stay those of the recipe."""
    if name in part.states:
        applied = {"apply": given.apply, "axis": given.axis} if given.apply else {}
        shape = {"shape": list(given.shape)} if given.shape is not None else {}
        return {"from": part.states[name], **applied, **shape, "data": files[0]}
    ranges = {key: list(value) for key in _OF_ENGINES if (value := getattr(given, key)) is not None}
    shape = {"shape": list(part.shapes[name])} if name in part.shapes and not ranges else {}
    return {**shape, **ranges, "data": files[0] if len(files) == 1 else list(files)}


def _run(folder: Path, trust: bool, names: Sequence[str]) -> Iterator[Failure]:
    """Run the recipe in a folder, and yield its failures. Raises RecipeError if the recipe is wrong for the part."""
    request = Request(folder / RECIPE, outputs=folder / "outputs", trust=trust)
    known = frozenset(names)
    with working_on(request, "run") as recipe:
        assert isinstance(recipe, Recipe)
        run = open_single(recipe, request, ignore)
        run.keeps_folder = False
        run.listener = _note_steps(run, folder)
        with run.held:
            try:
                refuse_impossible_run(run.recipe, run.planner, run.digests, run.paths)
                refuse_wrong_inputs(run.recipe, {name: model.artifact.path for name, model in run.models.items()})
                run_steps(run, InProcess)
                gates = decide_gates(run)
                yield from read_failures(run.steps, gates, run.paths, known)
            except Exception as error:
                failure = describe_failure(run, error)
                where = " and ".join(failure.steps)
                yield failure_of_error(outcome_of_code(failure.exit_code), where, error, known)


def _note_steps(run: RunState, folder: Path) -> Any:  # noqa: ANN401 - a listener
    def listen(event: Event) -> None:
        if isinstance(event, StepStarted):
            (folder / DOING).write_text(" and ".join(step.name for step in run.at_work))

    return listen


def read_doing(folder: Path) -> str:
    """Return what a trial was doing when its process ended: cutting, or the names of steps."""
    with contextlib.suppress(OSError):
        return (folder / DOING).read_text(encoding="utf-8")
    return CUTTING
