"""Connections: inputs of nodes, readers of tensors, and graph outputs."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager

import onnx_ir as ir

from ndld_flow.base.errors import RequestError
from ndld_flow.graph.edit.edited_model import EditedModel
from ndld_flow.graph.edit.neighbourhood import Neighbourhood
from ndld_flow.graph.edit.nesting import Nesting
from ndld_flow.graph.edit.schemas import Schemas, check_inputs, port_at, port_index
from ndld_flow.models.scopes import node_label
from ndld_flow.models.shape_inference import infer_shapes


def connect(edited: EditedModel, nodes: Iterable[ir.Node], which: int | str, name: str) -> int:
    """Connect an input of nodes to a tensor by name, in place of its present one. Returns the number of changes.

    Raises `RequestError` for an input that the operator does not have, a tensor that the node cannot see or take, and
    when the tensor depends on the node.
    """
    nesting, schemas = Nesting(edited.model), Schemas(edited.model)
    makers: dict[ir.Value, set[ir.Node]] = {}
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
            if value not in makers:
                makers[value] = _makers(edited.model, value)
            if any(near in makers[value] for near in (node, *nesting.owners(node.graph))):
                raise RequestError(_circle(edited.model, nesting, node, value))
            set_inputs(node, inputs)
    return changed


def disconnect(edited: EditedModel, nodes: Iterable[ir.Node], which: int | str) -> int:
    """Disconnect an input of nodes; tensors after it in a variadic input move up. Returns the number of changes.

    Raises `RequestError` for an input that the operator must have.
    """
    schemas = Schemas(edited.model)
    changed = 0
    for node in nodes:
        with errors_of(node):
            operator = schemas.of(node)
            index = port_index(operator, which, len(node.inputs) - 1)
            if index >= len(node.inputs) or node.inputs[index] is None:
                continue
            inputs = list(node.inputs)
            inputs[index] = None
            if operator is not None and port_at(operator, index).kind == "variadic":
                del inputs[index]
            while inputs and inputs[-1] is None:
                inputs.pop()
            if operator is not None:
                check_inputs(operator, inputs)
            set_inputs(node, inputs)
            changed += 1
    return changed


def rewire(
    edited: EditedModel, old: ir.Value, new: ir.Value, readers: Collection[ir.Node] | None, outputs: bool
) -> tuple[int, int]:
    """Connect the readers of a tensor, or some of them, to another tensor.

    Nodes that the other tensor depends on still read the first, to avoid a cycle. With `outputs`, graph outputs are
    replaced too, under their old names. Returns the numbers of changed and of unchanged inputs.

    Raises `RequestError` for a reader that cannot see the new tensor.
    """
    if old is new:
        raise RequestError(f"{old.name!r} cannot replace itself")
    nesting = Nesting(edited.model)
    makers = _makers(edited.model, new)
    changed = left = 0
    for use in tuple(old.uses()):
        reader = use.node
        if readers is not None and reader not in readers:
            continue
        if any(node in makers for node in (reader, *nesting.owners(reader.graph))):
            left += 1
            continue
        if not nesting.sees(reader.graph, new):
            raise RequestError(f"node {node_label(reader)!r} reads {old.name!r} and cannot see {new.name!r}")
        reader.replace_input_with(use.idx, new)
        changed += 1
    if outputs and old.is_graph_output():
        hand_out(edited, old, new)
        changed += 1
    return changed, left


def hand_out(edited: EditedModel, old: ir.Value, new: ir.Value) -> None:
    """Replace the output `old` of a graph by `new`, under the same name.

    An Identity is inserted where the new tensor cannot have the name: it is of another graph, or an output already.
    Raises `RequestError` for an output that is also an input.
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
    """Prefix errors with the node's name."""
    try:
        yield
    except RequestError as error:
        raise RequestError(f"node {node_label(node)!r}: {error}") from None


def _circle(model: ir.Model, nesting: Nesting, reader: ir.Node, value: ir.Value) -> str:
    """Describe the path from a node to a tensor that depends on it."""
    around, maker = Neighbourhood(model), value.producer()
    came_from: dict[ir.Node, ir.Node | None] = {reader: None}
    waiting = deque([reader])
    while waiting and maker not in came_from:
        node = waiting.popleft()
        # A body is part of the node that it belongs to.
        for near in (*around.consumers(node), *nesting.owners(node.graph)):
            if near not in came_from:
                came_from[near] = node
                waiting.append(near)
    names, step = [], maker
    while step is not None:
        names.append(node_label(step))
        step = came_from[step]
    names.reverse()
    way = " -> ".join(names if len(names) < 8 else [*names[:4], "...", *names[-3:]])
    return f"{value.name!r} depends on this node: {way}; that would be a cycle"


def _makers(model: ir.Model, value: ir.Value) -> set[ir.Node]:
    return Neighbourhood(model).before(value) if value.producer() is not None else set()
