"""Throw nodes away, whatever reads them: for parts of a graph that go as a whole."""

from __future__ import annotations

from collections.abc import Iterable

import onnx_ir as ir

from ndld_flow.graph.edit.node_pieces import deep_nodes


def drop_nodes(nodes: Iterable[ir.Node]) -> None:
    """Take nodes of one graph out of it. They, and all in their bodies, no longer count as readers of anything."""
    nodes = list(nodes)
    for node in deep_nodes(nodes):
        for index in range(len(node.inputs)):
            node.replace_input_with(index, None)
    if nodes and nodes[0].graph is not None:
        nodes[0].graph.remove(nodes)
