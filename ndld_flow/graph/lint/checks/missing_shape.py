"""Tensors that are declared without a shape."""

from __future__ import annotations

from collections.abc import Iterator

from ndld_flow.graph.lint.check import Check, Subject
from ndld_flow.models.model_defects import tensors_without_shape
from ndld_flow.records.inspection import Finding


class MissingShape(Check):
    """Inputs, outputs and other tensors that are declared without a shape: runtimes take their rank as unknown."""

    order = 75

    def find(self, subject: Subject) -> Iterator[Finding]:
        for _, message in tensors_without_shape(subject.proto.graph):
            yield self.finding(message)
