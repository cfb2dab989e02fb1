"""Initializers that nothing reads."""

from __future__ import annotations

from collections.abc import Iterator

from ndld_flow.graph.lint.check import Check, Subject, names_read
from ndld_flow.records.inspection import Finding


class UnusedInitializer(Check):
    """Initializers that nothing reads."""

    order = 90

    def find(self, subject: Subject) -> Iterator[Finding]:
        for graph in subject.graphs():
            read = names_read(graph)
            for tensor in (*graph.initializer, *(sparse.values for sparse in graph.sparse_initializer)):
                if tensor.name not in read:
                    yield self.finding(f"initializer {tensor.name!r} is read by no node")
