"""Remove what nothing depends on any more, and nothing that was unused before."""

from __future__ import annotations

from collections.abc import Iterable

import onnx_ir as ir

from ndld_flow.graph.edit.neighbourhood import read_values
from ndld_flow.models.scopes import own_subgraphs


def prune_values(values: Iterable[ir.Value]) -> list[ir.Node]:
    """Remove those of the tensors that nothing reads, with the nodes that make them and what only these needed.

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
    """Whether a node reads it, or a graph hands it out."""
    return bool(value.uses()) or value.is_graph_output()


def remove_node(node: ir.Node) -> None:
    """Remove a node that nothing reads; what stands in its bodies no longer counts as a reader."""
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
