"""Inputs that nothing reads."""

from __future__ import annotations

from collections.abc import Iterator

from ndld_flow.graph.lint.check import Check, Subject, names_read
from ndld_flow.records.inspection import Finding


class UnusedInput(Check):
    """Inputs of the model that nothing reads."""

    order = 100

    def find(self, subject: Subject) -> Iterator[Finding]:
        graph = subject.proto.graph
        known = names_read(graph) | {tensor.name for tensor in graph.initializer}
        for value in graph.input:
            if value.name not in known:
                yield self.finding(f"input {value.name!r} is read by no node")
