"""Findings of a lint about a model."""

from __future__ import annotations

from typing import Literal

from ndld_flow.records.base import Document, Record
from ndld_flow.records.formats import VERSIONS

Severity = Literal["error", "warning", "info"]


class Finding(Record):
    """One finding in a model."""

    severity: Severity
    check: str
    """The check that found it: `onnx.checker`, `shape_inference`, `onnxruntime`, `unused_node`, ..."""
    message: str
    node: str = ""
    """Name of the node it belongs to; empty when it belongs to the model."""
    op_type: str = ""


class Findings(Document):
    """All findings of one lint, and the checks that ran or were skipped."""

    document: Literal["findings"] = "findings"
    format_version: int = VERSIONS["findings"]
    findings: tuple[Finding, ...]
    checks_run: tuple[str, ...]
    checks_skipped: dict[str, str] = {}
    """Check -> the reason why it was skipped."""

    def count(self, severity: Severity) -> int:
        return sum(finding.severity == severity for finding in self.findings)
