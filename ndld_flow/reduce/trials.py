"""Trials of smaller models: each is cut, written with a recipe of its own, and run in a process of its own."""

from __future__ import annotations

import contextlib
import json
import shutil
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ndld_flow.precision_search.minimal_set import BudgetSpentError, Kept
from ndld_flow.processes.fork_server import LEFT, CallEnd, ForkServer
from ndld_flow.reduce.failure import Failure, failure_of_end
from ndld_flow.reduce.part import Cut, Whole
from ndld_flow.reduce.trial import CUTTING, DOING, JOB, OUTCOME, TrialJob, TrialOutcome, read_doing

_RUN_TRIAL = "ndld_flow.reduce.trial:run_trial"
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

    def fails(self, stage: Stage, kept: Kept, original: Iterable[str] | None = None) -> bool:
        """Return whether the recipe fails in the same way on these nodes, with the original values of these tensors.

        Raises BudgetSpentError if that is unknown, and the limit of trials is reached.
        """
        named = tuple(sorted(original)) if original is not None else None
        part = self._name(stage, kept, named)
        if part not in self._known:
            self._known[part] = any(self._fails_once(stage, kept, named) for _ in range(self.repeats))
            with self.journal.open("a", encoding="utf-8") as lines:
                lines.write(json.dumps({"part": part, "fails": self._known[part]}) + "\n")
            self.on_trial(self.count, len(kept), self._known[part])
        return self._known[part]

    def has_failed(self, stage: Stage, kept: Kept, original: Iterable[str] | None) -> bool:
        """Return whether a trial of a part, which counts for itself, is known to have failed."""
        named = tuple(sorted(original)) if original is not None else None
        return self.repeats == 1 and self._known.get(self._name(stage, kept, named), False)

    def _name(self, stage: Stage, kept: Kept, named: tuple[str, ...] | None) -> str:
        return json.dumps([stage.name, stage.recipe, stage.chosen, stage.feedback, sorted(kept), named, self.repeats])

    def _fails_once(self, stage: Stage, kept: Kept, named: tuple[str, ...] | None) -> bool:
        if self.is_spent:
            raise BudgetSpentError
        outcome = self.run(stage, kept, named)
        fails = self.is_same(outcome)
        if outcome.part is not None and not outcome.part.replaceable and self.repeats == 1:
            self._known[self._name(stage, kept, () if named is None else None)] = fails
        return fails

    def is_same(self, outcome: TrialOutcome) -> bool:
        """Return whether a trial failed as the first one did."""
        return any(map(self.is_same_failure, outcome.failures))

    def is_same_failure(self, failure: Failure) -> bool:
        """Return whether a failure is the one that must persist."""
        assert self.reference is not None
        return self.reference.same_as(failure, strict=self.strict)

    def run(self, stage: Stage, kept: Kept, original: tuple[str, ...] | None = None) -> TrialOutcome:
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

    def write(self, folder: Path, stage: Stage, kept: Kept, original: Iterable[str] | None) -> TrialOutcome:
        """Write a part and its recipe, with paths relative to the folder."""
        named = tuple(sorted(original)) if original is not None else None
        return self._call(self._job(stage, kept, named, "").model_copy(update={"run": False}), folder)

    def _job(self, stage: Stage, kept: Kept, original: tuple[str, ...] | None, prefix: str) -> TrialJob:
        cut = Cut(kept=tuple(sorted(kept)), original=original, chosen=stage.chosen, feedback=stage.feedback)
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
        (folder / JOB).write_text(job.to_json(), encoding="utf-8")
        limit = max(_SHORTEST_TIME_S, _TIMES_AS_LONG * self._longest_s) if self._longest_s else _FIRST_TIME_S
        started = time.perf_counter()
        ended = self.server.call(_RUN_TRIAL, folder, limit)
        if not self._longest_s:
            self._longest_s = time.perf_counter() - started
        (folder / JOB).unlink()
        if (folder / OUTCOME).exists():
            outcome = TrialOutcome.model_validate_json((folder / OUTCOME).read_bytes())
        else:
            outcome = _describe_end(ended, folder, job)
        for name in (OUTCOME, DOING, *LEFT):
            (folder / name).unlink(missing_ok=True)
        return outcome


def _describe_end(ended: CallEnd, folder: Path, job: TrialJob) -> TrialOutcome:
    """Return the outcome of a trial whose process ended without one."""
    doing = read_doing(folder)
    if ended.timed_out:
        return TrialOutcome(error=f"it took too long: {doing}")
    how = ended.signal_name or f"code {ended.code}"
    if doing == CUTTING:
        return TrialOutcome(error=f"the process that cuts the model ended with {how}", no_capture=job.whole.capture)
    return TrialOutcome(failures=(failure_of_end(doing, how, ended.frame, ended.output),))
