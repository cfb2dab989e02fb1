"""Trials of smaller models: each is cut, written with a recipe of its own, and run in a process of its own.

A trial keeps nothing but its outcome: no report, and no folder of its run.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from ndld_flow.base.errors import RecipeError
from ndld_flow.execution.events import Event, StepStarted
from ndld_flow.execution.executor import InProcess
from ndld_flow.execution.listener import ignore
from ndld_flow.execution.request import Request
from ndld_flow.inputs import InputSpec
from ndld_flow.precision_search.minimal_set import BudgetSpentError, Kept
from ndld_flow.processes.fork_server import LEFT, CallEnd, ForkServer
from ndld_flow.recipe.recipe import Recipe
from ndld_flow.records.document import Record
from ndld_flow.records.outcomes import outcome_of_code
from ndld_flow.reduce.failure import Failure, failure_of_end, failure_of_error, read_failures
from ndld_flow.reduce.part import MODEL, CaptureError, Cut, CutError, CutPart, Whole
from ndld_flow.runner.check_inputs import refuse_wrong_inputs
from ndld_flow.runner.plan import refuse_impossible_run
from ndld_flow.runner.run import run_steps
from ndld_flow.runner.run_record import decide_gates, describe_failure
from ndld_flow.sweep.run_request import open_single, working_on

RECIPE = "recipe.yaml"
_JOB, _OUTCOME, _DOING = "job.json", "outcome.json", "doing.txt"
_CUTTING = "cutting the part"
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
    job = TrialJob.model_validate_json((folder / _JOB).read_bytes())
    outcome = _try(job, folder)
    unfinished = folder / f"{_OUTCOME}.new"
    unfinished.write_text(outcome.to_json(), encoding="utf-8")
    unfinished.rename(folder / _OUTCOME)


def _try(job: TrialJob, folder: Path) -> TrialOutcome:
    from ndld_flow.reduce.cutting import cut_part

    (folder / _DOING).write_text(_CUTTING)
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

        def note_steps(event: Event) -> None:
            if isinstance(event, StepStarted):
                (folder / _DOING).write_text(" and ".join(step.name for step in run.at_work))

        run.listener = note_steps
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


Original = Collection[str] | None
"""Weights and inputs that keep their values; None: all."""

_FIRST_TIME_S, _SHORTEST_TIME_S, _TIMES_AS_LONG = 1800.0, 60.0, 10.0


@dataclass(frozen=True)
class Stage:
    """What is reduced: a model, the samples and the recipe, which become smaller in turn."""

    name: str
    """In the journal; equal for equal models, samples and recipes."""
    whole: Whole
    recipe: dict[str, Any]
    """Without model and inputs."""
    chosen: tuple[int, ...] | None = None
    """Samples, or steps of the sequence; None: all."""
    feedback: bool = False
    """The samples are steps of a sequence whose states the model itself passes on."""
    sequence_steps: tuple[str, ...] = ()
    """Steps with a setting for the length of sequences."""


@dataclass
class Trials:
    """Runs the recipe on parts of the model, and remembers the outcome of each part in a file."""

    server: ForkServer
    scratch: Path
    journal: Path
    """Lines of JSON; those of an interrupted reduction are not tried again."""
    trust: bool
    strict: bool
    limit: int
    on_trial: Callable[[int, int, bool], None]
    """Called with the number of the trial, that of the nodes, and whether the failure persists."""
    reference: Failure | None = None
    """The failure that must persist."""
    capture: bool = True
    """False once running a whole model has failed: values inside of models are generated."""
    repeats: int = 1
    """Number of runs, all of which must pass before a part counts as one that passes."""
    count: int = 0
    """Number of trials, without those of an interrupted reduction."""
    _known: dict[str, bool] = field(default_factory=dict)
    _longest_s: float = 0.0

    def __post_init__(self) -> None:
        if self.journal.exists():
            for line in self.journal.read_text(encoding="utf-8").splitlines():
                with contextlib.suppress(ValueError):  # a kill may have cut the last line off
                    known = json.loads(line)
                    self._known[known["part"]] = known["fails"]

    @property
    def is_spent(self) -> bool:
        """Return whether the limit of trials is reached."""
        return self.count >= self.limit

    def fails(self, stage: Stage, kept: Kept, original: Original) -> bool:
        """Return whether the recipe fails in the same way on these nodes, with the original values of these tensors.

        Raises BudgetSpentError if that is unknown, and the limit of trials is reached.
        """
        part = self._name(stage, kept, original)
        if part not in self._known:
            self._known[part] = any(self._fails_once(stage, kept, original) for _ in range(self.repeats))
            with self.journal.open("a", encoding="utf-8") as lines:
                lines.write(json.dumps({"part": part, "fails": self._known[part]}) + "\n")
            self.on_trial(self.count, len(kept), self._known[part])
        return self._known[part]

    def has_failed(self, stage: Stage, kept: Kept, original: Original) -> bool:
        """Return whether a trial of a part, which counts for itself, is known to have failed."""
        return self.repeats == 1 and self._known.get(self._name(stage, kept, original), False)

    def _name(self, stage: Stage, kept: Kept, original: Original) -> str:
        named = None if original is None else sorted(original)
        return json.dumps([stage.name, stage.recipe, stage.chosen, stage.feedback, sorted(kept), named, self.repeats])

    def _fails_once(self, stage: Stage, kept: Kept, original: Original) -> bool:
        if self.is_spent:
            raise BudgetSpentError
        outcome = self.run(stage, kept, original)
        fails = self.is_same(outcome)
        if outcome.part is not None and not outcome.part.replaceable and self.repeats == 1:
            self._known[self._name(stage, kept, () if original is None else None)] = fails
        return fails

    def is_same(self, outcome: TrialOutcome) -> bool:
        """Return whether a trial failed as the first one did."""
        return any(map(self.is_same_failure, outcome.failures))

    def is_same_failure(self, failure: Failure) -> bool:
        """Return whether a failure is the one that must persist."""
        assert self.reference is not None
        return self.reference.same_as(failure, strict=self.strict)

    def run(self, stage: Stage, kept: Kept, original: Original = None) -> TrialOutcome:
        """Try a part once, and return the outcome."""
        self.count += 1
        folder = self.scratch / f"trial-{self.count}"
        try:
            outcome = self._call(self._job(stage, kept, original, f"{folder.absolute()}/"), folder)
        finally:
            shutil.rmtree(folder, ignore_errors=True)
        if outcome.no_capture and self.capture:
            # Running the whole model may be the failure to reduce: its values cannot be captured then.
            self.capture = False
            return self.run(stage, kept, original)
        return outcome

    def write(self, folder: Path, stage: Stage, kept: Kept, original: Original) -> TrialOutcome:
        """Write a part and its recipe, with paths relative to the folder."""
        return self._call(self._job(stage, kept, original, "").model_copy(update={"run": False}), folder)

    def _job(self, stage: Stage, kept: Kept, original: Original, prefix: str) -> TrialJob:
        named = None if original is None else tuple(sorted(original))
        cut = Cut(kept=tuple(sorted(kept)), original=named, chosen=stage.chosen, feedback=stage.feedback)
        return TrialJob(
            whole=stage.whole.model_copy(update={"capture": self.capture}),
            cut=cut,
            recipe=stage.recipe,
            trust=self.trust,
            prefix=prefix,
            steps=stage.sequence_steps if stage.feedback else (),
        )

    def _call(self, job: TrialJob, folder: Path) -> TrialOutcome:
        folder.mkdir(parents=True)
        (folder / _JOB).write_text(job.to_json(), encoding="utf-8")
        limit = max(_SHORTEST_TIME_S, _TIMES_AS_LONG * self._longest_s) if self._longest_s else _FIRST_TIME_S
        started = time.perf_counter()
        ended = self.server.call("ndld_flow.reduce.trials:run_trial", folder, limit)
        if not self._longest_s:
            self._longest_s = time.perf_counter() - started
        (folder / _JOB).unlink()
        if (folder / _OUTCOME).exists():
            outcome = TrialOutcome.model_validate_json((folder / _OUTCOME).read_bytes())
        else:
            outcome = _describe_end(ended, folder, job)
        for name in (_OUTCOME, _DOING, *LEFT):
            (folder / name).unlink(missing_ok=True)
        return outcome


def _describe_end(ended: CallEnd, folder: Path, job: TrialJob) -> TrialOutcome:
    """Return the outcome of a trial whose process ended without one."""
    try:
        doing = (folder / _DOING).read_text(encoding="utf-8")  # the names of steps, once they run
    except OSError:
        doing = _CUTTING
    if ended.timed_out:
        return TrialOutcome(error=f"it took too long: {doing}")
    how = ended.signal_name or f"code {ended.code}"
    if doing == _CUTTING:
        return TrialOutcome(error=f"the process that cuts the model ended with {how}", no_capture=job.whole.capture)
    return TrialOutcome(failures=(failure_of_end(doing, how, ended.frame, ended.output),))
