"""A set of nodes of one graph seen as one: what it reads, what it makes for others, whether it can become one node."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence

import onnx_ir as ir

from ndld_flow.backends.editing.neighbourhood import Neighbourhood
from ndld_flow.backends.models.scopes import own_subgraphs


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
    """Sets of nodes that will each become one node."""

    def __init__(self, around: Neighbourhood) -> None:
        self._around = around
        self._piece_of: dict[ir.Node, tuple[ir.Node, ...]] = {}

    def obstacle(self, nodes: Collection[ir.Node]) -> ir.Node | None:
        """A node outside that depends on one of the nodes and that another one depends on, if there is any.

        Such nodes cannot become one: it would have to come both before and after the obstacle.
        """
        members = dict.fromkeys(nodes)
        after = self._reached(members, self._around.consumers)
        before = self._reached(members, self._around.producers)
        return next((node for node in after if node in before), None)

    def add(self, nodes: Collection[ir.Node]) -> None:
        """From now on these count as one."""
        members = tuple(nodes)
        self._piece_of.update(dict.fromkeys(members, members))

    def take(self, nodes: Collection[ir.Node]) -> bool:
        """Add nodes unless one of them is in another piece already, or there is an obstacle."""
        if any(node in self._piece_of for node in nodes) or self.obstacle(nodes) is not None:
            return False
        self.add(nodes)
        return True

    def _reached(
        self, members: Mapping[ir.Node, None], step: Callable[[ir.Node], Iterable[ir.Node]]
    ) -> dict[ir.Node, None]:
        """Nodes outside that are reached from the members; whole pieces at once."""
        found: dict[ir.Node, None] = {}
        waiting = [near for node in members for near in step(node)]
        while waiting:
            node = waiting.pop()
            if node in found or node in members:
                continue
            whole = self._piece_of.get(node, (node,))
            found.update(dict.fromkeys(whole))
            waiting += [near for each in whole for near in step(each)]
        return found


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
