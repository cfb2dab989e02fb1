"""Nodes that no output depends on."""

from __future__ import annotations

from collections.abc import Iterator

from ndld_flow.graph.lint.check import Check, Subject, names_read_by
from ndld_flow.records.inspection import Finding


class UnusedNode(Check):
    """Nodes that no output depends on."""

    order = 80

    def find(self, subject: Subject) -> Iterator[Finding]:
        for graph in subject.graphs():
            wanted = {output.name for output in graph.output}
            for node in reversed(graph.node):
                if wanted.isdisjoint(name for name in node.output if name):
                    yield self.finding("no output depends on it; `sanitize` removes it", node)
                else:
                    wanted.update(names_read_by(node))
