"""Where an activation ends: values beyond which nothing gets through."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping

import ml_dtypes
import numpy as np
import onnx_ir as ir

from ndld_flow.models.node_details import constant_tensor
from ndld_flow.models.tensors import Array, numpy_dtype
from ndld_flow.samples.generated_values import is_float, is_integer

Bounds = tuple[float, ...]

_BY_OPERATOR: Mapping[str, Bounds] = {
    "Sigmoid": (0.0, 1.0),
    "HardSigmoid": (0.0, 1.0),
    "Tanh": (-1.0, 1.0),
    "Softsign": (-1.0, 1.0),
}


def activation_bounds(node: ir.Node | None) -> Bounds:
    """The values at which what a node gives ends. A Clip's 0 is none of them: it cuts off as a Relu does."""
    if node is None:
        return ()
    if node.op_type == "Cast" and node.inputs[0] is not None:
        return activation_bounds(node.inputs[0].producer())
    if node.op_type == "Clip":
        return tuple(bound for bound in _clip_bounds(node) if bound != 0.0)
    return _BY_OPERATOR.get(node.op_type, ())


def dtype_bounds(dtype: str) -> Bounds:
    """The smallest and largest finite value of a dtype; none for bools and what is no number."""
    found = numpy_dtype(dtype)
    if found is None or not (is_float(found) or is_integer(found)):
        return ()
    if is_integer(found):
        return int(ml_dtypes.iinfo(found).min), int(ml_dtypes.iinfo(found).max)
    return float(ml_dtypes.finfo(found).min), float(ml_dtypes.finfo(found).max)


def count_saturated(values: Array, bounds: Bounds) -> int:
    """Elements that are one of the bounds, as the array's dtype has them."""
    if is_integer(values.dtype):
        ends = {int(bound) for bound in bounds if math.isfinite(bound)}
        return sum(int(np.count_nonzero(values == end)) for end in ends)
    if not is_float(values.dtype):
        return 0
    with np.errstate(over="ignore"):
        rounded = {values.dtype.type(bound) for bound in bounds}
    return sum(int(np.count_nonzero(values == end)) for end in rounded if np.isfinite(end))


def _clip_bounds(node: ir.Node) -> Iterator[float]:
    for name in ("min", "max"):  # attributes until opset 11
        if name in node.attributes:
            yield node.attributes[name].as_float()
    for value in node.inputs[1:3]:
        tensor = constant_tensor(value) if value is not None else None
        if tensor is not None and tensor.size == 1:
            yield float(tensor.numpy().reshape(-1)[0])
