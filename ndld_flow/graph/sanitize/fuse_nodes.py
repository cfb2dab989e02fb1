"""Fusion of patterns for which the standard has one operator: Pad + Conv, MatMul + Add, LayerNormalization."""

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
    ints_attribute,
    is_standard,
    only_reader,
    producer_of_type,
)
from ndld_flow.models.node_precision import precision_metadata, same_precision

_FIRST_OPSET_OF_LAYER_NORM = 17
_GEMM_TYPES = FLOATS - {ir.DataType.BFLOAT16}


def fuse_nodes(edits: Edits) -> None:
    """Apply the three fusions everywhere."""
    rules = {"Conv": _fuse_pad, "Add": _fuse_add, "Mul": _fuse_layer_norm_without_bias}
    for graph in edits.graphs():
        for node in tuple(graph):
            rule = rules.get(node.op_type)
            if rule is not None and is_standard(node) and node.graph is not None:
                rule(edits, node)


def _fuse_pad(edits: Edits, node: ir.Node) -> None:
    """Conv(Pad(x, zeros)) -> Conv(x) with its own pads"""
    pad = producer_of_type(node.inputs[0], "Pad")
    if pad is None or not only_reader(pad.outputs[0]) or pad.graph is not node.graph or not same_precision(pad, node):
        return
    pads = _zero_pads(edits, pad)
    weight = dims_of(node.inputs[1])
    if pads is None or weight is None or len(pads) != 2 * len(weight) or not _explicit_pads(node):
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


def _explicit_pads(node: ir.Node) -> bool:
    auto = node.attributes.get("auto_pad")
    return auto is None or (not auto.is_ref() and auto.as_string() == "NOTSET")


def _fuse_add(edits: Edits, node: ir.Node) -> None:
    if not _fuse_layer_norm(edits, node):
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
        graph = node.graph
        assert isinstance(graph, ir.Graph)
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


def _fuse_layer_norm(edits: Edits, node: ir.Node) -> bool:
    """normal(x) * scale + bias -> LayerNormalization(x, scale, bias)"""
    for index in (0, 1):
        mul = producer_of_type(node.inputs[index], "Mul")
        bias = node.inputs[1 - index]
        if mul is not None and only_reader(mul.outputs[0]) and _put_layer_norm(edits, node, mul, bias):
            return True
    return False


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
        found = _normalization(edits, normal, last)
        if found is None or scale is None or not _layer_norm_fits(edits, found, scale, bias):
            continue
        if not same_precision(last, mul, *found.nodes):
            return False
        attributes = {"axis": -1, "epsilon": found.epsilon}
        inputs = [found.source, scale, *([bias] if bias is not None else [])]
        metadata = precision_metadata(last)
        new = ir.node("LayerNormalization", inputs, attributes, name=last.name, metadata_props=metadata)
        new.outputs[0].name = edits.new_name(f"{last.outputs[0].name}_norm")
        graph.insert_before(last, new)
        if not edits.take_over(new.outputs[0], last.outputs[0]):
            edits.remove(new)
            return False
        edits.done["LayerNormalization made from its parts"] += 1
        return True
    return False


def _layer_norm_fits(edits: Edits, found: _Normalization, scale: ir.Value, bias: ir.Value | None) -> bool:
    dims = dims_of(found.source)
    if not dims or not isinstance(dims[-1], int) or found.source.dtype != ir.DataType.FLOAT:
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
    axes = ints_attribute(node, "axes")
    if len(node.inputs) > 1:
        array = edits.array(node.inputs[1])
        axes = None if array is None else tuple(int(a) for a in array.reshape(-1))
    dims = dims_of(node.inputs[0])
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
