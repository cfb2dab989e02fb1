"""Order of local functions by their calls."""

from __future__ import annotations

from collections.abc import Mapping
from graphlib import TopologicalSorter

import onnx_ir as ir

from ndld_flow.graph.edit.node_pieces import deep_nodes


def callees_first(functions: Mapping[ir.OperatorIdentifier, ir.Function]) -> list[ir.Function]:
    """Return functions after those that they call. Raises `graphlib.CycleError` for recursive ones."""
    calls = {
        key: [called for node in deep_nodes(function.graph) if (called := node.op_identifier()) in functions]
        for key, function in functions.items()
    }
    return [functions[key] for key in TopologicalSorter(calls).static_order()]
