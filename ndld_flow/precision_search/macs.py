"""Which part of a model's multiply-accumulates some of its nodes do."""

from __future__ import annotations

from collections.abc import Collection, Mapping

import onnx_ir as ir

from ndld_flow.models.type_groups import constant_tensor
from ndld_flow.profiles.read.multiply_accumulates import Shape, count_macs


def macs_share(nodes: Collection[ir.Node], graph: ir.Graph, shapes: Mapping[str, Shape]) -> float | None:
    """Fraction that `nodes` do of what their graph does; None where no node has a count.

    `shapes` are those of its tensors by name.
    """
    counted = {node: _macs(node, shapes) for node in graph}
    total = sum(counted.values())
    return sum(counted.get(node, 0) for node in nodes) / total if total else None


def _macs(node: ir.Node, shapes: Mapping[str, Shape]) -> int:
    inputs = [_shape(value, shapes) for value in node.inputs]
    outputs = [_shape(value, shapes) for value in node.outputs]
    attributes = {name: attribute.value for name, attribute in node.attributes.items()}
    return count_macs(node.op_type, inputs, outputs, attributes) or 0


def _shape(value: ir.Value | None, shapes: Mapping[str, Shape]) -> Shape | None:
    if value is None:
        return None
    tensor = constant_tensor(value)
    if tensor is not None:
        return tuple(tensor.shape.numpy())
    return shapes.get(value.name or "")
