"""The records of a run and of its steps, with all parts of each step's key, and the outcomes of runs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Literal

from pydantic import JsonValue

from ndld_flow.records.document import VERSIONS, Document, FolderName, InnerPath, Record
from ndld_flow.records.measurement import Machine, Metric
from ndld_flow.records.model_diff import GraphChange

RunOutcome = Literal["passed", "failed", "inconclusive", "error", "bug", "killed", "interrupted", "running"]


@dataclass(frozen=True)
class Ending:
    """Headline, exit code and colour of an outcome."""

    headline: str
    """First word of the terminal's verdict and of the report."""
    exit_code: int
    tone: Literal["passed", "failed", "inconclusive"]
    """Colour of the headline."""
    sign: str
    """Sign in the page's title."""
    complete: bool = False
    """True if all necessary steps have finished: only such a run can be compared."""


ENDINGS: Mapping[RunOutcome, Ending] = {
    "passed": Ending("PASSED", 0, "passed", "✓", complete=True),
    "failed": Ending("FAILED", 1, "failed", "✕", complete=True),  # a check, a gate or the verdict of a step failed
    "inconclusive": Ending("INCONCLUSIVE", 4, "inconclusive", "?", complete=True),
    "error": Ending("ERROR", 2, "failed", "✕"),  # a step, or a library that it needs, cannot do what the recipe asks
    "bug": Ending("BUG", 3, "failed", "✕"),
    "killed": Ending("KILLED", 5, "failed", "✕"),  # a worker ended by a signal, or by a lack of memory
    "interrupted": Ending("INTERRUPTED", 130, "failed", "✕"),
    "running": Ending("RUNNING", 0, "inconclusive", "…"),  # or its process was killed before it could record its end
}


def is_complete(outcome: RunOutcome) -> bool:
    """Return whether a run has finished, with any verdict."""
    return ENDINGS[outcome].complete


def judge(*, failed: bool, undecided: bool = False) -> RunOutcome:
    """Return the outcome of a finished run: a failure takes precedence over an undecided check."""
    if failed:
        return "failed"
    return "inconclusive" if undecided else "passed"


def outcome_of_code(exit_code: int) -> RunOutcome:
    """Return the outcome of a run that an error with this exit code ended."""
    return next(
        (outcome for outcome, ending in ENDINGS.items() if ending.exit_code == exit_code and not ending.complete), "bug"
    )


class ArtifactFile(Record):
    """One file of an artifact."""

    path: InnerPath
    """Relative to the artifact's folder, with forward slashes."""
    digest: str
    """blake3, hex."""
    size_bytes: int


class ArtifactRecord(Record):
    """An immutable, content-addressed set of files."""

    kind: str
    digest: FolderName
    """blake3 over the kind-independent list of (path, digest, size) of its files."""
    files: tuple[ArtifactFile, ...]

    @property
    def size_bytes(self) -> int:
        return sum(file.size_bytes for file in self.files)


class KeyParts(Record):
    """The parts of a step's key, which is their digest. Steps with equal keys have the same result."""

    step: str
    """The step type, as written in the recipe."""
    version: str
    settings: dict[str, JsonValue]
    """Every setting, defaults included."""
    inputs: dict[str, JsonValue]
    """The recipe's `inputs:` that the step reads."""
    reads: dict[str, str]
    """Key of an input (`from`, `reference`, a data file) -> digest of its contents."""
    libraries: dict[str, str]
    """Library -> version, for the libraries that the step names."""
    machine: str
    """Fingerprint; empty if the machine does not matter."""
    together: tuple[str, ...] = ()
    """Keys of the steps with which it is measured in turns, each computed alone, in their order, with an empty string
    at its own position: a measurement belongs to its session."""


class StepRecord(Document):
    """The record of a computed artifact."""

    document: Literal["step"] = "step"
    format_version: int = VERSIONS["step"]
    key: FolderName
    parts: KeyParts
    parents: dict[str, str]
    """Key of an input -> the name of its step (or `source`)."""
    artifact: ArtifactRecord
    passed: bool
    """False if a check of the step failed, or could not be decided: a lint that found errors, outputs that
    disagree."""
    inconclusive: bool = False
    """With `passed` False: nothing failed, but a check could not be decided."""
    summary: str
    """One line of text."""
    metrics: dict[str, Metric]
    change: GraphChange | None = None
    log: str = ""
    started_at: datetime
    """Start of the step; for a measuring step, the time when its device was locked."""
    ended_at: datetime | None = None
    wall_s: float
    """Seconds that it took; of steps that ran in turns, an equal share for each."""
    beside: tuple[str, ...] = ()
    """Descriptions of other ndld-flow steps that ran on this machine during the measurement."""


Outcome = Literal["done", "reused", "failed", "inconclusive", "interrupted", "skipped"]
"""`failed`: its check failed, or, without a record, an error ended it; `interrupted`: it was running when the run
ended, or when the run was last recorded."""


class RunStep(Record):
    """A step in one run."""

    name: str
    step: str
    outcome: Outcome
    reason: str
    """Reason why it ran or was reused, from a closed set; for `skipped`, the step that stopped the run."""
    detail: str = ""
    wall_s: float
    """Seconds that this run spent on it, not the original duration of a reused step."""
    record: StepRecord | None = None
    """None if it was skipped, or did not finish."""


def metrics_of(steps: Iterable[RunStep]) -> dict[str, Metric]:
    """Return `STEP.METRIC` -> value, of all steps that have finished."""
    return {
        f"{step.name}.{name}": metric
        for step in steps
        if step.record is not None
        for name, metric in step.record.metrics.items()
    }


class GateResult(Record):
    """The result of a gate."""

    gate: str
    """As written in the recipe."""
    passed: bool
    left: float
    right: float
    unit: str = ""


class SourceRecord(Record):
    """The recipe's model."""

    location: str
    """As written in the recipe."""
    path: str
    """The path from which it was read."""
    artifact: ArtifactRecord


class RunFailure(Record):
    """The error that ended a run before all of its steps had finished."""

    steps: tuple[str, ...] = ()
    """The steps that failed, or were running; empty if it happened between two steps."""
    message: str
    """One short paragraph, as printed in the terminal."""
    exit_code: int
    traceback: str = ""
    """Traceback of a bug."""
    log_lines: dict[str, tuple[str, ...]] = {}
    """Step -> the last lines of its log."""


class RunRecord(Document):
    """One run of one recipe, with everything needed to repeat it."""

    document: Literal["run"] = "run"
    format_version: int = VERSIONS["run"]
    id: str
    """`<utc time>-<short id>`, the name of the run's folder."""
    recipe_name: str
    recipe: dict[str, JsonValue]
    """Resolved and self-contained."""
    identity: str
    """Digest of the resolved recipe and of the steps' keys: equal runs have equal ones."""
    command: tuple[str, ...]
    directory: str
    """The current directory of the command."""
    started_at: datetime
    wall_s: float
    source: SourceRecord
    models: dict[str, SourceRecord] = {}
    """More models, by their names in the recipe."""
    steps: tuple[RunStep, ...]
    gates: tuple[GateResult, ...]
    machine: Machine
    versions: dict[str, str]
    """Libraries by name, ndld_flow's own among them."""
    passed: bool
    """False if a step or a gate failed, or if the run did not finish."""
    outcome: RunOutcome
    """Its outcome. `running` without a recorded end: it is still running, or its process was killed."""
    failure: RunFailure | None = None
    """The failure of a run that did not finish."""
