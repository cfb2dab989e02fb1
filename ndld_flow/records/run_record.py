"""The record of a run."""

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
    """The steps that failed, or were running; empty where it happened between two steps."""
    message: str
    """One short paragraph, as printed in the terminal."""
    exit_code: int
    traceback: str = ""
    """Of a bug."""
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
    """Resolved and self-sufficient."""
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
    """False when a step or a gate failed, and when the run did not finish."""
    outcome: RunOutcome
    """Its outcome. `running` without a recorded end: it is still running, or its process was killed."""
    failure: RunFailure | None = None
    """Of a run that did not finish."""
