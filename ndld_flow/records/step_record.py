"""What one step did, and everything its key was made of."""

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
    """What a step's key is the digest of. Two equal ones never do the same work twice."""

    step: str
    """Step type, as the recipe says it."""
    version: str
    settings: dict[str, JsonValue]
    """Every setting, defaults included."""
    inputs: dict[str, JsonValue]
    """The recipe's `inputs:` where the step reads them."""
    reads: dict[str, str]
    """What is read (`from`, `reference`, a data file) -> digest of its contents."""
    libraries: dict[str, str]
    """Library -> version, for those the step names."""
    machine: str
    """Fingerprint; empty where the machine does not matter."""
    together: tuple[str, ...] = ()
    """Keys of the steps it is measured in turns with, as they would be alone and in their order, with an empty text in
    its own place: a measurement belongs to its sitting."""


class StepRecord(Document):
    """How one artifact came to be."""

    document: Literal["step"] = "step"
    format_version: int = VERSIONS["step"]
    key: FolderName
    parts: KeyParts
    parents: dict[str, str]
    """What is read -> the name of the step (or `source`) it came from."""
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
    """When the work began; of a measuring step: when it held its device."""
    ended_at: datetime | None = None
    wall_s: float
    """Of steps that took turns, each one's equal share."""
    beside: tuple[str, ...] = ()
    """What other work of ndld-flow ran on this machine while it was measured, in words."""


Outcome = Literal["done", "reused", "failed", "inconclusive", "interrupted", "skipped"]
"""`failed`: its verdict is no, or, where it has no record, an error ended it; `interrupted`: it was at work when the
run was ended, or when the run was recorded last."""


class RunStep(Record):
    """A step's place in one run."""

    name: str
    step: str
    outcome: Outcome
    reason: str
    """Why it ran or was reused, from a closed set; for `skipped`, what stopped the run."""
    detail: str = ""
    wall_s: float
    """Seconds this run spent on it (not what it once cost)."""
    record: StepRecord | None = None
    """None when it was skipped, or did not come to its end."""
