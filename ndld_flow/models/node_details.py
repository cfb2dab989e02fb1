"""Short texts about nodes and attributes: kernel and stride, axis, target dtype, small constants.

Weights are never read; only scalars and short lists of integers are, because they describe what a node does.
"""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as ir

from ndld_flow.base.quantities import TIMES, count
from ndld_flow.models.element_types import dtype_name, held_tensor
from ndld_flow.models.external_data import MissingTensor

_MOST_DETAILS = 3
_SHORT = 6
"""Longest list of integers that is printed in full."""
_MOST_DIMS = 8
_INT64_MAX = 2**63 - 1
_WEIGHTED = ("Conv", "ConvTranspose", "Gemm", "MatMul", "LSTM", "GRU", "RNN", "Einsum", "PRelu")
"""Operators that are described by the shapes of their weights."""
_SECOND_INPUT = {
    "Expand": "to",
    "Gather": "index",
    "Pad": "pads",
    "Pow": "to the",
    "Reshape": "to",
    "Squeeze": "axes",
    "Tile": "by",
    "TopK": "k",
    "Unsqueeze": "axes",
}


def node_details(node: ir.Node) -> tuple[str, ...]:
    """Return at most three lines about a node."""
    lines = (_kernel(node), _slice(node) if node.op_type == "Slice" else _other_details(node), _weights(node))
    return tuple(line for line in lines if line)[:_MOST_DETAILS]


def is_constant(node: ir.Node) -> bool:
    """Return whether a node is a Constant of the default domain."""
    return node.op_type == "Constant" and node.domain in ("", "ai.onnx")


def dims_text(texts: Sequence[str]) -> str:
    """Join dimensions by multiplication signs; at most the first eight."""
    shown = [*texts[:_MOST_DIMS], "…"] if len(texts) > _MOST_DIMS else texts
    return TIMES.join(shown) or "scalar"


def short_value(value: ir.Value) -> str:
    """Return a scalar or a short list of integers as text, `unknown` if its data are missing; empty for anything else,
    which is not read."""
    tensor = constant_tensor(value)
    if isinstance(tensor, MissingTensor):
        return "unknown" if _is_short(tensor) else ""
    return " ".join(_number(element) for element in _elements(value))


def constant_tensor(value: ir.Value) -> ir.TensorProtocol | None:
    """Return the tensor of an initializer or of a Constant's output; None for anything else."""
    if value.const_value is not None:
        return value.const_value
    node = value.producer()
    attribute = node.attributes.get("value") if node is not None and is_constant(node) else None
    if attribute is None or attribute.is_ref() or attribute.type != ir.AttributeType.TENSOR:
        return None
    return held_tensor(attribute)


def _elements(value: ir.Value | None) -> list[int | float | bool]:
    tensor = None if value is None else constant_tensor(value)
    if tensor is None or isinstance(tensor, MissingTensor) or not _is_short(tensor):
        return []
    elements: list[int | float | bool] = tensor.numpy().flatten().tolist()
    return elements


def _is_short(tensor: ir.TensorProtocol) -> bool:
    """Return whether a tensor is a scalar or a short list of integers."""
    if tensor.dtype == ir.DataType.STRING or not 0 < tensor.size <= _SHORT:
        return False
    return tensor.size == 1 or tensor.dtype.is_integer()


def _number(value: float) -> str:
    if isinstance(value, float):
        return f"{value:.4g}"
    if abs(value) >= _INT64_MAX - 1:
        return "max" if value > 0 else "min"
    return str(value)


def _kernel(node: ir.Node) -> str:
    """Return `3x3, stride 2, group 32`."""
    kernel = _integers(node, "kernel_shape")
    parts = [TIMES.join(map(str, kernel))] if kernel else []
    for name, word in (("strides", "stride"), ("dilations", "dilation")):
        values = _integers(node, name)
        if set(values) - {1}:
            parts.append(f"{word} {TIMES.join(map(str, values)) if len(set(values)) > 1 else values[0]}")
    group = _integers(node, "group")
    if group and group[0] != 1:
        parts.append(f"group {group[0]}")
    return ", ".join(parts)


def _other_details(node: ir.Node) -> str:
    """Return the other details of a node: axes, target dtype, small constants."""
    parts = []
    for name in ("axis", "axes", "perm"):
        values = _integers(node, name)
        if values:
            parts.append(f"{name} {' '.join(map(str, values[:_SHORT]))}")
    if node.op_type == "Cast" and (to := _integers(node, "to")):
        parts.append(f"to {element_type_text(to[0])}")
    if node.op_type not in _WEIGHTED:
        values_of = [short_value(value) for value in node.inputs if value is not None]
        word = _SECOND_INPUT.get(node.op_type, "")
        parts += [f"{word} {text}".strip() for text in values_of if text]
    return ", ".join(parts)


def _slice(node: ir.Node) -> str:
    """Return `[0:129] of axis 1` if all operands are known."""
    starts, ends, axes, steps = (_elements(value) for value in (*node.inputs[1:5], *[None] * 4)[:4])
    starts, ends = starts or list(_integers(node, "starts")), ends or list(_integers(node, "ends"))
    axes = axes or list(_integers(node, "axes"))
    if len(starts) != 1 or len(ends) != 1:
        return ""
    start = "" if starts[0] == 0 or abs(starts[0]) >= _INT64_MAX - 1 else str(starts[0])
    end = "" if abs(ends[0]) >= 2**31 - 1 else str(ends[0])
    step = f":{steps[0]}" if steps and steps[0] != 1 else ""
    return f"[{start}:{end}{step}]" + (f" of axis {axes[0]}" if axes else "")


def _weights(node: ir.Node) -> str:
    if node.op_type not in _WEIGHTED:
        return ""
    for value in node.inputs:
        tensor = None if value is None else constant_tensor(value)
        if tensor is not None and tensor.size > 1:
            return f"weights {dims_text([str(dim) for dim in tensor.shape.numpy()])}"
    return ""


def _integers(node: ir.Node, name: str) -> Sequence[int]:
    attribute = node.attributes.get(name)
    if attribute is None or attribute.is_ref():
        return ()
    if attribute.type == ir.AttributeType.INT:
        return (attribute.as_int(),)
    return tuple(attribute.as_ints()) if attribute.type == ir.AttributeType.INTS else ()


def element_type_text(number: int) -> str:
    """Return the name of an element type by its number in ONNX; an unknown number is returned as text."""
    try:
        return dtype_name(ir.DataType(number))
    except ValueError:
        return str(number)


_MOST_CHARACTERS = 4000
"""Longest text of one value: a page has thousands of them."""


def attribute_text(attribute: ir.Attr) -> str:
    """Return `2`, `[1, 1]`, `"SAME_UPPER"`, `int64 tensor, 3`; `@name` for a reference to a function's attribute."""
    if attribute.is_ref():
        return f"@{attribute.ref_attr_name}"
    text = _text(attribute)
    return text if len(text) <= _MOST_CHARACTERS else f"{text[:_MOST_CHARACTERS]}… ({count(len(text))} characters)"


def _text(attribute: ir.Attr) -> str:
    kind, value = attribute.type, attribute.value
    if kind == ir.AttributeType.TENSOR:
        tensor = held_tensor(attribute)
        return f"{dtype_name(tensor.dtype)} tensor, {dims_text([str(dim) for dim in tensor.shape.numpy()])}"
    if kind in (ir.AttributeType.GRAPH, ir.AttributeType.GRAPHS):
        return "graph" if kind == ir.AttributeType.GRAPH else f"{count(len(value))} graphs"
    if isinstance(value, tuple | list):
        # A page shows only the beginning of a long list.
        return f"[{', '.join(scalar_text(element) for element in value[:_MOST_CHARACTERS])}]"
    return scalar_text(value)


def scalar_text(value: object) -> str:
    """Return a number with at most seven digits, or text in quotes."""
    if isinstance(value, float):
        return f"{value:.7g}"
    if isinstance(value, str):
        return f'"{value}"'
    return str(value)
