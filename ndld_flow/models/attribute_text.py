"""An attribute's value as text that people can read."""

from __future__ import annotations

import onnx_ir as ir

from ndld_flow.base.quantities import count
from ndld_flow.models.element_types import held_tensor
from ndld_flow.models.node_details import dims_text, dtype_text

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
