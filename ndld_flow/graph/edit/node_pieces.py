"""A set of nodes of one graph seen as one: what it reads, what it makes for others, whether it can become one node."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence

import onnx_ir as ir

from ndld_flow.graph.edit.neighbourhood import Neighbourhood
from ndld_flow.models.files import all_graphs
from ndld_flow.models.scopes import own_subgraphs


def deep_nodes(nodes: Iterable[ir.Node]) -> Iterator[ir.Node]:
    """Nodes with all that stands in their bodies, each node before what is in it."""
    for node in nodes:
        yield node
        for _, body in own_subgraphs(node):
            yield from deep_nodes(body)


def outermost(nodes: Iterable[ir.Node]) -> list[ir.Node]:
    """Without those that stand in the body of another: they go where that one goes."""
    nodes = list(nodes)
    inner = {node for owner in nodes for _, body in own_subgraphs(owner) for node in deep_nodes(body)}
    return [node for node in nodes if node not in inner]


def is_read_outside(value: ir.Value, members: Collection[ir.Node], around: Neighbourhood) -> bool:
    """Whether any but these nodes, of the tensor's own graph, needs it, or the graph hands it out."""
    graph = value.graph
    assert graph is not None
    if any(output is value for output in graph.outputs):
        return True
    return any(reader.graph is graph and reader not in members for reader in around.readers(value))


def outputs_of(nodes: Sequence[ir.Node], around: Neighbourhood) -> list[ir.Value]:
    """What the nodes make and others read, in the order of the nodes."""
    members = set(nodes)
    made = (value for node in nodes for value in node.outputs)
    return [value for value in made if is_read_outside(value, members, around)]


class Pieces:
    """Sets of nodes that will each become one node. The search is short in a model that is told and sorted."""

    def __init__(self, around: Neighbourhood, model: ir.Model | None = None) -> None:
        self._around = around
        graphs = () if model is None else all_graphs(model)
        self._position = {node: place for graph in graphs for place, node in enumerate(graph)}
        self._piece_of: dict[ir.Node, tuple[ir.Node, ...]] = {}
        self._spans: dict[object, list[tuple[int, int]]] = {}
        """Graph -> the first and last place of each of its pieces."""

    def obstacle(self, nodes: Collection[ir.Node]) -> ir.Node | None:
        """A node outside that depends on one of the nodes and that another one depends on, if there is any.

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
        """From now on these count as one."""
        members = tuple(nodes)
        places = [self._position.get(node, 0) for node in members]
        self._piece_of.update(dict.fromkeys(members, members))
        self._spans.setdefault(members[0].graph, []).append((min(places), max(places)))

    def take(self, nodes: Collection[ir.Node]) -> bool:
        """Add nodes unless one of them is in another piece already, or there is an obstacle."""
        if any(node in self._piece_of for node in nodes) or self.obstacle(nodes) is not None:
            return False
        self.add(nodes)
        return True

    def _bound(self, nodes: Collection[ir.Node]) -> int:
        """The place after which no way leads back: in a sorted graph only a piece can lead to an earlier place."""
        last = max(self._position.get(node, 0) for node in nodes)
        spans = self._spans.get(next(iter(nodes)).graph, [])
        while (further := max((end for begin, end in spans if begin <= last), default=last)) > last:
            last = further
        return last


def read_in_nodes(nodes: Iterable[ir.Node], read: dict[ir.Value, ir.Value]) -> None:
    """Let nodes and all in their bodies read other tensors."""
    for node in deep_nodes(nodes):
        for index, value in enumerate(node.inputs):
            if value in read:
                node.replace_input_with(index, read[value])
        for _, body in own_subgraphs(node):
            body.outputs[:] = [read.get(value, value) for value in body.outputs]


def hand_over(old: ir.Value, new: ir.Value, inside: Collection[ir.Node], graphs: Iterable[ir.Graph]) -> None:
    """Let all but some nodes read `new` instead of `old`; it gets the name, the type and the place as a graph output.

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
