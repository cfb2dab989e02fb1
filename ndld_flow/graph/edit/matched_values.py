"""Comparison of constants, attributes and shapes with those of a pattern."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir
from pydantic import JsonValue

from ndld_flow.base.errors import RequestError
from ndld_flow.graph.edit.constant_tensors import constant_of
from ndld_flow.graph.edit.function_attributes import typed_attribute
from ndld_flow.models.sparse_tensors import SparseInitializer

Array = npt.NDArray[Any]
_ALMOST_ZERO = 1e-8
"""Absolute tolerance of numbers near 0."""


def constant_tensor(value: ir.Value) -> ir.TensorProtocol | None:
    """Return the tensor of a constant value: an initializer that is no input, or the output of a Constant node."""
    producer = value.producer()
    if producer is not None:
        return constant_of(producer)
    return value.const_value if value.is_initializer() and not value.is_graph_input() else None


def is_close(wanted: Array, tensor: ir.TensorProtocol, tolerance: float) -> bool:
    """Return whether a constant has these numbers, within a relative tolerance or the precision of its type.

    A single number matches a constant of one element and any rank. Tensors of another size are not read.
    """
    if tensor.size != wanted.size or isinstance(tensor, SparseInitializer) or tensor.dtype == ir.DataType.STRING:
        return False
    if wanted.ndim and tuple(tensor.shape.numpy()) != wanted.shape:
        return False
    found = tensor.numpy().reshape(wanted.shape)
    exact, rounded = (each.astype(np.float64) for each in (wanted, wanted.astype(found.dtype)))
    values = found.astype(np.float64)
    close = np.isclose(values, exact, rtol=tolerance, atol=_ALMOST_ZERO if tolerance else 0.0, equal_nan=True)
    # an integer constant does not equal 0.5 only because 0.5 rounds to it
    return bool(np.all(close | ((values == rounded) & (found.dtype.kind not in "iub"))))


def is_numeric(wanted: JsonValue) -> bool:
    """Return whether a value is a number, or lists of numbers of equal lengths; None is accepted."""
    try:
        return wanted is None or np.asarray(wanted).dtype.kind in "biuf"
    except ValueError:  # lists of different lengths
        return False


def has_value(found: ir.Attr, wanted: JsonValue) -> bool:
    """Return whether an attribute has a value."""
    try:
        return same_value(found, typed_attribute(found.name, wanted, found.type))
    except RequestError:
        return False  # a value of another type


def has_shape(shape: ir.Shape | None, wanted: Sequence[int | str | None]) -> bool:
    """Return whether a shape has these dimensions; None matches any."""
    if shape is None or len(shape) != len(wanted):
        return False
    found = (each if isinstance(each, int) else each.value for each in shape)
    return all(want is None or want == have for want, have in zip(wanted, found, strict=True))


def same_value(first: ir.Attr | None, second: ir.Attr | None) -> bool:
    """Return whether two attributes are equal within the precision of fp32; None means that a node lacks it."""
    if first is None or second is None:
        return first is second
    if first.is_ref() or second.is_ref():
        return first.is_ref() and second.is_ref() and first.ref_attr_name == second.ref_attr_name
    if first.type == second.type == ir.AttributeType.TENSOR:
        return is_close(first.as_tensor().numpy(), second.as_tensor(), 0.0)
    numbers = (ir.AttributeType.FLOAT, ir.AttributeType.FLOATS, ir.AttributeType.INT, ir.AttributeType.INTS)
    if first.type in numbers and second.type in numbers:
        a, b = np.asarray(first.value, np.float64), np.asarray(second.value, np.float64)
        return a.shape == b.shape and bool(np.allclose(a, b, rtol=1e-6, atol=0))
    return first.type == second.type and bool(first.value == second.value)
