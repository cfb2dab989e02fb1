"""Fusion of BatchNormalization, Mul, Add, Sub and Div by per-channel constants into the preceding node.

All of them compute y = scale * x + shift for each channel, which the weights of Conv, ConvTranspose and
BatchNormalization can absorb. The new weights are computed in float64.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from ndld_flow.graph.sanitize.edits import (
    FLOATS,
    Array,
    Edits,
    dims_of,
    int_attribute,
    is_standard,
    only_reader,
    producer_of_type,
)
from ndld_flow.models.node_precision import same_precision

_ABSORBERS = ("Conv", "ConvTranspose", "BatchNormalization")


@dataclass(frozen=True)
class Affine:
    """y = scale * x + shift; arrays of one number, or one for each channel (axis 1)."""

    scale: Array
    shift: Array

    @property
    def finite(self) -> bool:
        return bool(np.isfinite(self.scale).all() and np.isfinite(self.shift).all())


def fuse_affine(edits: Edits) -> None:
    """Fuse every such node into a Conv, ConvTranspose or BatchNormalization of which it is the only reader."""
    for graph in edits.graphs():
        for node in tuple(graph):
            if is_standard(node) and node.op_type in ("BatchNormalization", "Mul", "Add", "Sub", "Div"):
                _fuse(edits, node)


def _fuse(edits: Edits, node: ir.Node) -> None:
    for index in range(2 if node.op_type in ("Mul", "Add") else 1):
        data = node.inputs[index]
        absorber = producer_of_type(data, *_ABSORBERS)
        if data is None or absorber is None or not only_reader(data) or absorber.graph is not node.graph:
            continue
        if not (same_precision(absorber, node) and edits.may_replace(node.outputs[0], data)):
            return
        affine = _affine_of(edits, node, index, _rank(absorber))
        if affine is not None and affine.finite and _absorb(edits, absorber, affine):
            what = f"{node.op_type} fused into {absorber.op_type}"
            edits.take_over(absorber.outputs[0], node.outputs[0])
            edits.remove(node)
            edits.done[what] += 1
            return


def _rank(absorber: ir.Node) -> int | None:
    dims = dims_of(absorber.inputs[1] if absorber.op_type != "BatchNormalization" else absorber.inputs[0])
    return None if dims is None else len(dims)


def _affine_of(edits: Edits, node: ir.Node, data_index: int, rank: int | None) -> Affine | None:
    if node.op_type == "BatchNormalization":
        return batch_norm_affine(edits, node)
    constant = edits.array(node.inputs[1 - data_index])
    if constant is None or rank is None or edits.constant(node.inputs[1 - data_index]).dtype not in FLOATS:  # type: ignore[union-attr]
        return None
    channel = _per_channel(constant, rank)
    if channel is None:
        return None
    one, zero = np.ones(1), np.zeros(1)
    if node.op_type == "Div":
        return Affine(1.0 / channel, zero) if (channel != 0).all() else None
    return {"Mul": Affine(channel, zero), "Add": Affine(one, channel), "Sub": Affine(one, -channel)}[node.op_type]


def _per_channel(constant: Array, rank: int) -> Array | None:
    """Return the constant as one number per channel, if it broadcasts that way against data of that rank."""
    if constant.ndim > rank or rank < 2:
        return None
    shape = (1,) * (rank - constant.ndim) + constant.shape
    if any(d != 1 for axis, d in enumerate(shape) if axis != 1):
        return None
    return np.asarray(constant, dtype=np.float64).reshape(-1)


def batch_norm_affine(edits: Edits, node: ir.Node) -> Affine | None:
    """Return the scale and shift of a BatchNormalization in inference mode with constant parameters, or None."""
    epsilon = node.attributes.get("epsilon")
    if (
        any(out.uses() or out.is_graph_output() for out in node.outputs[1:])
        or int_attribute(node, "training_mode", 0) != 0
    ):
        return None
    graph = node.graph
    if not isinstance(graph, ir.Graph) or edits.opset(graph) < 7 or int_attribute(node, "spatial", 1) != 1:
        return None
    if epsilon is not None and epsilon.is_ref():
        return None
    arrays = [edits.array(value) for value in node.inputs[1:5]]
    if any(array is None for array in arrays) or len(arrays) != 4:
        return None
    gamma, beta, mean, variance = (np.asarray(array, dtype=np.float64) for array in arrays)
    eps = float(np.float32(epsilon.as_float())) if epsilon is not None else float(np.float32(1e-5))
    with np.errstate(all="ignore"):
        scale = gamma / np.sqrt(variance + eps)
        return Affine(scale, beta - mean * scale)


def _absorb(edits: Edits, node: ir.Node, affine: Affine) -> bool:
    if node.op_type == "BatchNormalization":
        return _absorb_into_batch_norm(edits, node, affine)
    weight = edits.array(node.inputs[1])
    bias = node.inputs[2] if len(node.inputs) > 2 else None
    old_bias = edits.array(bias) if bias is not None else np.zeros(1)
    if weight is None or old_bias is None or not _float_weight(edits, node):
        return False
    channels = _channels(node, weight)
    if channels is None or not {affine.scale.size, affine.shift.size} <= {1, channels}:
        return False
    new_weight = (weight.astype(np.float64) * _along_output(node, weight, affine.scale, channels)).astype(weight.dtype)
    new_bias = (affine.scale * old_bias.astype(np.float64) + affine.shift) * np.ones(channels)
    return _put_weights(edits, node, weight.dtype, new_weight, new_bias)


def _float_weight(edits: Edits, node: ir.Node) -> bool:
    tensor = edits.constant(node.inputs[1])
    return tensor is not None and tensor.dtype in FLOATS


def _channels(node: ir.Node, weight: Array) -> int | None:
    if node.op_type == "Conv":
        return int(weight.shape[0])
    group = int_attribute(node, "group", 1)
    return None if group is None else int(weight.shape[1]) * group


def _along_output(node: ir.Node, weight: Array, scale: Array, channels: int) -> Array:
    """Return the scale in a shape that multiplies the weight of a Conv [M, C/g, ...] or ConvTranspose [C, M/g, ...]."""
    full = scale * np.ones(channels)
    tail = (1,) * (weight.ndim - 2)
    if node.op_type == "Conv":
        return full.reshape(channels, 1, *tail)
    group = channels // weight.shape[1]
    return np.repeat(full.reshape(group, -1), weight.shape[0] // group, axis=0).reshape(*weight.shape[:2], *tail)


def _put_weights(edits: Edits, node: ir.Node, dtype: np.dtype, weight: Array, bias: Array) -> bool:
    with np.errstate(all="ignore"):
        new_bias = bias.astype(dtype)
    if not (np.isfinite(weight).all() and np.isfinite(new_bias).all()):
        return False
    graph = node.graph
    assert isinstance(graph, ir.Graph)
    name = node.name or node.op_type
    if not np.array_equal(weight, np.asarray(edits.array(node.inputs[1]))):
        node.replace_input_with(1, edits.add_initializer(graph, weight, f"{name}_weight"))
    node.resize_inputs(3)
    node.replace_input_with(2, edits.add_initializer(graph, new_bias, f"{name}_bias"))
    return True


def _absorb_into_batch_norm(edits: Edits, node: ir.Node, affine: Affine) -> bool:
    """scale * BN(x) + shift is the BatchNormalization with gamma * scale and beta * scale + shift."""
    if batch_norm_affine(edits, node) is None:
        return False
    gamma, beta = edits.array(node.inputs[1]), edits.array(node.inputs[2])
    assert gamma is not None and beta is not None
    if not {affine.scale.size, affine.shift.size} <= {1, gamma.size}:
        return False
    new = [gamma.astype(np.float64) * affine.scale, beta.astype(np.float64) * affine.scale + affine.shift]
    graph = node.graph
    assert isinstance(graph, ir.Graph)
    for index, (array, old) in enumerate(zip(new, (gamma, beta), strict=True), start=1):
        name = f"{node.name or 'bn'}_{'scale' if index == 1 else 'bias'}"
        node.replace_input_with(index, edits.add_initializer(graph, array.astype(old.dtype), name))
    return True
