"""Fusion of nodes into the preceding one, and of patterns for which the standard has one operator.

BatchNormalization, Mul, Add, Sub and Div by constants compute y = scale * x + shift for each channel, which the weights
of Conv, ConvTranspose and BatchNormalization can absorb. The new weights are computed in float64. The patterns are Pad
+ Conv, MatMul + Add and LayerNormalization.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from ndld_flow.graph.sanitize.edits import (
    Array,
    Edits,
    dims_of,
    int_attribute,
    ints_attribute,
    only_reader,
    producer_of_type,
)
from ndld_flow.models.element_types import FLOATS
from ndld_flow.models.nodes import graph_of, is_used, precision_metadata, same_precision

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
    """Fuse each scale and shift into the Conv, ConvTranspose or BatchNormalization that no other node reads."""
    for node in edits.nodes("BatchNormalization", "Mul", "Add", "Sub", "Div"):
        _fuse(edits, node)


def _fuse(edits: Edits, node: ir.Node) -> None:
    for index in range(2 if node.op_type in ("Mul", "Add") else 1):
        data = node.inputs[index]
        absorber = producer_of_type(data, *_ABSORBERS)
        if data is None or absorber is None or not only_reader(data) or absorber.graph is not node.graph:
            continue
        if not (same_precision(absorber, node) and edits.may_replace(node.outputs[0], data)):
            return
        dims = dims_of(absorber.inputs[1] if absorber.op_type != "BatchNormalization" else absorber.inputs[0])
        affine = _affine_of(edits, node, index, None if dims is None else len(dims))
        if affine is not None and affine.finite and _absorb(edits, absorber, affine):
            what = f"{node.op_type} fused into {absorber.op_type}"
            edits.take_over(absorber.outputs[0], node.outputs[0])
            edits.remove(node)
            edits.done[what] += 1
            return


def _affine_of(edits: Edits, node: ir.Node, data_index: int, rank: int | None) -> Affine | None:
    if node.op_type == "BatchNormalization":
        return batch_norm_affine(edits, node)
    constant = edits.array(node.inputs[1 - data_index])
    if constant is None or rank is None or edits.constant(node.inputs[1 - data_index]).dtype not in FLOATS:  # type: ignore[union-attr]
        return None
    channel = _per_channel(constant, rank)
    if channel is None:
        return None
    ones, zeros = np.ones(1), np.zeros(1)
    if node.op_type == "Div":
        return Affine(1.0 / channel, zeros) if (channel != 0).all() else None
    return {"Mul": Affine(channel, zeros), "Add": Affine(ones, channel), "Sub": Affine(ones, -channel)}[node.op_type]


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
    if any(map(is_used, node.outputs[1:])) or int_attribute(node, "training_mode", 0) != 0:
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
    tensor = edits.constant(node.inputs[1])
    if weight is None or old_bias is None or tensor is None or tensor.dtype not in FLOATS:
        return False
    group = 1 if node.op_type == "Conv" else int_attribute(node, "group", 1)
    channels = None if group is None else int(weight.shape[0 if node.op_type == "Conv" else 1]) * group
    if channels is None or not {affine.scale.size, affine.shift.size} <= {1, channels}:
        return False
    is_shared = not only_reader(node.inputs[1]) if node.inputs[1] is not None else False
    if is_shared and np.any(affine.scale != 1) and not edits.pays(weight.nbytes, 0):
        return False
    new_weight = (weight.astype(np.float64) * _along_output(node, weight, affine.scale, channels)).astype(weight.dtype)
    new_bias = (affine.scale * old_bias.astype(np.float64) + affine.shift) * np.ones(channels)
    with np.errstate(all="ignore"):
        new_bias = new_bias.astype(weight.dtype)
    if not (np.isfinite(new_weight).all() and np.isfinite(new_bias).all()):
        return False
    graph, name = graph_of(node), node.name or node.op_type
    if not np.array_equal(new_weight, weight):
        node.replace_input_with(1, edits.add_initializer(graph, new_weight, f"{name}_weight"))
    node.resize_inputs(3)
    node.replace_input_with(2, edits.add_initializer(graph, new_bias, f"{name}_bias"))
    return True


def _along_output(node: ir.Node, weight: Array, scale: Array, channels: int) -> Array:
    """Return the scale in a shape that multiplies the weight of a Conv [M, C/g, ...] or ConvTranspose [C, M/g, ...]."""
    full = scale * np.ones(channels)
    tail = (1,) * (weight.ndim - 2)
    if node.op_type == "Conv":
        return full.reshape(channels, 1, *tail)
    group = channels // weight.shape[1]
    return np.repeat(full.reshape(group, -1), weight.shape[0] // group, axis=0).reshape(*weight.shape[:2], *tail)


def _absorb_into_batch_norm(edits: Edits, node: ir.Node, affine: Affine) -> bool:
    """scale * BN(x) + shift -> BN(x) with gamma * scale and beta * scale + shift"""
    if batch_norm_affine(edits, node) is None:
        return False
    gamma, beta = edits.array(node.inputs[1]), edits.array(node.inputs[2])
    assert gamma is not None and beta is not None
    if not {affine.scale.size, affine.shift.size} <= {1, gamma.size}:
        return False
    new = [gamma.astype(np.float64) * affine.scale, beta.astype(np.float64) * affine.scale + affine.shift]
    graph = graph_of(node)
    for index, (array, old) in enumerate(zip(new, (gamma, beta), strict=True), start=1):
        name = f"{node.name or 'bn'}_{'scale' if index == 1 else 'bias'}"
        node.replace_input_with(index, edits.add_initializer(graph, array.astype(old.dtype), name))
    return True


_FIRST_OPSET_OF_LAYER_NORM = 17
_GEMM_TYPES = FLOATS - {ir.DataType.BFLOAT16}


def fuse_nodes(edits: Edits) -> None:
    """Apply the three fusions everywhere."""
    rules = {"Conv": _fuse_pad, "Add": _fuse_add, "Mul": _fuse_layer_norm_without_bias}
    for node in edits.nodes(*rules):
        rules[node.op_type](edits, node)


def _fuse_pad(edits: Edits, node: ir.Node) -> None:
    """Conv(Pad(x, zeros)) -> Conv(x) with its own pads"""
    pad = producer_of_type(node.inputs[0], "Pad")
    if pad is None or not only_reader(pad.outputs[0]) or pad.graph is not node.graph or not same_precision(pad, node):
        return
    pads = _zero_pads(edits, pad)
    weight = dims_of(node.inputs[1])
    if pads is None or weight is None or len(pads) != 2 * len(weight):
        return
    auto = node.attributes.get("auto_pad")
    if auto is not None and (auto.is_ref() or auto.as_string() != "NOTSET"):
        return
    rank = len(weight)
    begin, end = pads[:rank], pads[rank:]
    if min(pads) < 0 or any((*begin[:2], *end[:2])):
        return
    own = ints_attribute(node, "pads") if "pads" in node.attributes else (0,) * (2 * (rank - 2))
    if own is None:
        return
    total = [a + b for a, b in zip(own, (*begin[2:], *end[2:]), strict=True)]
    node.attributes["pads"] = ir.AttrInt64s("pads", total)
    node.replace_input_with(0, pad.inputs[0])
    edits.remove(pad)
    edits.done["Pad fused into Conv"] += 1


def _zero_pads(edits: Edits, pad: ir.Node) -> tuple[int, ...] | None:
    """Return the amounts of a Pad that adds zeros on all axes in order, or None."""
    mode = pad.attributes.get("mode")
    if mode is not None and (mode.is_ref() or mode.as_string() != "constant"):
        return None
    graph = pad.graph
    if isinstance(graph, ir.Graph) and edits.opset(graph) < 11:
        value = pad.attributes.get("value")
        zero = value is None or (not value.is_ref() and value.as_float() == 0)
        return ints_attribute(pad, "pads") if zero else None
    given = [*pad.inputs, None, None, None]
    if given[3] is not None:
        return None
    if given[2] is not None:
        fill = edits.array(given[2])
        if fill is None or fill.any():
            return None
    pads = edits.array(given[1])
    return None if pads is None else tuple(int(p) for p in pads)


def _fuse_add(edits: Edits, node: ir.Node) -> None:
    """normal(x) * scale + bias -> LayerNormalization(x, scale, bias); any other Add as in `fuse_gemm`"""
    for index in (0, 1):
        mul = producer_of_type(node.inputs[index], "Mul")
        bias = node.inputs[1 - index]
        if mul is not None and only_reader(mul.outputs[0]) and _put_layer_norm(edits, node, mul, bias):
            return
    fuse_gemm(edits, node)


def fuse_gemm(edits: Edits, node: ir.Node) -> None:
    """MatMul(a, b) + c -> Gemm(a, b, c) where a and b are matrices and c is a constant row"""
    for index in (0, 1):
        data, bias = node.inputs[index], node.inputs[1 - index]
        matmul = producer_of_type(data, "MatMul")
        if data is None or matmul is None or not only_reader(data) or matmul.graph is not node.graph:
            continue
        if not (_gemm_fits(edits, matmul, bias) and same_precision(matmul, node)):
            continue
        graph = graph_of(node)
        gemm = ir.node("Gemm", [*matmul.inputs, bias], name=matmul.name, metadata_props=precision_metadata(node))
        gemm.outputs[0].name = edits.new_name(f"{node.outputs[0].name}_gemm")
        graph.insert_before(node, gemm)
        if not edits.take_over(gemm.outputs[0], node.outputs[0]):
            edits.remove(gemm)
            continue
        edits.remove(node)
        edits.remove(matmul)
        edits.done["MatMul and Add fused to Gemm"] += 1
        return


def _gemm_fits(edits: Edits, matmul: ir.Node, bias: ir.Value | None) -> bool:
    shapes = [dims_of(value) for value in matmul.inputs]
    tensor = edits.constant(bias)
    if tensor is None or any(shape is None or len(shape) != 2 for shape in shapes):
        return False
    columns = shapes[1][1] if shapes[1] is not None else None
    row = tuple(tensor.shape.numpy())
    return (
        all(value is not None and value.dtype in _GEMM_TYPES for value in (*matmul.inputs, bias))
        and isinstance(columns, int)
        and row in {(columns,), (1, columns), (1,), (1, 1), ()}
    )


@dataclass(frozen=True)
class _Normalization:
    """(x - mean) / sqrt(variance + epsilon) over the last axis."""

    source: ir.Value
    epsilon: float
    nodes: tuple[ir.Node, ...]


def _fuse_layer_norm_without_bias(edits: Edits, node: ir.Node) -> None:
    """normal(x) * scale -> LayerNormalization(x, scale), unless a bias follows"""
    uses = tuple(node.outputs[0].uses())
    if not (len(uses) == 1 and uses[0].node.op_type == "Add"):
        _put_layer_norm(edits, node, node, None)


def _put_layer_norm(edits: Edits, last: ir.Node, mul: ir.Node, bias: ir.Value | None) -> bool:
    graph = last.graph
    if not isinstance(graph, ir.Graph) or edits.opset(graph) < _FIRST_OPSET_OF_LAYER_NORM:
        return False
    for index in (0, 1):
        normal, scale = mul.inputs[index], mul.inputs[1 - index]
        normalization = _normalization(edits, normal, last)
        if normalization is None or scale is None or not _layer_norm_fits(edits, normalization, scale, bias):
            continue
        if not same_precision(last, mul, *normalization.nodes):
            return False
        attributes = {"axis": -1, "epsilon": normalization.epsilon}
        inputs = [normalization.source, scale, *([bias] if bias is not None else [])]
        metadata = precision_metadata(last)
        new = ir.node("LayerNormalization", inputs, attributes, name=last.name, metadata_props=metadata)
        new.outputs[0].name = edits.new_name(f"{last.outputs[0].name}_norm")
        graph.insert_before(last, new)
        if not edits.take_over(new.outputs[0], last.outputs[0]):
            edits.remove(new)
            return False
        edits.done["LayerNormalization fused from its parts"] += 1
        return True
    return False


def _layer_norm_fits(edits: Edits, normalization: _Normalization, scale: ir.Value, bias: ir.Value | None) -> bool:
    dims = dims_of(normalization.source)
    if not dims or not isinstance(dims[-1], int) or normalization.source.dtype != ir.DataType.FLOAT:
        return False
    tensors = [edits.constant(scale)] + ([edits.constant(bias)] if bias is not None else [])
    return all(t is not None and tuple(t.shape.numpy()) == (dims[-1],) for t in tensors)


def _normalization(edits: Edits, value: ir.Value | None, last: ir.Node) -> _Normalization | None:
    """Walk back from (x - mean) / sqrt(mean((x - mean) ** 2) + epsilon)."""
    div = producer_of_type(value, "Div")
    centered = producer_of_type(div.inputs[0], "Sub") if div is not None else None
    root = producer_of_type(div.inputs[1], "Sqrt") if div is not None else None
    plus = producer_of_type(root.inputs[0], "Add") if root is not None else None
    if div is None or centered is None or root is None or plus is None:
        return None
    for index in (0, 1):
        variance, epsilon = (
            producer_of_type(plus.inputs[index], "ReduceMean"),
            _scalar(edits.array(plus.inputs[1 - index])),
        )
        if variance is None or epsilon is None or not _over_last_axis(edits, variance):
            continue
        square = _square_of(edits, variance.inputs[0], centered.outputs[0])
        mean = producer_of_type(centered.inputs[1], "ReduceMean")
        source = centered.inputs[0]
        if square is None or mean is None or source is None or mean.inputs[0] is not source:
            continue
        nodes = (div, root, plus, variance, square, centered, mean)
        if _over_last_axis(edits, mean) and _all_inside(nodes, last):
            return _Normalization(source, epsilon, nodes)
    return None


def _square_of(edits: Edits, value: ir.Value | None, centered: ir.Value) -> ir.Node | None:
    power = producer_of_type(value, "Pow")
    if power is not None:
        return power if power.inputs[0] is centered and _scalar(edits.array(power.inputs[1])) == 2 else None
    product = producer_of_type(value, "Mul")
    return product if product is not None and all(v is centered for v in product.inputs) else None


def _over_last_axis(edits: Edits, node: ir.Node) -> bool:
    axes, dims = edits.axes(node), dims_of(node.inputs[0])
    last = (-1,) if dims is None else (-1, len(dims) - 1)
    return axes is not None and len(axes) == 1 and axes[0] in last and int_attribute(node, "keepdims", 1) == 1


def _all_inside(nodes: tuple[ir.Node, ...], last: ir.Node) -> bool:
    """Return whether no tensor of the pattern is read elsewhere, so that all of it can be removed."""
    inside = {*nodes, last, *(use.node for use in nodes[0].outputs[0].uses())}
    return all(
        not node.outputs[0].is_graph_output() and all(use.node in inside for use in node.outputs[0].uses())
        for node in nodes
    ) and only_reader(nodes[0].outputs[0])


def _scalar(array: Array | None) -> float | None:
    return float(np.asarray(array).reshape(-1)[0]) if array is not None and array.size == 1 else None
