"""What one run did."""

from __future__ import annotations

from datetime import datetime
from typing import Literal

from pydantic import JsonValue

from ndld_flow.records.base import Document, Record
from ndld_flow.records.formats import VERSIONS
from ndld_flow.records.machine import Machine
from ndld_flow.records.outcome import RunOutcome
from ndld_flow.records.step_record import ArtifactRecord, RunStep


class GateResult(Record):
    """One gate and what it said."""

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
    """Where it was read."""
    artifact: ArtifactRecord


class RunFailure(Record):
    """What ended a run before all of its steps were done."""

    steps: tuple[str, ...] = ()
    """The steps that failed, or were at work; empty where it happened between two steps."""
    message: str
    """One short paragraph, as the terminal had it."""
    exit_code: int
    traceback: str = ""
    """Of a bug."""
    log_lines: dict[str, tuple[str, ...]] = {}
    """Step -> the last lines of its log."""


class RunRecord(Document):
    """One run of one recipe, with what is needed to repeat it."""

    document: Literal["run"] = "run"
    format_version: int = VERSIONS["run"]
    id: str
    """`<utc time>-<short id>`, the name of the run's folder."""
    recipe_name: str
    recipe: dict[str, JsonValue]
    """Resolved and self-sufficient."""
    identity: str
    """Digest of the resolved recipe and of the steps' keys: equal runs have equal ones."""
    command: tuple[str, ...]
    directory: str
    """Where the command was given."""
    started_at: datetime
    wall_s: float
    source: SourceRecord
    models: dict[str, SourceRecord] = {}
    """More models, by the name that steps read them by."""
    steps: tuple[RunStep, ...]
    gates: tuple[GateResult, ...]
    machine: Machine
    versions: dict[str, str]
    """Libraries by name, ndld_flow's own among them."""
    passed: bool
    """False when a step or a gate failed, and when the run did not come to its end."""
    outcome: RunOutcome
    """How it ended. `running` where nothing was recorded at its end: it works still, or its program was killed."""
    failure: RunFailure | None = None
    """Of a run that did not come to its end."""
