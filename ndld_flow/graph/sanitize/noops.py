"""Removal of nodes that change nothing. Each rule's docstring is its algebra."""

from __future__ import annotations

from collections.abc import Callable, Collection

import numpy as np
import onnx_ir as ir

from ndld_flow.graph.sanitize.edits import (
    Edits,
    dims_of,
    int_attribute,
    ints_attribute,
    producer_of_type,
    same_known_dims,
)
from ndld_flow.graph.sanitize.shape_values import ShapeValues

_WIDER: dict[ir.DataType, frozenset[ir.DataType]] = {
    # Casts from the key to these types are lossless.
    ir.DataType.FLOAT16: frozenset((ir.DataType.FLOAT, ir.DataType.DOUBLE)),
    ir.DataType.BFLOAT16: frozenset((ir.DataType.FLOAT, ir.DataType.DOUBLE)),
    ir.DataType.FLOAT: frozenset((ir.DataType.DOUBLE,)),
    ir.DataType.INT32: frozenset((ir.DataType.INT64, ir.DataType.DOUBLE)),
    ir.DataType.INT8: frozenset((ir.DataType.INT32, ir.DataType.INT64, ir.DataType.FLOAT, ir.DataType.DOUBLE)),
    ir.DataType.UINT8: frozenset((ir.DataType.INT32, ir.DataType.INT64, ir.DataType.FLOAT, ir.DataType.DOUBLE)),
    ir.DataType.BOOL: frozenset(
        (ir.DataType.UINT8, ir.DataType.INT32, ir.DataType.INT64, ir.DataType.FLOAT16, ir.DataType.FLOAT)
    ),
}


def remove_noops(edits: Edits, values: ShapeValues, op_types: Collection[str] | None = None) -> None:
    """Bypass every node that a rule recognises as a no-op; only of `op_types` if given."""
    for graph in edits.graphs():
        for node in tuple(graph):
            rule = _RULES.get(node.op_type) if op_types is None or node.op_type in op_types else None
            if rule is None or node.domain != "" or not node.inputs or node.graph is None:
                continue
            same = rule(edits, values, node)
            if same is not None:
                edits.bypass(node, same, f"{node.op_type} removed")


def _identity(edits: Edits, values: ShapeValues, node: ir.Node) -> ir.Value | None:
    """Identity(x) -> x"""
    return node.inputs[0]


def _dropout(edits: Edits, values: ShapeValues, node: ir.Node) -> ir.Value | None:
    """Dropout(x) -> x where it is not training"""
    opset = edits.opset(_graph(node))
    if opset < 7:
        return node.inputs[0] if int_attribute(node, "is_test", 0) else None
    if len(node.inputs) > 2 and node.inputs[2] is not None:
        training = edits.array(node.inputs[2])
        return node.inputs[0] if training is not None and not training.any() else None
    return node.inputs[0]


def _cast(edits: Edits, values: ShapeValues, node: ir.Node) -> ir.Value | None:
    """Cast(x) to x's own type -> x; Cast(Cast(x) to a wider type) back to x's type -> x"""
    source, target = node.inputs[0], int_attribute(node, "to", 0)
    if source is None or not target:
        return None
    if source.dtype is not None and source.dtype.value == target:
        return source
    inner = producer_of_type(source, "Cast")
    origin = inner.inputs[0] if inner is not None else None
    if origin is None or origin.dtype is None or origin.dtype.value != target or source.dtype is None:
        return None
    return origin if source.dtype in _WIDER.get(origin.dtype, frozenset()) else None


def _same_shape(edits: Edits, values: ShapeValues, node: ir.Node) -> ir.Value | None:
    """Reshape, Expand, Flatten, Squeeze, Slice, Tile (x) -> x where the shape does not change"""
    source = node.inputs[0]
    return source if same_known_dims(dims_of(source), dims_of(node.outputs[0])) else None


def _slice(edits: Edits, values: ShapeValues, node: ir.Node) -> ir.Value | None:
    """Slice(x, from 0, to the end, step 1) -> x"""
    source = node.inputs[0]
    if edits.opset(_graph(node)) < 10 or len(node.inputs) < 3:
        return None
    steps = _ints(edits, node, 4) if len(node.inputs) > 4 and node.inputs[4] is not None else (1,)
    starts, ends = _ints(edits, node, 1), _ints(edits, node, 2)
    if steps is None or set(steps) != {1} or starts is None or set(starts) != {0}:
        return None
    if ends is not None and min(ends) >= 2**31 - 1:
        return source
    return _same_shape(edits, values, node)


def _pad(edits: Edits, values: ShapeValues, node: ir.Node) -> ir.Value | None:
    """Pad(x, all 0) -> x"""
    pads = _ints(edits, node, 1) if edits.opset(_graph(node)) >= 11 else ints_attribute(node, "pads")
    return node.inputs[0] if pads is not None and not any(pads) else None


def _expand(edits: Edits, values: ShapeValues, node: ir.Node) -> ir.Value | None:
    """Expand(x, shape) -> x where shape is all 1, or x's own shape"""
    source = node.inputs[0]
    known, dims = values.of(node.inputs[1]), dims_of(source)
    if known is None or dims is None or len(known.elements) > len(dims):
        return None
    tail = dims[len(dims) - len(known.elements) :]
    unchanged = all(e == 1 or (e == d and e is not None) for e, d in zip(known.elements, tail, strict=True))
    return source if unchanged else None


def _tile(edits: Edits, values: ShapeValues, node: ir.Node) -> ir.Value | None:
    """Tile(x, all 1) -> x"""
    repeats = _ints(edits, node, 1) if len(node.inputs) == 2 else None
    return node.inputs[0] if repeats is not None and set(repeats) <= {1} else None


def _transpose(edits: Edits, values: ShapeValues, node: ir.Node) -> ir.Value | None:
    """Transpose(x) in the order it has -> x"""
    perm = ints_attribute(node, "perm")
    return node.inputs[0] if perm is not None and perm == tuple(range(len(perm))) else None


def _only_input(edits: Edits, values: ShapeValues, node: ir.Node) -> ir.Value | None:
    """Concat(x), Sum(x), Max(x), Min(x), Mean(x) -> x"""
    return node.inputs[0] if len(node.inputs) == 1 else None


def _neutral(number: float, commutes: bool) -> Callable[[Edits, ShapeValues, ir.Node], ir.Value | None]:
    """x + 0, x - 0, x * 1, x / 1 -> x where the constant does not widen x's shape"""

    def rule(edits: Edits, values: ShapeValues, node: ir.Node) -> ir.Value | None:
        pairs = [(node.inputs[0], node.inputs[1])]
        if commutes:
            pairs.append((node.inputs[1], node.inputs[0]))
        for source, constant in pairs:
            if source is not None and _is_neutral(edits, source, constant, number):
                return source
        return None

    return rule


def _is_neutral(edits: Edits, source: ir.Value, constant: ir.Value | None, number: float) -> bool:
    tensor = edits.constant(constant)
    dims = dims_of(source)
    if tensor is None or tensor.size != 1 or dims is None or len(tensor.shape) > len(dims):
        return False
    return bool(np.all(tensor.numpy() == number))


def _unsqueeze(edits: Edits, values: ShapeValues, node: ir.Node) -> ir.Value | None:
    """Squeeze(Unsqueeze(x, axes), axes) -> x, and the other way round where the shape comes back"""
    inner = producer_of_type(node.inputs[0], "Squeeze", "Unsqueeze", "Reshape", "Flatten")
    if inner is None:
        return _same_shape(edits, values, node)
    origin = inner.inputs[0]
    return origin if same_known_dims(dims_of(origin), dims_of(node.outputs[0])) else None


def _ints(edits: Edits, node: ir.Node, index: int) -> tuple[int, ...] | None:
    value = node.inputs[index] if index < len(node.inputs) else None
    array = edits.array(value)
    return None if array is None else tuple(int(e) for e in array.reshape(-1))


def _graph(node: ir.Node) -> ir.Graph | None:
    return node.graph if isinstance(node.graph, ir.Graph) else None


_RULES: dict[str, Callable[[Edits, ShapeValues, ir.Node], ir.Value | None]] = {
    "Identity": _identity,
    "Dropout": _dropout,
    "Cast": _cast,
    "Reshape": _unsqueeze,
    "Flatten": _unsqueeze,
    "Squeeze": _unsqueeze,
    "Unsqueeze": _unsqueeze,
    "Slice": _slice,
    "Pad": _pad,
    "Expand": _expand,
    "Tile": _tile,
    "Transpose": _transpose,
    "Concat": _only_input,
    "Sum": _only_input,
    "Max": _only_input,
    "Min": _only_input,
    "Mean": _only_input,
    "Add": _neutral(0.0, commutes=True),
    "Sub": _neutral(0.0, commutes=False),
    "Mul": _neutral(1.0, commutes=True),
    "Div": _neutral(1.0, commutes=False),
}
