"""Copies of nodes that stand where their originals stand."""

from __future__ import annotations

from collections.abc import Iterable

import onnx_ir as ir

from ndld_flow.graph.edit.cloning import Renaming, copy_nodes
from ndld_flow.graph.edit.edited_model import EditedModel
from ndld_flow.graph.edit.node_pieces import outermost
from ndld_flow.graph.edit.renaming import names_around


def copy_beside(edited: EditedModel, selected: Iterable[ir.Node], prefix: str) -> int:
    """Copy nodes with their bodies, into the graphs they stand in; returns how many."""
    nodes = outermost(selected)
    read: dict[ir.Value, ir.Value | None] = {}
    for graph in dict.fromkeys(node.graph for node in nodes):
        assert graph is not None
        copies = copy_nodes([node for node in nodes if node.graph is graph], read)
        Renaming(*names_around(edited.model, graph), prefix=prefix).rename(copies.nodes)
        read |= copies.values
        graph.extend(copies.nodes)
    return len(nodes)
