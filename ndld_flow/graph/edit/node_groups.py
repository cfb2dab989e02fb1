"""Groups of nodes: their neighbourhood, their inputs and outputs, and their copies.

Copies are not made by `clone` of onnx_ir, which requires sorted nodes and cannot replace inputs: a model is not sorted
while it is edited, and a copy for another place reads other tensors. Copies share the weights of the original.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import onnx_ir as ir

from ndld_flow.base.errors import RequestError
from ndld_flow.graph.edit.names import Nesting
from ndld_flow.models.files import all_graphs
from ndld_flow.models.nodes import free_name, node_label, own_subgraphs, read_values

Anchor = ir.Node | ir.Value
Values = Mapping[ir.Value, ir.Value | None]
"""Tensor -> replacement to read; None for an omitted optional input."""
Attributes = Mapping[str, ir.Attr]
"""Attribute of a function -> its value at the call."""


class Neighbourhood:
    """Producers and readers in a model in its current state."""

    def __init__(self, model: ir.Model) -> None:
        self._nesting = Nesting(model)
        self._outputs: dict[ir.Value, list[ir.Graph]] = {}
        """Tensor -> the subgraphs that output it."""
        for body in self._nesting.owner_of:
            for value in body.outputs:
                self._outputs.setdefault(value, []).append(body)

    def before(self, anchor: Anchor) -> set[ir.Node]:
        """Return the nodes that a node or tensor depends on, including a tensor's producer but not the node itself."""
        start = self._producers(anchor) if isinstance(anchor, ir.Value) else self.producers(anchor)
        return set(reached(start, self.producers))

    def after(self, anchor: Anchor) -> set[ir.Node]:
        """Return the nodes that depend on a node or tensor, without the node itself."""
        start = self.readers(anchor) if isinstance(anchor, ir.Value) else self.consumers(anchor)
        return set(reached(start, self.consumers))

    def between(self, first: Anchor, last: Anchor) -> set[ir.Node]:
        """Return the nodes on paths from the first to the last, including the two where they are nodes."""
        after = self.after(first) | ({first} if isinstance(first, ir.Node) else set())
        before = self.before(last) | ({last} if isinstance(last, ir.Node) else set())
        return after & before

    def near(self, anchor: Anchor, hops: int) -> set[ir.Node]:
        """Return the nodes at most `hops` edges away, itself included. The ends of a tensor are one edge away."""
        if isinstance(anchor, ir.Value):
            ends = (anchor.producer(), *self.readers(anchor))
            nodes, hops = {node for node in ends if node is not None}, hops - 1
        else:
            nodes = {anchor}
        edge = nodes
        while edge and hops > 0:
            hops -= 1
            edge = {near for node in edge for near in (*self.producers(node), *self.consumers(node))} - nodes
            nodes |= edge
        return nodes

    def producers(self, node: ir.Node) -> Iterator[ir.Node]:
        """Return the producers of a node's inputs, and of outer tensors that its subgraphs read.

        The producers of a subgraph's inputs, such as the state of a Loop, are those of its node's inputs.
        """
        for value in read_values(node):
            yield from self._producers(value)

    def consumers(self, node: ir.Node) -> Iterator[ir.Node]:
        """Return the readers of a node's outputs; a reader in a subgraph comes with the nodes that own it."""
        for value in node.outputs:
            yield from self.readers(value)

    def readers(self, value: ir.Value) -> Iterator[ir.Node]:
        """Return the readers of a tensor, including nodes whose subgraphs read it, take it as an input or output it."""
        for reader in value.consumers():
            yield reader
            yield from self._nesting.owners(reader.graph)
            for _, body in own_subgraphs(reader):
                for given in body.inputs:
                    yield from self.readers(given)
        for body in self._outputs.get(value, ()):
            yield from self._nesting.owners(body)

    def _producers(self, value: ir.Value) -> Iterator[ir.Node]:
        producer = value.producer()
        if producer is not None:
            yield producer
        elif value.is_graph_input() and value.graph in self._nesting.owner_of:
            for given in self._nesting.owner_of[value.graph].inputs:
                if given is not None:
                    yield from self._producers(given)


def reached(start: Iterable[ir.Node], step: Callable[[ir.Node], Iterable[ir.Node]]) -> dict[ir.Node, None]:
    """Return nodes and all that repeated steps from them reach, in the order of discovery."""
    waiting = list(start)
    nodes = dict.fromkeys(waiting)
    while waiting:
        for node in step(waiting.pop()):
            if node not in nodes:
                nodes[node] = None
                waiting.append(node)
    return nodes


def check_one_piece(pieces: Pieces, nodes: Collection[ir.Node]) -> None:
    """Raise `RequestError` when an outside node prevents that one node replaces these."""
    obstacle = pieces.obstacle(nodes)
    if obstacle is not None:
        raise RequestError(
            f"these nodes cannot be replaced by one: {node_label(obstacle)!r} depends on one of them and another "
            "depends on it. Select that node too, or fewer nodes"
        )


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
    outputs = (value for node in nodes for value in node.outputs)
    return [value for value in outputs if is_read_outside(value, members, around)]


class Pieces:
    """Groups of nodes that will each become one node. The search is fast in a sorted model."""

    def __init__(self, around: Neighbourhood, model: ir.Model | None = None) -> None:
        self._around = around
        graphs = () if model is None else all_graphs(model)
        self._position = {node: index for graph in graphs for index, node in enumerate(graph)}
        self._piece_of: dict[ir.Node, tuple[ir.Node, ...]] = {}
        self._spans: dict[object, list[tuple[int, int]]] = {}
        """Graph -> the first and last position of each of its groups."""

    def obstacle(self, nodes: Collection[ir.Node]) -> ir.Node | None:
        """Return an outside node that depends on the group and on which the group depends, or None.

        Such nodes cannot become one: it would have to come both before and after the obstacle.
        """
        members = dict.fromkeys(nodes)
        graph, bound = next(iter(members)).graph, self._bound(nodes)
        visited: set[ir.Node] = set()
        waiting = [near for node in members for near in self._around.consumers(node)]
        while waiting:
            node = waiting.pop()
            if node in visited or node in members or node.graph is not graph:
                continue
            whole = self._piece_of.get(node, (node,))
            if self._position.get(node, 0) > bound:
                continue
            visited.update(whole)
            after = [near for each in whole for near in self._around.consumers(each)]
            if any(near in members for near in after):
                return node
            waiting += after
        return None

    def add(self, nodes: Collection[ir.Node]) -> None:
        """Mark these nodes as one group."""
        members = tuple(nodes)
        positions = [self._position.get(node, 0) for node in members]
        self._piece_of.update(dict.fromkeys(members, members))
        self._spans.setdefault(members[0].graph, []).append((min(positions), max(positions)))

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


def replace_uses(old: ir.Value, new: ir.Value, inside: Collection[ir.Node], graphs: Iterable[ir.Graph]) -> None:
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


@dataclass(frozen=True)
class Copies:
    """Copies that belong to no graph yet and have the names of their originals: see `Renaming`."""

    nodes: list[ir.Node]
    values: dict[ir.Value, ir.Value]
    """Original tensor -> its copy, including tensors of subgraphs."""


def copy_nodes(nodes: Iterable[ir.Node], read: Values | None = None, attributes: Attributes | None = None) -> Copies:
    """Copy nodes with their subgraphs. Copies read each other's outputs, and from outside the replacements in `read`.

    With `attributes`, references to attributes of a function are replaced by these; references to other names are
    dropped, as in a call that omits an attribute without a default.
    """
    copier = _Copier(dict(read or {}), attributes)
    return Copies(copier.nodes(list(nodes)), copier.new)


def copy_graph(graph: ir.Graph, read: Values | None = None, attributes: Attributes | None = None) -> ir.Graph:
    """Copy a graph, with `read` and `attributes` as for `copy_nodes`; captured outer tensors stay captured."""
    return _Copier(dict(read or {}), attributes).graph(graph)


class Renaming:
    """New names for nodes and tensors that are added to a model. A node and a tensor may keep a common name."""

    def __init__(
        self, taken_nodes: Collection[str], taken_values: Collection[str], prefix: str = "", if_taken: str = ""
    ) -> None:
        """Set the prefixes: `prefix` for all names, `if_taken` for used ones; a number follows if that is used too."""
        self._nodes, self._new_nodes = taken_nodes, set[str]()
        self._values, self._new_values = taken_values, set[str]()
        self._prefix, self._if_taken = prefix, if_taken

    @property
    def new(self) -> set[str]:
        """Return all new names."""
        return self._new_nodes | self._new_values

    def reserve(self, taken: set[str]) -> None:
        """Add the new names to `taken`, so that later nodes and tensors do not get them."""
        taken |= self.new
        self._new_nodes.clear()
        self._new_values.clear()

    def rename(self, nodes: Iterable[ir.Node]) -> None:
        """Rename nodes, their outputs, and everything in their subgraphs."""
        for node in nodes:
            if node.name:
                node.name = self._like(node.name, self._nodes, self._new_nodes)
            self.rename_values(node.outputs)
            for _, body in own_subgraphs(node):
                self.rename_graph(body)

    def rename_graph(self, graph: ir.Graph) -> None:
        """Rename everything in a graph."""
        initializers = list(graph.initializers.values())
        graph.initializers.clear()  # an initializer may get the current name of another
        self.rename_values(dict.fromkeys([*graph.inputs, *initializers]))
        for value in initializers:
            graph.initializers.add(value)
        self.rename(graph)

    def rename_values(self, values: Iterable[ir.Value]) -> None:
        """Rename tensors without a producer, or the outputs of one node."""
        for value in values:
            if value.name:
                value.name = self._like(value.name, self._values, self._new_values)

    def _like(self, name: str, taken: Collection[str], new: set[str]) -> str:
        wish = f"{self._prefix}{name}"
        return free_name(f"{self._if_taken}{wish}" if wish in taken or wish in new else wish, new, taken)


def copy_value(value: ir.Value) -> ir.Value:
    """Return a tensor of the same name, type and shape without a producer; a constant shares its data."""
    name = value.name
    duplicate = ir.Value(
        name=name,
        type=value.type,
        shape=None if value.shape is None else value.shape.copy(),
        doc_string=value.doc_string,
        const_value=None if value.const_value is None else share_tensor(value.const_value, name or ""),
        metadata_props=dict(value.metadata_props),
    )
    duplicate.meta.update(value.meta)
    return duplicate


def share_tensor(tensor: ir.TensorProtocol, name: str) -> ir.TensorProtocol:
    """Return the same data under another name: onnx_ir writes an initializer under its tensor's name."""
    if not isinstance(tensor, ir.TensorProtoTensor):
        shared = copy.copy(tensor)
        shared.name = name
        return shared
    if tensor.dtype == ir.DataType.STRING:
        return ir.StringTensor(tensor.numpy(), shape=tensor.shape, name=name, doc_string=tensor.doc_string)
    return ir.Tensor(tensor.numpy(), tensor.dtype, shape=tensor.shape, name=name, doc_string=tensor.doc_string)


class _Copier:
    """Declare outputs before copying nodes, so that the order of nodes does not matter."""

    def __init__(self, read: dict[ir.Value, ir.Value | None], attributes: Attributes | None) -> None:
        self._read = read
        self._attributes = attributes
        self.new: dict[ir.Value, ir.Value] = {}

    def nodes(self, nodes: list[ir.Node]) -> list[ir.Node]:
        for node in nodes:
            for value in node.outputs:
                self._declare(value)
        return [self._node(node) for node in nodes]

    def graph(self, graph: ir.Graph) -> ir.Graph:
        inputs = [self._declare(value) for value in graph.inputs]
        initializers = [self.new.get(value) or self._declare(value) for value in graph.initializers.values()]
        nodes = self.nodes(list(graph))
        duplicate = ir.Graph(
            inputs,
            [self._outside(value) or value for value in graph.outputs],
            nodes=nodes,
            initializers=initializers,
            doc_string=graph.doc_string,
            opset_imports=dict(graph.opset_imports),
            name=graph.name,
            metadata_props=dict(graph.metadata_props),
        )
        duplicate.meta.update(graph.meta)
        return duplicate

    def _declare(self, value: ir.Value) -> ir.Value:
        self.new[value] = copy_value(value)
        return self.new[value]

    def _outside(self, value: ir.Value | None) -> ir.Value | None:
        """Return the tensor that a copy reads where its original reads `value`."""
        if value is None:
            return None
        return self.new[value] if value in self.new else self._read.get(value, value)

    def _node(self, node: ir.Node) -> ir.Node:
        attributes = [self._attribute(attribute) for attribute in node.attributes.values()]
        duplicate = ir.Node(
            node.domain,
            node.op_type,
            [self._outside(value) for value in node.inputs],
            [attribute for attribute in attributes if attribute is not None],
            overload=node.overload,
            outputs=[self.new[value] for value in node.outputs],
            version=node.version,
            name=node.name,
            doc_string=node.doc_string,
            metadata_props=dict(node.metadata_props),
            device_configurations=tuple(map(self._configuration, node.device_configurations)),
        )
        duplicate.meta.update(node.meta)
        return duplicate

    def _attribute(self, attribute: ir.Attr) -> ir.Attr | None:
        if attribute.is_ref():
            return self._bound(attribute)
        if attribute.type == ir.AttributeType.GRAPH:
            inner: object = self.graph(attribute.as_graph())
        elif attribute.type == ir.AttributeType.GRAPHS:
            inner = tuple(map(self.graph, attribute.as_graphs()))
        else:
            return attribute
        return ir.Attr(attribute.name, attribute.type, inner, doc_string=attribute.doc_string)

    def _bound(self, attribute: ir.Attr) -> ir.Attr | None:
        if self._attributes is None:
            return attribute
        given = self._attributes.get(attribute.ref_attr_name or "")
        if given is None:
            return None
        if given.is_ref():  # the call is in another function and forwards its attribute
            return ir.RefAttr(attribute.name, given.ref_attr_name or "", given.type, doc_string=attribute.doc_string)
        return ir.Attr(attribute.name, given.type, given.value, doc_string=attribute.doc_string)

    def _configuration(self, configuration: ir.NodeDeviceConfiguration) -> ir.NodeDeviceConfiguration:
        specs = (dataclasses.replace(spec, value=self._outside(spec.value)) for spec in configuration.sharding_specs)
        return dataclasses.replace(configuration, sharding_specs=tuple(specs))
