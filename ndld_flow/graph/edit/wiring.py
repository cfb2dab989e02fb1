"""Connections between nodes, and the removal of nodes and of everything that becomes unused."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager

import onnx_ir as ir

from ndld_flow.base.errors import RequestError
from ndld_flow.graph.edit.edited_model import EditedModel
from ndld_flow.graph.edit.names import Nesting
from ndld_flow.graph.edit.node_groups import Neighbourhood, deep_nodes, outermost, read_values
from ndld_flow.graph.edit.schemas import Schemas, check_inputs, port_at, port_index
from ndld_flow.models.node_details import is_constant
from ndld_flow.models.scopes import node_label, own_subgraphs
from ndld_flow.models.shape_inference import infer_shapes


def connect(edited: EditedModel, nodes: Iterable[ir.Node], which: int | str, name: str) -> int:
    """Connect an input of nodes to another tensor, by its name. Returns the number of changes.

    Raises `RequestError` for an input that the operator does not have, a tensor that the node cannot see or take, and
    when the tensor depends on the node.
    """
    nesting, schemas = Nesting(edited.model), Schemas(edited.model)
    ancestors: dict[ir.Value, set[ir.Node]] = {}
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
            if value not in ancestors:
                ancestors[value] = _ancestors(edited.model, value)
            if any(near in ancestors[value] for near in (node, *nesting.owners(node.graph))):
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
    ancestors = _ancestors(edited.model, new)
    changed = left = 0
    for use in tuple(old.uses()):
        reader = use.node
        if readers is not None and reader not in readers:
            continue
        if any(node in ancestors for node in (reader, *nesting.owners(reader.graph))):
            left += 1
            continue
        if not nesting.sees(reader.graph, new):
            raise RequestError(f"node {node_label(reader)!r} reads {old.name!r} and cannot see {new.name!r}")
        reader.replace_input_with(use.idx, new)
        changed += 1
    if outputs and old.is_graph_output():
        replace_output(edited, old, new)
        changed += 1
    return changed, left


def replace_output(edited: EditedModel, old: ir.Value, new: ir.Value) -> None:
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


def _ancestors(model: ir.Model, value: ir.Value) -> set[ir.Node]:
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


def remove_nodes(edited: EditedModel, selected: Sequence[ir.Node]) -> None:
    """Remove nodes with their subgraphs. Weights that become unused stay.

    Raises `RequestError` for outputs that others read, and for graph outputs.
    """
    nodes = outermost(selected)
    gone = set(deep_nodes(nodes))
    for node in nodes:
        for value in node.outputs:
            _check_unused(node, value, gone)
    for graph in dict.fromkeys(node.graph for node in nodes):
        drop_nodes([node for node in nodes if node.graph is graph])


def bridge_nodes(edited: EditedModel, selected: Sequence[ir.Node], through: int | str | None) -> None:
    """Connect all readers of a node's output to one of its inputs; graph outputs keep their names.

    `through` is the index or name of this input. By default it is the first that has the output's dtype, is no
    constant, and has the output's shape, or comes closest to that. Raises `RequestError` for a node without inputs.
    """
    schemas = Schemas(edited.model)
    for node in outermost(selected):
        used = next((value for value in node.outputs if value.uses() or value.is_graph_output()), None)
        if used is None:
            continue
        source = _most_similar_input(node, used)
        if through is None and any(own_subgraphs(node)):
            raise RequestError(f"node {node_label(node)!r} has subgraphs: give by `through` the input that replaces it")
        if through is not None:
            index = port_index(schemas.of(node), through, len(node.inputs) - 1)
            source = node.inputs[index] if index < len(node.inputs) else None
        if source is None:
            raise RequestError(f"node {node_label(node)!r} has no input to reconnect to {used.name!r}")
        for use in used.uses():
            use.node.replace_input_with(use.idx, source)
        if used.is_graph_output():
            replace_output(edited, used, source)


def _most_similar_input(node: ir.Node, output: ir.Value) -> ir.Value | None:
    """Return the input most similar to the output, by these criteria in order: type, not constant, shape."""

    def unlikeness(value: ir.Value) -> tuple[bool, bool, bool]:
        other_dtype = None not in (value.dtype, output.dtype) and value.dtype != output.dtype
        other_shape = None not in (value.shape, output.shape) and value.shape != output.shape
        producer = value.producer()
        constant = value.is_initializer() and not value.is_graph_input()
        return other_dtype, constant or (producer is not None and is_constant(producer)), other_shape

    return min((value for value in node.inputs if value is not None), key=unlikeness, default=None)


def _check_unused(node: ir.Node, value: ir.Value, gone: set[ir.Node]) -> None:
    readers = [node_label(reader) for reader in value.consumers() if reader not in gone]
    if readers:
        shown = ", ".join(map(repr, readers[:3])) + (f" and {len(readers) - 3} more" if len(readers) > 3 else "")
        raise RequestError(
            f"{shown} read {value.name!r}, an output of {node_label(node)!r}; remove them too, "
            "or set `bridge: true` to connect them to its input"
        )
    if value.is_graph_output():
        raise RequestError(
            f"output {value.name!r} of the model is produced by {node_label(node)!r}; remove the output first, "
            "or set `bridge: true` to connect it to the node's input"
        )
