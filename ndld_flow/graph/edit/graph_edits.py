"""Graph edits by operations: those of `sanitize`, connections between nodes, and temporarily inferred shapes."""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager

import numpy as np
import onnx_ir as ir

from ndld_flow.base.errors import RequestError
from ndld_flow.base.text import first_of
from ndld_flow.graph.edit.edited_model import EditedModel
from ndld_flow.graph.edit.names import Nesting
from ndld_flow.graph.edit.node_groups import Neighbourhood, deep_nodes
from ndld_flow.graph.edit.schemas import Schemas, check_inputs, port_index
from ndld_flow.graph.sanitize.edits import Edits, detach_initializers_from_inputs
from ndld_flow.models.foreign_shapes import can_infer
from ndld_flow.models.lazy_tensors import StreamedTensor, TransposedTensor
from ndld_flow.models.nodes import (
    add_initializer,
    free_name,
    graph_of,
    identifier,
    is_used,
    node_label,
    precision_metadata,
    read_values,
    remove_node,
)
from ndld_flow.models.shape_inference import infer_shapes


def connect(edited: EditedModel, nodes: Iterable[ir.Node], which: int | str, name: str) -> int:
    """Connect an input of nodes to another tensor, by its name. Returns the number of changes.

    Raises `RequestError` for an input that the operator does not have, a tensor that the node cannot see or take, and
    if the tensor depends on the node.
    """
    nesting, schemas = Nesting(edited.model), Schemas(edited.model)
    before: dict[ir.Value, set[ir.Node]] = {}
    changed = 0
    for node in nodes:
        with errors_of(node):
            assert isinstance(node.graph, ir.Graph)
            value, operator = nesting.value(name, node.graph), schemas.of(node)
            index = port_index(operator, which, len(node.inputs))
            inputs = [*node.inputs, *[None] * (index + 1 - len(node.inputs))]
            changed += inputs[index] is not value
            inputs[index] = value
            if operator is not None:
                check_inputs(operator, inputs)
            if value not in before:
                before[value] = ancestors(edited.model, value)
            if any(near in before[value] for near in (node, *nesting.owners(node.graph))):
                raise RequestError(_circle(edited.model, nesting, node, value))
            set_inputs(node, inputs)
    return changed


def replace_output(edited: EditedModel, old: ir.Value, new: ir.Value) -> None:
    """Replace the output `old` of a graph by `new`, under the same name.

    An Identity is inserted where the new tensor cannot have the name: it belongs to another graph, or is already an
    output. Raises `RequestError` for an output that is also an input.
    """
    graph = old.graph
    assert graph is not None
    if old.is_graph_input():
        raise RequestError(f"{old.name!r} is both an input and an output: nothing can be inserted between them")
    producer = new.producer()
    if producer is None or producer.graph is not graph or new.is_graph_output():
        copied = ir.Value(name=edited.fresh_name(f"{old.name}_copy"), type=new.type, shape=new.shape)
        graph.append(ir.node("Identity", [new], outputs=[copied], name=edited.fresh_name("Identity")))
        new = copied
    name = old.name
    old.name = edited.fresh_name(f"{name}_before")
    new.name = name
    graph.outputs[:] = [new if output is old else output for output in graph.outputs]
    if new.type is None:  # the output of another operator may have another type
        infer_shapes(edited.model)
    if new.type is None:
        new.type, new.shape = old.type, old.shape


def put_outputs(graph: ir.Graph, gone: Collection[ir.Value], new: Iterable[ir.Value]) -> None:
    """Put new outputs of a graph in the place of the first of those that are gone."""
    index = next(index for index, value in enumerate(graph.outputs) if value in gone)
    rest = [value for value in graph.outputs if value not in gone]
    graph.outputs[:] = [*rest[:index], *new, *rest[index:]]


def set_inputs(node: ir.Node, inputs: Sequence[ir.Value | None]) -> None:
    """Set the inputs of a node."""
    node.resize_inputs(len(inputs))
    for index, value in enumerate(inputs):
        if node.inputs[index] is not value:
            node.replace_input_with(index, value)


@contextmanager
def errors_of(node: ir.Node) -> Iterator[None]:
    """Add the node's name to errors."""
    try:
        yield
    except RequestError as error:
        raise error.with_text(f"node {node_label(node)!r}: {error}") from None


def _circle(model: ir.Model, nesting: Nesting, reader: ir.Node, value: ir.Value) -> str:
    """Describe the path from a node to a tensor that depends on it."""
    around, producer = Neighbourhood(model), value.producer()
    came_from: dict[ir.Node, ir.Node | None] = {reader: None}
    waiting = deque([reader])
    while waiting and producer not in came_from:
        node = waiting.popleft()
        # A subgraph is part of its node.
        for near in (*around.consumers(node), *nesting.owners(node.graph)):
            if near not in came_from:
                came_from[near] = node
                waiting.append(near)
    names, step = [], producer
    while step is not None:
        names.append(node_label(step))
        step = came_from[step]
    names.reverse()
    path = " -> ".join(names if len(names) < 8 else [*names[:4], "...", *names[-3:]])
    return f"{value.name!r} depends on this node: {path}; that would be a cycle"


def ancestors(model: ir.Model, value: ir.Value) -> set[ir.Node]:
    """Return the nodes that a tensor depends on."""
    return Neighbourhood(model).before(value) if value.producer() is not None else set()


def prune_values(values: Iterable[ir.Value]) -> list[ir.Node]:
    """Remove unused tensors among these, with their ancestors and everything that only these needed.

    Inputs are kept. Returns the removed nodes.
    """
    removed: list[ir.Node] = []
    waiting = list(values)
    while waiting:
        value = waiting.pop()
        node = value.producer()
        if is_used(value) or value.is_graph_input():
            continue
        if node is None and value.is_initializer() and value.graph is not None:
            value.graph.initializers.pop(value.name or "")
        elif node is not None and node.graph is not None and not any(map(is_used, node.outputs)):
            waiting += list(read_values(node))
            remove_node(node)
            removed.append(node)
    return removed


def drop_nodes(nodes: Iterable[ir.Node]) -> None:
    """Remove nodes of one graph. They and the nodes of their subgraphs are disconnected from all tensors."""
    nodes = list(nodes)
    for node in deep_nodes(nodes):
        for index in range(len(node.inputs)):
            node.replace_input_with(index, None)
    if nodes and nodes[0].graph is not None:
        nodes[0].graph.remove(nodes)


_READ_BYTES = 64 * 2**20
"""Larger constants are not read to decide whether a rule matches."""
_NAMED = 5
_Inputs = Sequence[ir.Value | None]
_Attributes = Mapping[str, ir._convenience.SupportedAttrTypes] | None


class OperationEdits(Edits):
    """Edits of a model by an operation. Initializers that are inputs, as all are in IR version 3, become constants."""

    def __init__(self, edited: EditedModel) -> None:
        super().__init__(edited.model, _READ_BYTES)
        self._names = edited.names() | {""}
        detach_initializers_from_inputs(self)

    def opset_of(self, node: ir.Node) -> int:
        """Return the version of the default domain for a node."""
        return self.opset(graph_of(node))

    def new_name(self, wanted: str) -> str:
        return free_name(identifier(wanted), self._names)

    def put_before(
        self, anchor: ir.Node, op_type: str, inputs: _Inputs, attributes: _Attributes = None, wish: str = ""
    ) -> ir.Value:
        """Insert a new node before another; returns its output."""
        node = self._new_node(op_type, inputs, attributes, wish or f"{anchor.name or anchor.op_type}_{op_type}")
        graph_of(anchor).insert_before(anchor, node)
        return node.outputs[0]

    def put_for(
        self, node: ir.Node, op_type: str, inputs: _Inputs, attributes: _Attributes = None, wish: str = ""
    ) -> ir.Value:
        """Insert a new node that replaces a part of another, before it and with its requested precision."""
        value = self.put_before(node, op_type, inputs, attributes, wish)
        new = value.producer()
        assert new is not None
        new.metadata_props.update(precision_metadata(node))
        return value

    def put_first(
        self, graph: ir.Graph, op_type: str, inputs: _Inputs, attributes: _Attributes = None, wish: str = ""
    ) -> ir.Value:
        """Insert a new node before all others of a graph; returns its output."""
        if len(graph):
            return self.put_before(graph[0], op_type, inputs, attributes, wish)
        return self.put_last(graph, op_type, inputs, attributes, wish)

    def put_last(
        self, graph: ir.Graph, op_type: str, inputs: _Inputs, attributes: _Attributes = None, wish: str = ""
    ) -> ir.Value:
        """Append a new node to a graph; returns its output."""
        node = self._new_node(op_type, inputs, attributes, wish or op_type)
        graph.append(node)
        return node.outputs[0]

    def _new_node(self, op_type: str, inputs: _Inputs, attributes: _Attributes, wish: str) -> ir.Node:
        node = ir.node(op_type, inputs, attributes, name=self.new_name(wish))
        node.outputs[0].name = self.new_name(f"{wish}_output")
        return node

    def add_constant(self, graph: ir.Graph, tensor: ir.TensorProtocol, wanted: str) -> ir.Value:
        """Add a constant like `add_initializer`, from a tensor that may be on disk."""
        tensor.name = self.new_name(wanted)
        if self.may_hold_initializers(graph):
            return add_initializer(graph, tensor)
        return self.put_first(graph, "Constant", [], {"value": tensor}, wanted)

    def constant_like(self, graph: ir.Graph, number: float, dtype: ir.DataType, wish: str) -> ir.Value:
        """Add a scalar of an element type."""
        return self.add_initializer(graph, np.array(number, dtype.numpy()), wish)

    def ints(self, graph: ir.Graph, numbers: Sequence[int], wish: str) -> ir.Value:
        """Add a vector of int64."""
        return self.add_initializer(graph, np.array(numbers, np.int64), wish)


def read_instead(old: ir.Value, new: ir.Value) -> None:
    """Replace a value for its readers, except the new value's producer, also in subgraphs and as an output."""
    for use in tuple(old.uses()):
        if use.node is not new.producer():
            use.node.replace_input_with(use.idx, new)
    graph = old.graph
    if graph is not None and old.is_graph_output():
        graph.outputs[:] = [new if output is old else output for output in graph.outputs]


@contextlib.contextmanager
def known_shapes(model: ir.Model) -> Iterator[None]:
    """Infer shapes and types of all tensors for the duration of the context.

    Afterwards the recorded shapes are restored and new tensors have none: later operations may change them.
    """
    outputs = [(value.name, value.shape, value.type) for value in model.graph.outputs]
    recorded = {value: (value.shape, value.type) for value in _computed_values(model)}
    for value in recorded:
        producer = value.producer()
        if producer is not None and can_infer(producer):
            value.shape = None
    infer_shapes(model)
    try:
        yield
    finally:
        for value in _computed_values(model):
            value.shape, value.type = recorded.get(value, (None, value.type))
        for value, (name, shape, type_) in zip(model.graph.outputs, outputs, strict=False):
            if value.name == name:
                value.shape, value.type = shape, type_


def _computed_values(model: ir.Model) -> Iterator[ir.Value]:
    """Yield outputs of all nodes; local functions have no shapes."""
    for graph in model.graphs():
        for node in graph:
            yield from node.outputs


def label(node: ir.Node) -> str:
    """Return a node's name for messages: `gemm_3 (Gemm)`."""
    name = node.name or next((value.name for value in node.outputs if value.name), "")
    return f"{name} ({node.op_type})" if name else f"a {node.op_type}"


def some_of(names: Sequence[str]) -> str:
    """Return the first five names, and the number of others."""
    return first_of(names, _NAMED)


def transposed(tensor: ir.TensorProtocol, perm: Sequence[int]) -> ir.TensorProtocol:
    """Return the transposed tensor."""
    if isinstance(tensor, ir.ExternalTensor | StreamedTensor):
        return TransposedTensor(tensor, perm, tensor.name or "")
    return ir.Tensor(np.ascontiguousarray(tensor.numpy().transpose(perm)), dtype=tensor.dtype)
