"""Weights in another floating-point type, and what they lose."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import onnx_ir as ir
from onnx import numpy_helper

from ndld_flow.models.derived_tensors import Array, DerivedTensor, array_pieces
from ndld_flow.models.sparse_tensors import SparseInitializer

MAX_HALF = 65504.0
"""Largest finite fp16 value."""
MIN_HALF = 2.0**-24
"""Smallest positive fp16 value (subnormal)."""


@dataclass(frozen=True)
class Format:
    """A floating-point type and its limits."""

    precision: str
    """As people call it: `fp16`."""
    dtype: np.dtype[Any]
    largest: float
    """Largest finite value."""
    smallest: float
    """Smallest positive value (subnormal)."""
    smallest_normal: float
    """Numbers nearer to 0 have fewer bits."""


def format_of(precision: str, dtype: ir.DataType) -> Format:
    """The limits of a floating-point type of numpy or ml_dtypes."""
    limits = ml_dtypes.finfo(dtype.numpy())
    smallest, normal = float(limits.smallest_subnormal), float(limits.smallest_normal)
    return Format(precision, dtype.numpy(), float(limits.max), smallest, normal)


FORMATS: Mapping[ir.DataType, Format] = {
    dtype: format_of(precision, dtype)
    for dtype, precision in (
        (ir.DataType.FLOAT16, "fp16"),
        (ir.DataType.BFLOAT16, "bf16"),
        (ir.DataType.FLOAT, "fp32"),
        (ir.DataType.DOUBLE, "fp64"),
    )
}
HALF = FORMATS[ir.DataType.FLOAT16]


@dataclass
class Loss:
    """What one tensor loses in another type."""

    name: str
    size: int
    """Number of values."""
    format: Format = HALF
    """What it is converted to."""
    clamped: int = 0
    """Finite values beyond the type's range; they become its largest value, not infinity."""
    vanished: int = 0
    """Values other than 0 that are nearer to 0 than to the type's smallest."""
    largest: float = 0.0
    """Largest finite absolute value before."""


class RoundedTensor(DerivedTensor):
    """A floating-point tensor in another floating-point type, rounded to nearest.

    Finite values beyond the range are clamped. In scalars and per-channel vectors a value other than 0 never becomes
    0: they are divisors and epsilons. In weight matrices it may: rounding to nearest is the smaller error there.
    """

    def __init__(
        self, source: ir.TensorProtocol, dtype: ir.DataType, name: str, writing: Callable[[str], None]
    ) -> None:
        super().__init__(source, dtype, name)
        self._writing = writing
        self.loss = Loss(name, self.size, FORMATS[dtype])
        self._keeps_nonzero = sum(size != 1 for size in self.source.shape) <= 1

    def pieces(self) -> Iterator[bytes]:
        self._writing(self.name or "")
        self.loss = Loss(self.name or "", self.size, self.loss.format)
        yield from super().pieces()

    def convert(self, piece: Array) -> Array:
        """Elements of the source -> elements of this type; what they lose is added to `loss`."""
        return rounded(piece, self._keeps_nonzero, self.loss)


def rounded(values: Array, keeps_nonzero: bool, loss: Loss) -> Array:
    """Round to the loss's format, clamp to its range, and add up what was lost."""
    target = loss.format
    if values.dtype == FORMATS[ir.DataType.BFLOAT16].dtype:
        values = values.astype(np.float32)  # numpy knows only some of what is done here for bf16
    with np.errstate(over="ignore"):
        result = values.astype(target.dtype)
    if not values.size:
        return result
    largest = float(np.max(np.abs(values)))
    if not largest <= target.largest:  # infinity and NaN come here too, and stay what they are
        largest = _clamp(values, result, loss)
    loss.largest = max(loss.largest, largest)
    lost = np.count_nonzero(values) - np.count_nonzero(result)
    if lost:
        loss.vanished += int(lost)
        if keeps_nonzero:
            gone = (result == 0) & (values != 0)
            result[gone] = np.copysign(target.smallest, values[gone]).astype(target.dtype)
    return result


def _clamp(values: Array, result: Array, loss: Loss) -> float:
    """Put finite values back into range; return the largest of them."""
    finite = np.isfinite(values)
    beyond = finite & (np.abs(values) > loss.format.largest)
    result[beyond] = np.copysign(loss.format.largest, values[beyond]).astype(result.dtype)
    loss.clamped += int(np.count_nonzero(beyond))
    return float(np.max(np.abs(values), initial=0.0, where=finite))


def rounded_sparse(tensor: SparseInitializer, dtype: ir.DataType, name: str) -> tuple[SparseInitializer, Loss]:
    """A sparse floating-point initializer in another type, and what it lost."""
    proto = onnx.SparseTensorProto.FromString(tensor.proto.SerializeToString())
    values = numpy_helper.to_array(tensor.proto.values)
    loss = Loss(name, values.size, FORMATS[dtype])
    converted = ir.serde.serialize_tensor(ir.Tensor(rounded(values, False, loss), dtype=dtype, name=name))
    proto.values.CopyFrom(converted)
    return SparseInitializer(proto), loss


_INFINITE = 1e30
_INFINITE_SCALAR = 1e9
"""Larger ones stand for infinity in masks: clamping them is what is wanted."""


@dataclass
class Survey:
    """The range of a tensor's values."""

    count: int = 0
    """Values other than 0."""
    largest: float = 0.0
    """Largest absolute value that does not stand for infinity."""
    small: int = 0
    """Values other than 0 whose absolute value is below the asked limit."""


def survey(tensor: ir.TensorProtocol, min_abs: float) -> Survey:
    """Look at every value of an fp32 tensor, in pieces."""
    found = Survey()
    end = _INFINITE_SCALAR if tensor.size == 1 else _INFINITE
    for piece in array_pieces(tensor):
        size = np.abs(piece)
        found.count += int(np.count_nonzero(size))
        found.small += int(np.count_nonzero((size < min_abs) & (size > 0)))
        found.largest = max(found.largest, float(np.max(size, initial=0.0, where=size < end)))
    return found
