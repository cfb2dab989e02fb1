"""Connections between nodes, and the removal of nodes and of everything that becomes unused."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager

import onnx_ir as ir

from ndld_flow.base.errors import RequestError
from ndld_flow.graph.edit.edited_model import EditedModel
from ndld_flow.graph.edit.names import Nesting
from ndld_flow.graph.edit.node_groups import Neighbourhood, deep_nodes, read_values
from ndld_flow.graph.edit.schemas import Schemas, check_inputs, port_index
from ndld_flow.models.scopes import node_label, own_subgraphs
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
        raise RequestError(f"node {node_label(node)!r}: {error}") from None


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


def is_used(value: ir.Value) -> bool:
    """Return whether a node reads the tensor, or a graph outputs it."""
    return bool(value.uses()) or value.is_graph_output()


def remove_node(node: ir.Node) -> None:
    """Remove an unused node and its subgraphs."""
    for _, body in own_subgraphs(node):
        body.outputs.clear()
        for inner in reversed(tuple(body)):
            remove_node(inner)
    assert node.graph is not None
    node.graph.remove(node, safe=True)


def drop_nodes(nodes: Iterable[ir.Node]) -> None:
    """Remove nodes of one graph. They and the nodes of their subgraphs are disconnected from all tensors."""
    nodes = list(nodes)
    for node in deep_nodes(nodes):
        for index in range(len(node.inputs)):
            node.replace_input_with(index, None)
    if nodes and nodes[0].graph is not None:
        nodes[0].graph.remove(nodes)
