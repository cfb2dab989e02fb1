"""Contradictions between shapes."""

from __future__ import annotations

from collections.abc import Iterator

from ndld_flow.base.errors import ModelError
from ndld_flow.graph.lint.check import Check, Subject, named_node
from ndld_flow.models.shape_inference import infer_shapes
from ndld_flow.records.inspection import Finding, Severity


class ShapeInference(Check):
    """The first contradiction that strict shape inference finds.

    It is a warning in a model that ONNX Runtime loads: some of onnx's rules are wrong, and runtimes ignore others.
    """

    order = 30
    severity = "error"
    needs_model = True

    def find(self, subject: Subject) -> Iterator[Finding]:
        assert subject.model is not None
        try:
            infer_shapes(subject.model, strict=True)
        except ModelError as error:
            severity: Severity = "warning" if subject.loading.returncode == 0 else self.severity
            yield self.finding_at(str(error), *named_node(str(error)), severity=severity)
