"""Removal of unused nodes, initializers and functions."""

from __future__ import annotations

import onnx_ir as ir
from onnx_ir.passes.common import RemoveUnusedFunctionsPass

from ndld_flow.graph.sanitize.edits import Edits
from ndld_flow.models.element_types import subgraphs_of


def remove_unused(edits: Edits) -> None:
    """Remove everything that no output depends on."""
    # Inner graphs from last to first: a node in a branch may be the only reader of one outside.
    for graph in (edits.model.graph, *(f.graph for f in edits.model.functions.values())):
        _remove_unused_nodes(edits, graph)
    for graph in edits.model.graphs():
        _remove_unused_initializers(edits, graph)
    before = len(edits.model.functions)
    RemoveUnusedFunctionsPass()(edits.model)  # type: ignore[no-untyped-call]
    edits.done["unused functions removed"] += before - len(edits.model.functions)


def _remove_unused_nodes(edits: Edits, graph: ir.Graph) -> None:
    for node in reversed(tuple(graph)):
        if not any(out.uses() or out.is_graph_output() for out in node.outputs):
            _release_subgraphs(node)
            edits.remove(node)
            edits.done["unused nodes removed"] += 1
            continue
        for inner in subgraphs_of(node):
            _remove_unused_nodes(edits, inner)


def _release_subgraphs(node: ir.Node) -> None:
    """Remove the nodes inside a removed node, so that they do not count as readers of outer values."""
    for graph in subgraphs_of(node):
        graph.outputs.clear()
        for inner in reversed(tuple(graph)):
            _release_subgraphs(inner)
            graph.remove(inner, safe=True)


def _remove_unused_initializers(edits: Edits, graph: ir.Graph) -> None:
    for name, value in tuple(graph.initializers.items()):
        if not (value.uses() or value.is_graph_output() or value.is_graph_input()):
            del graph.initializers[name]
            edits.done["unused initializers removed"] += 1
