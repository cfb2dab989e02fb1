"""ONNX's own checker."""

from __future__ import annotations

from collections.abc import Iterator

from ndld_flow.base.errors import ModelError
from ndld_flow.graph.lint.check import Check, Subject, named_node
from ndld_flow.models.files import check_model
from ndld_flow.records.inspection import Finding


class OnnxChecker(Check):
    """The first mistake that `onnx.checker` reports."""

    order = 20
    severity = "error"

    def find(self, subject: Subject) -> Iterator[Finding]:
        try:
            check_model(subject.path)
        except ModelError as error:
            message = str(error).removeprefix(f"{subject.path}: ")
            yield self.finding_at(message, *named_node(message))
