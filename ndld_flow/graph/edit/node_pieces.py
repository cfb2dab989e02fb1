"""Groups of nodes that are treated as one: their inputs, their outputs, and whether one node can replace them."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence

import onnx_ir as ir

from ndld_flow.graph.edit.neighbourhood import Neighbourhood
from ndld_flow.models.files import all_graphs
from ndld_flow.models.scopes import own_subgraphs


def deep_nodes(nodes: Iterable[ir.Node]) -> Iterator[ir.Node]:
    """Yield nodes and everything in their subgraphs, owners first."""
    for node in nodes:
        yield node
        for _, body in own_subgraphs(node):
            yield from deep_nodes(body)


def outermost(nodes: Iterable[ir.Node]) -> list[ir.Node]:
    """Return the nodes without those in the subgraphs of others."""
    nodes = list(nodes)
    inner = {node for owner in nodes for _, body in own_subgraphs(owner) for node in deep_nodes(body)}
    return [node for node in nodes if node not in inner]


def is_read_outside(value: ir.Value, members: Collection[ir.Node], around: Neighbourhood) -> bool:
    """Return whether a tensor is used outside these nodes, or is an output of the graph."""
    graph = value.graph
    assert graph is not None
    if any(output is value for output in graph.outputs):
        return True
    return any(reader.graph is graph and reader not in members for reader in around.readers(value))


def outputs_of(nodes: Sequence[ir.Node], around: Neighbourhood) -> list[ir.Value]:
    """Return the outputs of the nodes that others read, in the order of the nodes."""
    members = set(nodes)
    made = (value for node in nodes for value in node.outputs)
    return [value for value in made if is_read_outside(value, members, around)]


class Pieces:
    """Groups of nodes that will each become one node. The search is fast in a sorted model."""

    def __init__(self, around: Neighbourhood, model: ir.Model | None = None) -> None:
        self._around = around
        graphs = () if model is None else all_graphs(model)
        self._position = {node: place for graph in graphs for place, node in enumerate(graph)}
        self._piece_of: dict[ir.Node, tuple[ir.Node, ...]] = {}
        self._spans: dict[object, list[tuple[int, int]]] = {}
        """Graph -> the first and last position of each of its groups."""

    def obstacle(self, nodes: Collection[ir.Node]) -> ir.Node | None:
        """Return an outside node that depends on the group and on which the group depends, or None.

        Such nodes cannot become one: it would have to come both before and after the obstacle.
        """
        members = dict.fromkeys(nodes)
        graph, bound = next(iter(members)).graph, self._bound(nodes)
        found: set[ir.Node] = set()
        waiting = [near for node in members for near in self._around.consumers(node)]
        while waiting:
            node = waiting.pop()
            if node in found or node in members or node.graph is not graph:
                continue
            whole = self._piece_of.get(node, (node,))
            if self._position.get(node, 0) > bound:
                continue
            found.update(whole)
            after = [near for each in whole for near in self._around.consumers(each)]
            if any(near in members for near in after):
                return node
            waiting += after
        return None

    def add(self, nodes: Collection[ir.Node]) -> None:
        """Treat these nodes as one from now on."""
        members = tuple(nodes)
        places = [self._position.get(node, 0) for node in members]
        self._piece_of.update(dict.fromkeys(members, members))
        self._spans.setdefault(members[0].graph, []).append((min(places), max(places)))

    def take(self, nodes: Collection[ir.Node]) -> bool:
        """Add a group unless it overlaps another one or an outside node prevents it."""
        if any(node in self._piece_of for node in nodes) or self.obstacle(nodes) is not None:
            return False
        self.add(nodes)
        return True

    def _bound(self, nodes: Collection[ir.Node]) -> int:
        """Return the position after which no path leads back: in a sorted graph only groups lead backwards."""
        last = max(self._position.get(node, 0) for node in nodes)
        spans = self._spans.get(next(iter(nodes)).graph, [])
        while (further := max((end for begin, end in spans if begin <= last), default=last)) > last:
            last = further
        return last


def read_in_nodes(nodes: Iterable[ir.Node], read: dict[ir.Value, ir.Value]) -> None:
    """Replace inputs of nodes and of everything in their subgraphs."""
    for node in deep_nodes(nodes):
        for index, value in enumerate(node.inputs):
            if value in read:
                node.replace_input_with(index, read[value])
        for _, body in own_subgraphs(node):
            body.outputs[:] = [read.get(value, value) for value in body.outputs]


def hand_over(old: ir.Value, new: ir.Value, inside: Collection[ir.Node], graphs: Iterable[ir.Graph]) -> None:
    """Replace `old` by `new` for all readers except some; `new` gets its name, its type and its position as an output.

    `inside` holds the nodes that go on reading `old`, `graphs` all whose outputs may be `old`; `old` has no name then.
    """
    for use in tuple(old.uses()):
        if use.node not in inside:
            use.node.replace_input_with(use.idx, new)
    for graph in graphs:
        if any(output is old for output in graph.outputs):
            graph.outputs[:] = [new if output is old else output for output in graph.outputs]
    name, old.name = old.name, None
    new.name, new.type, new.shape = name, old.type, old.shape
