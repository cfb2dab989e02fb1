"""Versions of the format and of the operators."""

from __future__ import annotations

from collections.abc import Iterator

from ndld_flow.graph.lint.check import Check, Subject
from ndld_flow.models.files import MAX_IR_VERSION, MAX_OPSET, OLDEST_OPSET
from ndld_flow.records.inspection import Finding


class Versions(Check):
    """Versions that not every ONNX Runtime loads, or guarantees to run.

    They are warnings: the check `onnxruntime` tries the one that is installed.
    """

    order = 40
    severity = "warning"

    def find(self, subject: Subject) -> Iterator[Finding]:
        version, opset = subject.proto.ir_version, subject.opset
        newest = "is newer than the newest that ONNX Runtime 1.31 loads"
        if version > MAX_IR_VERSION:
            yield self.finding(f"IR version {version} {newest} ({MAX_IR_VERSION})")
        if opset > MAX_OPSET:
            yield self.finding(f"opset {opset} {newest} ({MAX_OPSET})")
        if 0 < opset < OLDEST_OPSET:
            oldest = f"is older than the oldest that ONNX Runtime guarantees to run ({OLDEST_OPSET})"
            yield self.finding(f"opset {opset} {oldest}")
