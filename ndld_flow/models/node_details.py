"""x"""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as ir

from ndld_flow.base.quantities import TIMES, count
from ndld_flow.models.element_types import held_tensor

_MOST_DETAILS = 3
_SHORT = 6
"""Elements of a list of integers that is written out."""
_MOST_DIMS = 8
_INT64_MAX = 2**63 - 1
_WEIGHTED = ("Conv", "ConvTranspose", "Gemm", "MatMul", "LSTM", "GRU", "RNN", "Einsum", "PRelu")
"""Operators whose weights' shapes say what they do."""
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
    """At most three lines."""
    found = (_kernel(node), _slice(node) if node.op_type == "Slice" else _own(node), _weights(node))
    return tuple(line for line in found if line)[:_MOST_DETAILS]


def is_constant(node: ir.Node) -> bool:
    """Whether it is a Constant of ONNX's own domain."""
    return node.op_type == "Constant" and node.domain in ("", "ai.onnx")


def dims_text(texts: Sequence[str]) -> str:
    """Dimensions with real multiplication signs between them; of many, the first eight."""
    shown = [*texts[:_MOST_DIMS], "…"] if len(texts) > _MOST_DIMS else texts
    return TIMES.join(shown) or "scalar"


def short_value(value: ir.Value) -> str:
    """A scalar or a short list of integers, written out; empty for all else, which is not read."""
    return " ".join(_number(one) for one in _elements(value))


def constant_tensor(value: ir.Value) -> ir.TensorProtocol | None:
    """The tensor of an initializer or of a Constant's output; None for anything else."""
    if value.const_value is not None:
        return value.const_value
    node = value.producer()
    attribute = node.attributes.get("value") if node is not None and is_constant(node) else None
    if attribute is None or attribute.is_ref() or attribute.type != ir.AttributeType.TENSOR:
        return None
    return held_tensor(attribute)


def _elements(value: ir.Value | None) -> list[int | float | bool]:
    tensor = None if value is None else constant_tensor(value)
    if tensor is None or tensor.dtype == ir.DataType.STRING or not 0 < tensor.size <= _SHORT:
        return []
    if tensor.size > 1 and not tensor.dtype.is_integer():
        return []
    elements: list[int | float | bool] = tensor.numpy().flatten().tolist()
    return elements


def _number(value: float) -> str:
    if isinstance(value, float):
        return f"{value:.4g}"
    if abs(value) >= _INT64_MAX - 1:
        return "max" if value > 0 else "min"
    return str(value)


def _kernel(node: ir.Node) -> str:
    """`3x3, stride 2, group 32`."""
    kernel = _integers(node, "kernel_shape")
    said = [TIMES.join(map(str, kernel))] if kernel else []
    for name, word in (("strides", "stride"), ("dilations", "dilation")):
        values = _integers(node, name)
        if set(values) - {1}:
            said.append(f"{word} {TIMES.join(map(str, values)) if len(set(values)) > 1 else values[0]}")
    group = _integers(node, "group")
    if group and group[0] != 1:
        said.append(f"group {group[0]}")
    return ", ".join(said)


def _own(node: ir.Node) -> str:
    """What else says what the node does: axes, target dtype, constants it works with."""
    said = []
    for name in ("axis", "axes", "perm"):
        values = _integers(node, name)
        if values:
            said.append(f"{name} {' '.join(map(str, values[:_SHORT]))}")
    if node.op_type == "Cast" and (to := _integers(node, "to")):
        said.append(f"to {_dtype_name(to[0])}")
    if node.op_type not in _WEIGHTED:
        values_of = [short_value(value) for value in node.inputs if value is not None]
        word = _SECOND_INPUT.get(node.op_type, "")
        said += [f"{word} {text}".strip() for text in values_of if text]
    return ", ".join(said)


def _slice(node: ir.Node) -> str:
    """`[0:129] of axis 1` where all is known."""
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


def _dtype_name(number: int) -> str:
    try:
        return dtype_text(ir.DataType(number))
    except ValueError:
        return str(number)


def dtype_text(dtype: ir.DataType) -> str:
    """`float32`, `int64`, `bool`; empty for an undefined one."""
    if dtype == ir.DataType.UNDEFINED:
        return ""
    return {"FLOAT": "float32", "DOUBLE": "float64"}.get(dtype.name, dtype.name.lower())


_MOST_LETTERS = 4000
"""Of one value: a page holds thousands of them."""


def attribute_text(attribute: ir.Attr) -> str:
    """`2`, `[1, 1]`, `"SAME_UPPER"`, `int64 tensor of 3`; a reference in a function as `@name`."""
    if attribute.is_ref():
        return f"@{attribute.ref_attr_name}"
    text = _text(attribute)
    return text if len(text) <= _MOST_LETTERS else f"{text[:_MOST_LETTERS]}… ({count(len(text))} letters)"


def _text(attribute: ir.Attr) -> str:
    kind, value = attribute.type, attribute.value
    if kind == ir.AttributeType.TENSOR:
        tensor = held_tensor(attribute)
        return f"{dtype_text(tensor.dtype)} tensor, {dims_text([str(dim) for dim in tensor.shape.numpy()])}"
    if kind in (ir.AttributeType.GRAPH, ir.AttributeType.GRAPHS):
        return "graph" if kind == ir.AttributeType.GRAPH else f"{count(len(value))} graphs"
    if isinstance(value, tuple | list):
        # A page holds the beginning of a long list only.
        return f"[{', '.join(scalar_text(one) for one in value[:_MOST_LETTERS])}]"
    return scalar_text(value)


def scalar_text(value: object) -> str:
    """A number as short as it can be told, text in quotes."""
    if isinstance(value, float):
        return f"{value:.7g}"
    if isinstance(value, str):
        return f'"{value}"'
    return str(value)
