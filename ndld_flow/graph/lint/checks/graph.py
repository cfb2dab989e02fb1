"""Names, and what nothing reads."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import onnx

from ndld_flow.graph.lint.check import Check, Subject, names_read, names_read_by
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


class UnusedInitializer(Check):
    """Initializers that nothing reads."""

    order = 90

    def find(self, subject: Subject) -> Iterator[Finding]:
        for graph in subject.graphs():
            read = names_read(graph)
            for tensor in (*graph.initializer, *(sparse.values for sparse in graph.sparse_initializer)):
                if tensor.name not in read:
                    yield self.finding(f"initializer {tensor.name!r} is read by no node")


class UnusedInput(Check):
    """Inputs of the model that nothing reads."""

    order = 100

    def find(self, subject: Subject) -> Iterator[Finding]:
        graph = subject.proto.graph
        known = names_read(graph) | {tensor.name for tensor in graph.initializer}
        for value in graph.input:
            if value.name not in known:
                yield self.finding(f"input {value.name!r} is read by no node")
