"""Removal of nodes, and of what becomes unused."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import onnx_ir as ir

from ndld_flow.base.errors import RequestError
from ndld_flow.graph.edit.edited_model import EditedModel
from ndld_flow.graph.edit.neighbourhood import read_values
from ndld_flow.graph.edit.node_pieces import deep_nodes, outermost
from ndld_flow.graph.edit.schemas import Schemas, port_index
from ndld_flow.graph.edit.wiring import hand_out
from ndld_flow.models.node_details import is_constant
from ndld_flow.models.scopes import node_label, own_subgraphs


def prune_values(values: Iterable[ir.Value]) -> list[ir.Node]:
    """Remove unused tensors among these, with their producers and everything that only these needed.

    Inputs stay. Returns the removed nodes.
    """
    removed: list[ir.Node] = []
    waiting = list(values)
    while waiting:
        value = waiting.pop()
        node = value.producer()
        if is_used(value) or value.is_graph_input():
            continue
        if node is None:
            _drop_initializer(value)
        elif node.graph is not None and not any(map(is_used, node.outputs)):
            waiting += list(read_values(node))
            remove_node(node)
            removed.append(node)
    return removed


def is_used(value: ir.Value) -> bool:
    """Return whether a node reads the tensor, or a graph outputs it."""
    return bool(value.uses()) or value.is_graph_output()


def remove_node(node: ir.Node) -> None:
    """Remove an unused node and its subgraphs."""
    _release_bodies(node)
    assert node.graph is not None
    node.graph.remove(node, safe=True)


def _release_bodies(node: ir.Node) -> None:
    for _, body in own_subgraphs(node):
        body.outputs.clear()
        for inner in reversed(tuple(body)):
            remove_node(inner)


def _drop_initializer(value: ir.Value) -> None:
    if value.is_initializer() and value.graph is not None:
        value.graph.initializers.pop(value.name or "")


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

    The input is the one of number or name `through`, else the first of the output's dtype and shape that is no
    constant, or what comes nearest to this. Raises `RequestError` for a node that has none.
    """
    schemas = Schemas(edited.model)
    for node in outermost(selected):
        used = next((value for value in node.outputs if value.uses() or value.is_graph_output()), None)
        if used is None:
            continue
        source = _likest_input(node, used)
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
            hand_out(edited, used, source)


def _likest_input(node: ir.Node, output: ir.Value) -> ir.Value | None:
    """Return the input most similar to the output, by these criteria in order: type, not constant, shape."""

    def unlikeness(value: ir.Value) -> tuple[bool, bool, bool]:
        other_dtype = None not in (value.dtype, output.dtype) and value.dtype != output.dtype
        other_shape = None not in (value.shape, output.shape) and value.shape != output.shape
        return other_dtype, _is_constant(value), other_shape

    return min((value for value in node.inputs if value is not None), key=unlikeness, default=None)


def _is_constant(value: ir.Value) -> bool:
    producer = value.producer()
    return (value.is_initializer() and not value.is_graph_input()) or (producer is not None and is_constant(producer))


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
