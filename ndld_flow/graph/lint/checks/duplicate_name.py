"""Names that two nodes or tensors have."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import onnx

from ndld_flow.graph.lint.check import Check, Subject
from ndld_flow.records.inspection import Finding


class DuplicateName(Check):
    """Nodes with the same name, and tensors with two producers."""

    order = 60

    def find(self, subject: Subject) -> Iterator[Finding]:
        names = Counter(node.name for graph in subject.graphs() for node in graph.node if node.name)
        for name, count in names.items():
            if count > 1:
                yield self.finding_at(f"{count} nodes have this name; selecting it by name is ambiguous", name, "")
        for graph in subject.graphs():
            yield from self._tensors_produced_twice(graph)

    def _tensors_produced_twice(self, graph: onnx.GraphProto) -> Iterator[Finding]:
        produced = {value.name for value in graph.input} | {tensor.name for tensor in graph.initializer}
        for node in graph.node:
            for name in node.output:
                if name and name in produced:
                    yield self.finding(f"tensor {name!r} has a second producer", node, severity="error")
                produced.add(name)
