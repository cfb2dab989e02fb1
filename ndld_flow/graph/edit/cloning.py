"""Copies of nodes and of whole graphs, with what they read replaced.

onnx_ir's own `clone` wants sorted nodes and takes no map of what to read instead; a model that is being edited is not
sorted, and a copy that goes elsewhere reads other tensors. Weights are shared with the original, never copied.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

import onnx_ir as ir

from ndld_flow.graph.edit.neighbourhood import read_values
from ndld_flow.models.scopes import own_subgraphs

Values = Mapping[ir.Value, ir.Value | None]
"""Tensor -> replacement to read; None for an omitted optional input."""
Attributes = Mapping[str, ir.Attr]
"""Attribute of a function -> its value at the call."""


@dataclass(frozen=True)
class Copies:
    """Copies that belong to no graph yet and have the names of their originals: see `Renaming`."""

    nodes: list[ir.Node]
    values: dict[ir.Value, ir.Value]
    """Original tensor -> its copy, including tensors of subgraphs."""


def captured_values(nodes: Iterable[ir.Node]) -> list[ir.Value]:
    """Return the outer tensors that nodes and their subgraphs read, in the order of first use."""
    nodes = list(nodes)
    made = {value for node in nodes for value in node.outputs}
    return list(dict.fromkeys(value for node in nodes for value in read_values(node) if value not in made))


def captured_by(graph: ir.Graph) -> list[ir.Value]:
    """Return the tensors of enclosing graphs that a subgraph reads, in the order of first use."""
    own = {*graph.inputs, *graph.initializers.values()}
    return [value for value in captured_values(graph) if value not in own]


def copy_nodes(nodes: Iterable[ir.Node], read: Values | None = None, attributes: Attributes | None = None) -> Copies:
    """Copy nodes with their subgraphs. Copies read each other's outputs, and from outside the replacements in `read`.

    With `attributes`, references to attributes of a function become these; those of a name it lacks are dropped, as a
    call means that leaves an attribute without a default out.
    """
    copier = _Copier(dict(read or {}), attributes)
    return Copies(copier.nodes(list(nodes)), copier.made)


def copy_graph(graph: ir.Graph, read: Values | None = None, attributes: Attributes | None = None) -> ir.Graph:
    """Copy a graph, with `read` and `attributes` as for `copy_nodes`; captured outer tensors stay captured."""
    return _Copier(dict(read or {}), attributes).graph(graph)


class Renaming:
    """New names for nodes and tensors that are added to a model. A node and a tensor may keep a common name."""

    def __init__(
        self, taken_nodes: Collection[str], taken_values: Collection[str], prefix: str = "", if_taken: str = ""
    ) -> None:
        """All names get `prefix`; names that are already used get `if_taken`, and a number if that does not suffice."""
        self._nodes = _FreeNames(taken_nodes, prefix, if_taken)
        self._values = _FreeNames(taken_values, prefix, if_taken)

    @property
    def made(self) -> set[str]:
        """All new names."""
        return self._nodes.made | self._values.made

    def take_made(self, taken: set[str]) -> None:
        """Add the new names to `taken`, so that later nodes and tensors do not get them."""
        for names in (self._nodes, self._values):
            taken |= names.made
            names.made.clear()

    def rename(self, nodes: Iterable[ir.Node]) -> None:
        """Rename nodes, their outputs, and everything in their subgraphs."""
        for node in nodes:
            if node.name:
                node.name = self._nodes.like(node.name)
            self.rename_values(node.outputs)
            for _, body in own_subgraphs(node):
                self.rename_graph(body)

    def rename_graph(self, graph: ir.Graph) -> None:
        """Rename everything in a graph."""
        initializers = list(graph.initializers.values())
        graph.initializers.clear()  # an initializer may get the present name of another
        self.rename_values(dict.fromkeys([*graph.inputs, *initializers]))
        for value in initializers:
            graph.initializers.add(value)
        self.rename(graph)

    def rename_values(self, values: Iterable[ir.Value]) -> None:
        """Rename tensors without a producer, or the outputs of one node."""
        for value in values:
            if value.name:
                value.name = self._values.like(value.name)


class _FreeNames:
    def __init__(self, taken: Collection[str], prefix: str, if_taken: str) -> None:
        self._taken, self._prefix, self._if_taken = taken, prefix, if_taken
        self.made: set[str] = set()
        self._numbers: dict[str, int] = {}
        """The last number for each name: counting from the start would be slow for thousands of copies."""

    def like(self, name: str) -> str:
        wish = f"{self._prefix}{name}"
        wish = f"{self._if_taken}{wish}" if self._is_taken(wish) else wish
        number = self._numbers.get(wish, 1)
        found = wish if number == 1 else f"{wish}_{number}"
        while self._is_taken(found):
            number += 1
            found = f"{wish}_{number}"
        self._numbers[wish] = number
        self.made.add(found)
        return found

    def _is_taken(self, name: str) -> bool:
        return name in self._taken or name in self.made


def copy_value(value: ir.Value) -> ir.Value:
    """Return a tensor of the same name, type and shape without a producer; a constant shares its data."""
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
        """Return the tensor that a copy reads where its original reads `value`."""
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
        if given.is_ref():  # the call is in another function and forwards its attribute
            return ir.RefAttr(attribute.name, given.ref_attr_name or "", given.type, doc_string=attribute.doc_string)
        return ir.Attr(attribute.name, given.type, given.value, doc_string=attribute.doc_string)

    def _configuration(self, configuration: ir.NodeDeviceConfiguration) -> ir.NodeDeviceConfiguration:
        specs = (dataclasses.replace(spec, value=self._outside(spec.value)) for spec in configuration.sharding_specs)
        return dataclasses.replace(configuration, sharding_specs=tuple(specs))
