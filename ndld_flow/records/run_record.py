"""The records of a run, of its steps and of its exports, with all parts of each step's key."""

from collections.abc import Iterable
from typing import Annotated, Literal

from pydantic import JsonValue, StringConstraints

from ndld_flow.records.document import PLAIN_VERSIONS, Count, Digest, Document, Record, Seconds, StrictRecord, Time
from ndld_flow.records.key_parts import ArtifactRecord, KeyParts
from ndld_flow.records.measurement import Machine, Metric
from ndld_flow.records.model_diff import GraphChange
from ndld_flow.records.outcomes import Outcome, RunOutcome


class StepRecord(Document, StrictRecord, defer_build=False):  # those of runs and their steps contain it
    """The record of a computed artifact: `record.json` in the folder of its step, and in the store."""

    document: Literal["step"] = "step"
    format_version: int = PLAIN_VERSIONS["step"]
    key: Digest
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
    started_at: Time
    """Start of the step; for a measuring step, the time when its device was locked."""
    ended_at: Time
    wall_s: Seconds
    """Seconds that it took; of steps that ran in turns, an equal share for each."""
    concurrent: tuple[str, ...] = ()
    """Descriptions of other ndld-flow steps that ran on this machine during the measurement."""
    shared_device: tuple[str, ...] = ()
    """Reasons why others may have measured on its device at the same time; empty if it held the device alone."""


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
    target: str = ""
    """Name of the target on which it ran, or was to run; `Ray` for a node of a cluster that computed it in this run;
    empty for the machine of the run."""


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
    """With `undecided` it has no meaning, and is 0."""
    unit: str = ""
    undecided: str = ""
    """The reason why it could not be decided, such as a history without measurements; `passed` is then False."""
    note: str = ""
    """The origin of the limit, for a gate against the history."""


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


class Invocation(Record):
    """The part that the records of runs and sweeps share: what was run, where and when."""

    id: str
    """`<utc time>-<short id>`, the name of the folder."""
    recipe_name: str
    recipe: dict[str, JsonValue]
    """Resolved and self-contained, with its `sweep:` if there is one."""
    identity: str
    """Digest that is equal for the same work: of the resolved recipe, and of the keys of a run's steps."""
    command: tuple[str, ...]
    directory: str
    """The current directory of the command."""
    user: str = ""
    """The user who ran it; empty if it was not recorded, as is the host."""
    host: str = ""
    """The name of the computer on which the command ran; steps may have run elsewhere."""
    started_at: Time
    wall_s: float
    machine: Machine
    versions: dict[str, str]
    """Libraries by name, ndld_flow's own among them."""


class RunRecord(Invocation, Document):
    """One run of one recipe, with everything needed to repeat it: `run.json` in its folder."""

    document: Literal["run"] = "run"
    format_version: int = PLAIN_VERSIONS["run"]
    commit: str = ""
    """Git commit of the current directory's working tree, which may have had other changes; empty outside one, or if
    it was not recorded."""
    source: SourceRecord
    models: dict[str, SourceRecord] = {}
    """More models, by their names in the recipe."""
    steps: tuple[RunStep, ...]
    gates: tuple[GateResult, ...]
    passed: bool
    """False if a step or a gate failed, or if the run did not finish."""
    outcome: RunOutcome
    """Its outcome. `running` without a recorded end: it is still running, or its process was killed."""
    failure: RunFailure | None = None
    """The failure of a run that did not finish."""
    doubts: tuple[str, ...] = ()
    """Checks of the recipe that judge a model on the samples that it is calibrated on, each a sentence."""
    verdict: tuple[str, ...] = ()
    """The lines that the terminal showed at its end."""
    results: dict[str, str] = {}
    """Step that made a model or an engine -> its size, and how much faster than the source it was proved to be."""

    @property
    def records(self) -> dict[str, StepRecord]:
        """Return step -> its record, of the steps that have finished, in recipe order."""
        return {step.name: step.record for step in self.steps if step.record is not None}

    def needs(self) -> tuple[set[str], set[str]]:
        """Return the keys of the results that it has, and the digests of these and of its models."""
        records = self.records.values()
        sources = [source.artifact.digest for source in (self.source, *self.models.values())]
        return {record.key for record in records}, {*sources, *(record.artifact.digest for record in records)}


_Runtime = Annotated[str, StringConstraints(pattern=r"\A(\w+|\{backend: \w+(, \w+: \w+)+\})\z")]
"""The value of `runtime:` in a recipe: `openvino`, or `{backend: openvino, inference_precision: default}`."""


class HeldOutCheck(StrictRecord):
    """The check that an optimized model passed on samples which the search had not seen."""

    samples: dict[str, dict[str, Digest]]
    """Input -> its files, relative to the folder of the source, -> their SHA-256; empty if values were generated."""
    shapes: dict[str, tuple[Count, ...]]
    """Input -> the shape that the user gave."""
    conditions: tuple[Annotated[str, StringConstraints(pattern=r"\A[\w.]+ *[<>=]=?[\w.%+*/() -]+\z")], ...]
    """Conditions of `--keep` on metrics: `cosine >= 0.999`; without any, the bounds of `check_accuracy`."""
    runtime: _Runtime
    """That of the model."""
    source_runtime: _Runtime
    """That in which the source was measured."""


class ExportRecord(Document):
    """An exported result: `model.onnx.json` next to `model.onnx`, or next to the folder of a model for Triton."""

    document: Literal["export"] = "export"
    format_version: int = 4
    sha256: dict[str, str]
    """File, by its path from the folder of this record -> its SHA-256: the main file first, then external data."""
    step: str
    """The step that produced it."""
    artifact: str
    """Digest of the artifact in the store."""
    source: str
    """The recipe's model, as written in the recipe."""
    source_digest: str
    run: str
    """`RECIPE/ID` of the run."""
    started_at: Time
    """Start of the run."""
    metrics: dict[str, Metric]
    """`STEP.METRIC` -> value with its unit, of the whole run."""
    gates: tuple[GateResult, ...]
    versions: dict[str, str]
    """Libraries by name, ndld_flow's own among them."""
    check: HeldOutCheck | None = None
    """The check that `compare` repeats; None unless `optimize` wrote it, and for a metric of the user's own."""
