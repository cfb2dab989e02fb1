"""Unique names for all nodes and tensors of a model."""

from __future__ import annotations

from collections.abc import Iterable

import onnx_ir as ir

from ndld_flow.graph.sanitize.edits import Edits
from ndld_flow.models.unique_names import free_name


def make_names_unique(edits: Edits) -> None:
    """Make names unique; the first of several equal names is kept."""
    _name_scope(tuple(edits.model.graphs()))
    for function in edits.model.functions.values():
        _name_scope((function.graph, *function.subgraphs()))


def _name_scope(graphs: tuple[ir.Graph, ...]) -> None:
    top = graphs[0]
    fixed = {value.name for value in (*top.inputs, *top.outputs) if value.name}
    taken = set(fixed)
    keepers = {id(value) for value in (*top.inputs, *top.outputs)}
    node_names: set[str] = set()
    for graph in graphs:
        values = [*graph.inputs, *graph.initializers.values(), *(out for node in graph for out in node.outputs)]
        for value in values:
            if id(value) not in keepers and value.name:
                keepers.add(id(value))
                value.name = free_name(value.name, taken)
        for node in graph:
            node.name = free_name(node.name or f"{node.op_type}_{_first_name(node.outputs)}", node_names)


def _first_name(values: Iterable[ir.Value]) -> str:
    return next((value.name for value in values if value.name), "unnamed")
