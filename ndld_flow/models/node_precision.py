"""Precision constraints of nodes, stored in their metadata."""

from __future__ import annotations

import onnx_ir as ir

from ndld_flow.records.layer_arithmetic import PRECISION_KEY

FLOATING: dict[str, ir.DataType] = {
    "fp32": ir.DataType.FLOAT,
    "fp16": ir.DataType.FLOAT16,
    "bf16": ir.DataType.BFLOAT16,
}
"""Precisions to which a Cast converts any other."""
NOT_FP16 = frozenset({"fp32", "bf16"})
"""Precisions that are requested for their range."""
QUANTIZED: dict[str, frozenset[ir.DataType]] = {
    "int8": frozenset({ir.DataType.INT8}),
    "fp8": frozenset({ir.DataType.FLOAT8E4M3FN, ir.DataType.FLOAT8E5M2}),
    "int4": frozenset({ir.DataType.INT4}),
}
"""Precisions that need scales: Q/DQ nodes."""
INTEGERS: dict[str, ir.DataType] = {
    "int64": ir.DataType.INT64,
    "int32": ir.DataType.INT32,
    "uint8": ir.DataType.UINT8,
    "bool": ir.DataType.BOOL,
}
"""Precisions that can only be asserted: converting to them would change the results."""


def precision_of(node: ir.Node) -> str:
    """Return the requested precision of a node; empty if there is none."""
    return node.metadata_props.get(PRECISION_KEY, "")


def precision_metadata(node: ir.Node) -> dict[str, str]:
    """Return the metadata for a node that replaces this one."""
    precision = precision_of(node)
    return {PRECISION_KEY: precision} if precision else {}


def constraints_of(model: ir.Model) -> dict[str, str]:
    """Return node -> its requested precision, subgraphs included."""
    return {n.name: precision for n in model.graph.all_nodes() if n.name and (precision := precision_of(n))}


def same_precision(*nodes: ir.Node) -> bool:
    """Return whether nodes may be merged: all have the same constraint, or none has any."""
    return len({precision_of(node) for node in nodes}) == 1
