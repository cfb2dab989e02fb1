"""Nodes that have to stay in the precision they are in: they read its bits, or nothing is known about them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import onnx_ir as ir

from ndld_flow.base.errors import ModelError
from ndld_flow.models.control_flow_ties import CONTROL_FLOW
from ndld_flow.models.element_types import Types, subgraphs_of, with_element
from ndld_flow.models.op_signatures import Signature, is_op, signature_of
from ndld_flow.models.type_groups import constant_tensor

Stored = Mapping[ir.Value, ir.DataType]


def native_nodes(model: ir.Model, types: Types, stored: Stored, source: Path) -> set[ir.Node]:
    """Nodes with stored inputs or outputs that cannot be fp32 in their place.

    Raises `ModelError` where one of them hands on sequences or has a body: no Cast can stand around those.
    """
    nodes = [node for node in model.graph.all_nodes() if _touches(node, stored)]
    native = {node for node in nodes if not _may_be_fp32(node, types, stored, model.opset_imports)}
    for node in native:
        ports = [value for value in (*node.inputs, *node.outputs) if value is not None and value in stored]
        if any(subgraphs_of(node)) or any(not types[value].startswith("tensor") for value in ports):
            raise ModelError(
                f"{source}: its stored precision cannot be emulated: nothing is known about operator {node.op_type} "
                f"({node.name!r}), which reads or makes more than tensors at reduced precision."
            )
    return native


def _touches(node: ir.Node, stored: Stored) -> bool:
    return any(value is not None and value in stored for value in (*node.inputs, *node.outputs))


def _may_be_fp32(node: ir.Node, types: Types, stored: Stored, opsets: Mapping[str, int]) -> bool:
    if is_op(node, *CONTROL_FLOW):
        return True
    if is_op(node, "Constant"):
        return constant_tensor(node.outputs[0]) is not None
    if is_op(node, "BitCast"):
        return False
    signature = signature_of(node, opsets)
    return signature is not None and not any(subgraphs_of(node)) and _admits_fp32(node, signature, types, stored)


def _admits_fp32(node: ir.Node, signature: Signature, types: Types, stored: Stored) -> bool:
    ports = [*zip(node.inputs, signature.inputs, strict=False), *zip(node.outputs, signature.outputs, strict=False)]
    return all(
        signature.admits(variable, with_element(types[value], ir.DataType.FLOAT))
        for value, variable in ports
        if value is not None and value in stored
    )
