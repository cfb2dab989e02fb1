"""Copies of nodes and of whole graphs, with what they read replaced.

onnx_ir's own `clone` wants sorted nodes and takes no map of what to read instead; a model that is being edited is not
sorted, and a copy that goes elsewhere reads other tensors. Weights are shared with the original, never copied.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass

import onnx_ir as ir

from ndld_flow.backends.editing.neighbourhood import read_values
from ndld_flow.backends.models.scopes import own_subgraphs
from ndld_flow.backends.models.unique_names import free_name

Values = Mapping[ir.Value, ir.Value | None]
"""Tensor -> the one to read in its place; None reads nothing, as an optional input that is left out."""
Attributes = Mapping[str, ir.Attr]
"""Attribute of a function -> its value where the function is called."""


@dataclass(frozen=True)
class Copies:
    """Copies that belong to no graph yet. They have the names of their originals: see `rename_apart`."""

    nodes: list[ir.Node]
    values: dict[ir.Value, ir.Value]
    """Original tensor -> its copy, those inside bodies too."""


def captured_values(nodes: Iterable[ir.Node]) -> list[ir.Value]:
    """What nodes and their bodies read and none of them makes, in the order in which it is read first."""
    nodes = list(nodes)
    made = {value for node in nodes for value in node.outputs}
    return list(dict.fromkeys(value for node in nodes for value in read_values(node) if value not in made))


def copy_nodes(nodes: Iterable[ir.Node], read: Values | None = None, attributes: Attributes | None = None) -> Copies:
    """Copy nodes with their bodies. They read each other's copies, and from outside what `read` says or the same.

    With `attributes`, references to attributes of a function become these; those of a name it lacks are dropped, as a
    call means that leaves an attribute without a default out.
    """
    copier = _Copier(dict(read or {}), attributes)
    return Copies(copier.nodes(list(nodes)), copier.made)


def copy_graph(graph: ir.Graph, read: Values | None = None, attributes: Attributes | None = None) -> ir.Graph:
    """Copy a graph, with `read` and `attributes` as for `copy_nodes`; outer tensors it captures stay captured."""
    return _Copier(dict(read or {}), attributes).graph(graph)


def rename_apart(nodes: Iterable[ir.Node], taken: set[str], wish: Callable[[str], str] = lambda name: name) -> None:
    """Give nodes, what they make, and all that is in their bodies, names that are not in `taken`, and add these to it.

    `wish` says what an old name should become, such as one with a prefix. Tensors without a name stay without.
    """
    for node in nodes:
        if node.name:
            node.name = free_name(wish(node.name), taken)
        _rename_values(node.outputs, taken, wish)
        for _, body in own_subgraphs(node):
            rename_graph_apart(body, taken, wish)


def rename_graph_apart(
    graph: ir.Graph,
    taken: set[str],
    wish: Callable[[str], str] = lambda name: name,
    keep: Collection[ir.Value] = (),
) -> None:
    """As `rename_apart`, for all that is in a graph but the tensors of `keep`."""
    own = dict.fromkeys([*graph.inputs, *graph.initializers.values()])
    _rename_values([value for value in own if value not in keep], taken, wish)
    rename_apart(graph, taken, wish)


def copy_value(value: ir.Value) -> ir.Value:
    """A tensor of the same name, type and shape that nothing makes; a constant shares its data."""
    name = value.name
    made = ir.Value(
        name=name,
        type=value.type,
        shape=None if value.shape is None else value.shape.copy(),
        doc_string=value.doc_string,
        const_value=None if value.const_value is None else share_tensor(value.const_value, name or ""),
        metadata_props=dict(value.metadata_props),
    )
    made.meta.update(value.meta)
    return made


def share_tensor(tensor: ir.TensorProtocol, name: str) -> ir.TensorProtocol:
    """The same data under a name of its own: onnx_ir writes an initializer by its tensor's name."""
    if not isinstance(tensor, ir.TensorProtoTensor):
        shared = copy.copy(tensor)
        shared.name = name
        return shared
    if tensor.dtype == ir.DataType.STRING:
        return ir.StringTensor(tensor.numpy(), shape=tensor.shape, name=name, doc_string=tensor.doc_string)
    return ir.Tensor(tensor.numpy(), tensor.dtype, shape=tensor.shape, name=name, doc_string=tensor.doc_string)


class _Copier:
    """Declares what nodes make before it copies them: so their order does not matter."""

    def __init__(self, read: dict[ir.Value, ir.Value | None], attributes: Attributes | None) -> None:
        self._read = read
        self._attributes = attributes
        self.made: dict[ir.Value, ir.Value] = {}

    def nodes(self, nodes: list[ir.Node]) -> list[ir.Node]:
        for node in nodes:
            for value in node.outputs:
                self._declare(value)
        return [self._node(node) for node in nodes]

    def graph(self, graph: ir.Graph) -> ir.Graph:
        inputs = [self._declare(value) for value in graph.inputs]
        initializers = [self.made.get(value) or self._declare(value) for value in graph.initializers.values()]
        nodes = self.nodes(list(graph))
        made = ir.Graph(
            inputs,
            [self._outside(value) or value for value in graph.outputs],
            nodes=nodes,
            initializers=initializers,
            doc_string=graph.doc_string,
            opset_imports=dict(graph.opset_imports),
            name=graph.name,
            metadata_props=dict(graph.metadata_props),
        )
        made.meta.update(graph.meta)
        return made

    def _declare(self, value: ir.Value) -> ir.Value:
        self.made[value] = copy_value(value)
        return self.made[value]

    def _outside(self, value: ir.Value | None) -> ir.Value | None:
        """What a copy reads where its original reads `value`."""
        if value is None:
            return None
        return self.made[value] if value in self.made else self._read.get(value, value)

    def _node(self, node: ir.Node) -> ir.Node:
        attributes = [self._attribute(attribute) for attribute in node.attributes.values()]
        made = ir.Node(
            node.domain,
            node.op_type,
            [self._outside(value) for value in node.inputs],
            [attribute for attribute in attributes if attribute is not None],
            overload=node.overload,
            outputs=[self.made[value] for value in node.outputs],
            version=node.version,
            name=node.name,
            doc_string=node.doc_string,
            metadata_props=dict(node.metadata_props),
            device_configurations=tuple(map(self._configuration, node.device_configurations)),
        )
        made.meta.update(node.meta)
        return made

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
        if given.is_ref():  # the call stands in another function and hands on that one's attribute
            return ir.RefAttr(attribute.name, given.ref_attr_name or "", given.type, doc_string=attribute.doc_string)
        return ir.Attr(attribute.name, given.type, given.value, doc_string=attribute.doc_string)

    def _configuration(self, configuration: ir.NodeDeviceConfiguration) -> ir.NodeDeviceConfiguration:
        specs = (dataclasses.replace(spec, value=self._outside(spec.value)) for spec in configuration.sharding_specs)
        return dataclasses.replace(configuration, sharding_specs=tuple(specs))


def _rename_values(values: Iterable[ir.Value], taken: set[str], wish: Callable[[str], str]) -> None:
    for value in values:
        if value.name:
            value.name = free_name(wish(value.name), taken)
