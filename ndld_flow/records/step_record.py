"""The record of a step, with all parts of its key."""

from __future__ import annotations

from datetime import datetime
from typing import Literal

from pydantic import JsonValue

from ndld_flow.records.base import Document, FolderName, InnerPath, Record
from ndld_flow.records.formats import VERSIONS
from ndld_flow.records.graph_change import GraphChange
from ndld_flow.records.metric import Metric


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
    """The recipe's `inputs:` where the step reads them."""
    reads: dict[str, str]
    """Key of an input (`from`, `reference`, a data file) -> digest of its contents."""
    libraries: dict[str, str]
    """Library -> version, for the libraries that the step names."""
    machine: str
    """Fingerprint; empty where the machine does not matter."""
    together: tuple[str, ...] = ()
    """Keys of the steps that it is measured in turns with, alone and in their order, with an empty text in its own
    place: a measurement belongs to its session."""


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
    """False when a check of the step failed, or could not be decided: a lint that found errors, outputs that
    disagree."""
    inconclusive: bool = False
    """With `passed` False: nothing failed, but a check could not be decided."""
    summary: str
    """One line for people."""
    metrics: dict[str, Metric]
    change: GraphChange | None = None
    log: str = ""
    started_at: datetime
    """Start of the step; of a measuring step: when its device was locked."""
    ended_at: datetime | None = None
    wall_s: float
    """Of steps that ran in turns, an equal share for each."""
    beside: tuple[str, ...] = ()
    """Other ndld-flow steps that ran on this machine during the measurement, in words."""


Outcome = Literal["done", "reused", "failed", "inconclusive", "interrupted", "skipped"]
"""`failed`: its check failed, or, without a record, an error ended it; `interrupted`: it was running when the run
ended, or when the run was last recorded."""


class RunStep(Record):
    """A step in one run."""

    name: str
    step: str
    outcome: Outcome
    reason: str
    """Why it ran or was reused, from a closed set; for `skipped`, the step that stopped the run."""
    detail: str = ""
    wall_s: float
    """Seconds that this run spent on it, not the original duration of a reused step."""
    record: StepRecord | None = None
    """None when it was skipped, or did not finish."""
