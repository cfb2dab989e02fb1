"""Nodes before, after, between and near others. Subgraphs of If, Loop and Scan belong to their node."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

import onnx_ir as ir

from ndld_flow.models.scopes import own_subgraphs

Anchor = ir.Node | ir.Value


class Neighbourhood:
    """Producers and readers in a model in its present state."""

    def __init__(self, model: ir.Model) -> None:
        self._owners: dict[ir.Graph, ir.Node] = {}
        """Subgraph -> the node that owns it."""
        self._outputs: dict[ir.Value, list[ir.Graph]] = {}
        """Tensor -> the subgraphs that output it."""
        for graph in (model.graph, *(function.graph for function in model.functions.values())):
            self._enter(graph)

    def before(self, anchor: Anchor) -> set[ir.Node]:
        """Return the nodes that a node or tensor depends on, including a tensor's producer but not the node itself."""
        start = self._makers(anchor) if isinstance(anchor, ir.Value) else self.producers(anchor)
        return _reached(start, self.producers)

    def after(self, anchor: Anchor) -> set[ir.Node]:
        """Return the nodes that depend on a node or tensor, without the node itself."""
        start = self.readers(anchor) if isinstance(anchor, ir.Value) else self.consumers(anchor)
        return _reached(start, self.consumers)

    def between(self, first: Anchor, last: Anchor) -> set[ir.Node]:
        """Return the nodes on paths from the first to the last, including the two where they are nodes."""
        after = self.after(first) | ({first} if isinstance(first, ir.Node) else set())
        before = self.before(last) | ({last} if isinstance(last, ir.Node) else set())
        return after & before

    def near(self, anchor: Anchor, hops: int) -> set[ir.Node]:
        """Return the nodes at most `hops` edges away, itself included. The ends of a tensor are one edge away."""
        if isinstance(anchor, ir.Value):
            ends = (anchor.producer(), *self.readers(anchor))
            found, hops = {node for node in ends if node is not None}, hops - 1
        else:
            found = {anchor}
        edge = found
        while edge and hops > 0:
            hops -= 1
            edge = {near for node in edge for near in (*self.producers(node), *self.consumers(node))} - found
            found |= edge
        return found

    def producers(self, node: ir.Node) -> Iterator[ir.Node]:
        """Return the producers of a node's inputs, and of outer tensors that its subgraphs read.

        What a body is given, such as the state of a Loop, is made by whoever makes what its node reads.
        """
        for value in read_values(node):
            yield from self._makers(value)

    def consumers(self, node: ir.Node) -> Iterator[ir.Node]:
        """Return the readers of a node's outputs; a reader in a subgraph comes with the nodes that own it."""
        for value in node.outputs:
            yield from self.readers(value)

    def readers(self, value: ir.Value) -> Iterator[ir.Node]:
        """Return the readers of a tensor, including nodes whose subgraphs read it, take it as an input or output it."""
        for reader in value.consumers():
            yield reader
            yield from self._around(reader.graph)
            for _, body in own_subgraphs(reader):
                for given in body.inputs:
                    yield from self.readers(given)
        for body in self._outputs.get(value, ()):
            yield from self._around(body)

    def _makers(self, value: ir.Value) -> Iterator[ir.Node]:
        producer = value.producer()
        if producer is not None:
            yield producer
        elif value.is_graph_input() and value.graph in self._owners:
            for given in self._owners[value.graph].inputs:
                if given is not None:
                    yield from self._makers(given)

    def _around(self, graph: object) -> Iterator[ir.Node]:
        """Return the nodes that own a graph, from the innermost outwards."""
        while isinstance(graph, ir.Graph) and graph in self._owners:
            owner = self._owners[graph]
            yield owner
            graph = owner.graph

    def _enter(self, graph: ir.Graph) -> None:
        for node in graph:
            for _, body in own_subgraphs(node):
                self._owners[body] = node
                for value in body.outputs:
                    self._outputs.setdefault(value, []).append(body)
                self._enter(body)


def read_values(node: ir.Node) -> Iterator[ir.Value]:
    """Return the inputs of a node and the outer tensors that its subgraphs read, without omitted optional inputs."""
    yield from (value for value in node.inputs if value is not None)
    bodies = list(_bodies(node))
    if not bodies:
        return
    inside = {value for body in bodies for value in body.inputs}
    inside |= {value for body in bodies for value in body.initializers.values()}
    inside |= {value for body in bodies for inner in body for value in inner.outputs}
    for body in bodies:
        reads = (value for inner in body for value in inner.inputs if value is not None)
        yield from (value for value in (*reads, *body.outputs) if value not in inside)


def _bodies(node: ir.Node) -> Iterator[ir.Graph]:
    for _, graph in own_subgraphs(node):
        yield graph
        for inner in graph:
            yield from _bodies(inner)


def _reached(start: Iterable[ir.Node], step: Callable[[ir.Node], Iterable[ir.Node]]) -> set[ir.Node]:
    waiting = list(start)
    found = set(waiting)
    while waiting:
        for node in step(waiting.pop()):
            if node not in found:
                found.add(node)
                waiting.append(node)
    return found
