"""How much a node computes for what it reads and writes."""

from __future__ import annotations

import math
from collections.abc import Sequence

import onnx_ir as ir

from ndld_flow.models.op_signatures import is_op


def intensity(node: ir.Node) -> float:
    """Multiply-accumulates for each element of activations read and written, from the shape of the weight.

    0 without a constant weight, and for a convolution whose output is one pixel: that is too little work to count.
    """
    weight = node.inputs[1] if len(node.inputs) > 1 else None
    if weight is None or weight.const_value is None:
        return 0.0
    shape = weight.const_value.shape.numpy()
    if is_op(node, "Conv", "ConvTranspose"):
        return _of_convolution(node, shape)
    rows, columns = shape[-2:] if len(shape) > 1 else (shape[0], 1)
    return rows * columns / (rows + columns)


def _of_convolution(node: ir.Node, shape: Sequence[int]) -> float:
    """Of one pixel: of the output for Conv, of the input for ConvTranspose."""
    if _is_one_pixel(node.outputs[0]):
        return 0.0
    strides = node.attributes.get("strides")
    area = math.prod(strides.as_ints()) if strides is not None else 1
    groups = node.attributes.get_int("group", 1)
    many, few = shape[0], shape[1] * groups * area
    return math.prod(shape) / (many + few)


def _is_one_pixel(value: ir.Value) -> bool:
    return value.shape is not None and len(value.shape) > 2 and all(dim == 1 for dim in tuple(value.shape)[2:])
