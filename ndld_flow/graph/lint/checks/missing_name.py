"""Nodes and graphs without names."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from ndld_flow.graph.lint.check import Check, Subject
from ndld_flow.records.inspection import Finding


class MissingName(Check):
    """A model's graph without a name, and the number of nodes without one, by type."""

    order = 70
    severity = "info"

    def find(self, subject: Subject) -> Iterator[Finding]:
        if not subject.proto.graph.name:
            yield self.finding(
                "the graph has no name, which ONNX requires; every step gives it one", severity="warning"
            )
        types = Counter(node.op_type for node in subject.nodes() if not node.name)
        for op_type, count in types.most_common():
            nodes = "node has" if count == 1 else "nodes have"
            message = f"{count} {op_type} {nodes} no name and cannot be selected by name; `sanitize` gives them one"
            yield self.finding_at(message, "", op_type)
