"""The record next to an exported model or engine: its origin, and the results of its run."""

from datetime import datetime
from typing import Literal

from ndld_flow.records.document import Document
from ndld_flow.records.measurement import Metric
from ndld_flow.records.run_record import GateResult


class ExportRecord(Document):
    """An exported result: `model.onnx.json` next to `model.onnx`, or next to the folder of a model for Triton."""

    document: Literal["export"] = "export"
    format_version: int = 1
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
    started_at: datetime
    """Start of the run."""
    metrics: dict[str, Metric]
    """`STEP.METRIC` -> value with its unit, of the whole run."""
    gates: tuple[GateResult, ...]
    versions: dict[str, str]
    """Libraries by name, ndld_flow's own among them."""
