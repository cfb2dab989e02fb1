"""What lies before, after, between and near nodes. Bodies of If, Loop and Scan count with the node they belong to."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

import onnx_ir as ir

from ndld_flow.models.scopes import own_subgraphs

Anchor = ir.Node | ir.Value


class Neighbourhood:
    """Who makes and who reads what in a model, as it is now."""

    def __init__(self, model: ir.Model) -> None:
        self._owners: dict[ir.Graph, ir.Node] = {}
        """Body -> the node it belongs to."""
        self._outputs: dict[ir.Value, list[ir.Graph]] = {}
        """Tensor -> the bodies that hand it out."""
        for graph in (model.graph, *(function.graph for function in model.functions.values())):
            self._enter(graph)

    def before(self, anchor: Anchor) -> set[ir.Node]:
        """All that a node or tensor depends on; a tensor's producer belongs to it, a node does not."""
        start = self._makers(anchor) if isinstance(anchor, ir.Value) else self.producers(anchor)
        return _reached(start, self.producers)

    def after(self, anchor: Anchor) -> set[ir.Node]:
        """All that depends on a node or tensor; a node itself does not belong to it."""
        start = self.readers(anchor) if isinstance(anchor, ir.Value) else self.consumers(anchor)
        return _reached(start, self.consumers)

    def between(self, first: Anchor, last: Anchor) -> set[ir.Node]:
        """What lies on a way from the first to the last, themselves included where they are nodes."""
        after = self.after(first) | ({first} if isinstance(first, ir.Node) else set())
        before = self.before(last) | ({last} if isinstance(last, ir.Node) else set())
        return after & before

    def near(self, anchor: Anchor, hops: int) -> set[ir.Node]:
        """What is at most `hops` edges away in either direction, a node itself too; a tensor's ends are one away."""
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
        """The nodes that make what a node reads, and what its bodies read from outside them.

        What a body is given, such as the state of a Loop, is made by whoever makes what its node reads.
        """
        for value in read_values(node):
            yield from self._makers(value)

    def consumers(self, node: ir.Node) -> Iterator[ir.Node]:
        """The nodes that read what a node makes; a reader in a body comes with the nodes whose bodies it stands in."""
        for value in node.outputs:
            yield from self.readers(value)

    def readers(self, value: ir.Value) -> Iterator[ir.Node]:
        """The nodes that read a tensor, or are given it in a body, and those whose bodies do, or hand it out."""
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
        """The nodes in whose bodies a graph's nodes stand, innermost first."""
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
    """What a node reads, and what its bodies read from outside them; optional inputs that are absent are left out."""
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
