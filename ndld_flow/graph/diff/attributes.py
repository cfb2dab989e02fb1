"""Attributes of nodes as keys that equal ones share, and as text."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

import onnx_ir as ir

from ndld_flow.base.text import shortened
from ndld_flow.models.element_types import held_tensor
from ndld_flow.models.node_details import dtype_text, element_type_text
from ndld_flow.models.tensor_contents import digest_of, shape_of, values_text
from ndld_flow.models.tensors import shape_text

_LONGEST = 160
_SHOWN = 12
_ELEMENT_TYPES = ("to", "dtype", "output_dtype", "output_datatype", "stash_type")
"""Attributes whose integer is an element type."""
_GRAPHS = (ir.AttributeType.GRAPH, ir.AttributeType.GRAPHS)


def is_graph(attribute: ir.Attr) -> bool:
    """Return whether an attribute holds graphs, which are compared node by node instead."""
    return not attribute.is_ref() and attribute.type in _GRAPHS


def attribute_key(attribute: ir.Attr) -> Hashable:
    """Return a key that only equal attributes share; for graphs, only their number."""
    if attribute.is_ref():
        return ("reference", attribute.ref_attr_name)
    return (attribute.type.name, _value_key(attribute))


def _value_key(attribute: ir.Attr) -> Hashable:
    value: Any = attribute.value
    if attribute.type == ir.AttributeType.TENSOR:
        return digest_of(held_tensor(attribute))
    if attribute.type == ir.AttributeType.TENSORS:
        return tuple(digest_of(tensor) for tensor in value)
    if attribute.type in _GRAPHS:
        return len(value) if attribute.type == ir.AttributeType.GRAPHS else 1
    # As text, NaN equals itself, and 0.0 differs from -0.0.
    return repr(tuple(value)) if isinstance(value, list | tuple) else repr(value)


def attribute_text(attribute: ir.Attr | None) -> str | None:
    """Return `[1, 1]`, `float16`, `@alpha` for a function's parameter; None for None."""
    if attribute is None:
        return None
    if attribute.is_ref():
        return f"@{attribute.ref_attr_name}"
    value: Any = attribute.value
    if attribute.type == ir.AttributeType.TENSOR:
        return tensor_text(held_tensor(attribute))
    if attribute.type == ir.AttributeType.INT and attribute.name in _ELEMENT_TYPES:
        return element_type_text(value)
    if is_graph(attribute):
        return "a graph" if attribute.type == ir.AttributeType.GRAPH else f"{len(value)} graphs"
    if isinstance(value, list | tuple):
        elements = [_scalar(element) for element in value[:_SHOWN]]
        return f"[{', '.join([*elements, f'… {len(value)}'] if len(value) > _SHOWN else elements)}]"
    return _scalar(value)


def tensor_text(tensor: ir.TensorProtocol) -> str:
    """Return `float32 1x3 [1, 2, 3]`."""
    return f"{dtype_text(tensor.dtype)} {shape_text(shape_of(tensor))} {values_text(tensor)}"


def _scalar(value: object) -> str:
    return f"{value:.9g}" if isinstance(value, float) else shortened(str(value), _LONGEST)
