"""Conversion of tensors of any size to another element type, in pieces, with the values that change."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import onnx_ir as ir
from onnx import numpy_helper

from ndld_flow.base.errors import RequestError
from ndld_flow.base.quantities import count
from ndld_flow.models.derived_tensors import Array, DerivedTensor, array_pieces, element_bytes
from ndld_flow.models.element_types import dtype_name
from ndld_flow.models.sparse_tensors import SparseInitializer
from ndld_flow.models.tensor_statistics import element_pieces

_PIECE_BYTES = 3 * 2**18
"""A multiple of every element's size."""


@dataclass
class Lost:
    """Numbers of values that a conversion changes; each value counts once, by its worst change."""

    beyond: int = 0
    """Values outside the type's range, clamped to it, and NaN converted to 0 because the type has none."""
    vanished: int = 0
    """Nonzero values that became 0."""
    rounded: int = 0
    """Values that were rounded; for integer types, truncated."""

    def add(self, other: Lost) -> None:
        self.beyond += other.beyond
        self.vanished += other.vanished
        self.rounded += other.rounded

    def describe(self, of: int, dtype: ir.DataType) -> str:
        """Return `of 100 values 3 beyond float16's range, 2 became 0, 40 rounded`; empty if none changed."""
        parts = [
            f"{count(number)} {text}"
            for number, text in (
                (self.beyond, f"beyond {dtype_name(dtype)}'s range"),
                (self.vanished, "became 0"),
                (self.rounded, "rounded"),
            )
            if number
        ]
        return f"of {count(of)} values {', '.join(parts)}" if parts else ""


class ConvertedTensor(DerivedTensor):
    """A tensor in another type: rounded to nearest, clamped to its range; integers are truncated."""

    def convert(self, piece: Array) -> Array:
        return in_type(piece, self.dtype)[0]

    def pieces(self) -> Iterator[bytes]:
        for piece in element_pieces(self.source, _PIECE_BYTES):
            yield element_bytes(self.convert(piece), self.dtype)

    def lost(self) -> Lost:
        """Read all values and count those that change."""
        total = Lost()
        for piece in element_pieces(self.source, _PIECE_BYTES):
            total.add(in_type(piece, self.dtype)[1])
        return total


def check_conversion(source: ir.DataType, target: ir.DataType) -> None:
    """Raise `RequestError` for types between which numbers cannot be converted."""
    for dtype in (source, target):
        if dtype in (ir.DataType.STRING, ir.DataType.UNDEFINED) or dtype.name.startswith("COMPLEX"):
            raise RequestError(f"{dtype_name(source)} cannot be converted to {dtype_name(target)}")


def in_type(piece: Array, dtype: ir.DataType) -> tuple[Array, Lost]:
    """Convert integers or doubles to another type; return them with the number of values that changed."""
    if dtype == ir.DataType.BOOL:
        return piece != 0, Lost(rounded=int(np.count_nonzero((piece != 0) & (piece != 1))))
    return _as_integers(piece, dtype) if dtype.is_integer() else _as_floats(piece, dtype)


def _as_integers(piece: Array, dtype: ir.DataType) -> tuple[Array, Lost]:
    limits = ml_dtypes.iinfo(dtype.numpy())
    low, high = int(limits.min), int(limits.max)
    if piece.dtype.kind != "f":
        over, under, nan, truncated = piece > high, piece < low, np.zeros(piece.shape, bool), piece
    else:
        # A double cannot represent 2**63 - 1: values from 2**63 on are out of range.
        truncated = np.trunc(piece)
        over, under, nan = truncated >= float(high + 1), truncated < float(low), np.isnan(piece)
    beyond = over | under | nan
    result = np.where(beyond, 0, truncated).astype(np.uint64 if high > 2**63 else np.int64)
    result[over], result[under] = high, low
    cut = ~beyond & (truncated != piece)
    vanished = int(np.count_nonzero(cut & (truncated == 0)))
    lost = Lost(int(np.count_nonzero(beyond)), vanished, int(np.count_nonzero(cut)) - vanished)
    return result.astype(dtype.numpy()), lost


def _as_floats(piece: Array, dtype: ir.DataType) -> tuple[Array, Lost]:
    target = dtype.numpy()
    largest = float(ml_dtypes.finfo(target).max)
    with np.errstate(over="ignore", invalid="ignore"):
        result = piece.astype(target)
        doubles = piece.astype(np.float64)
        has_infinity = bool(np.isinf(np.array(np.inf).astype(target)))
        beyond = (np.abs(doubles) > largest) & ~(np.isinf(doubles) & has_infinity)
        result[beyond] = np.copysign(largest, doubles[beyond]).astype(target)
        nan = np.isnan(doubles) & ~np.isnan(result.astype(np.float64))
        result[nan] = 0
        back = result.astype(np.float64)
        differs = ~beyond & ~np.isnan(doubles) & (back.astype(piece.dtype) != piece)
    vanished = int(np.count_nonzero(differs & (back == 0)))
    lost = Lost(int(np.count_nonzero(beyond | nan)), vanished, int(np.count_nonzero(differs)) - vanished)
    return result, lost


MAX_HALF = 65504.0
"""Largest finite fp16 value."""
MIN_HALF = 2.0**-24
"""Smallest positive fp16 value (subnormal)."""


@dataclass(frozen=True)
class Format:
    """A floating-point type and its limits."""

    precision: str
    """Common name: `fp16`."""
    dtype: np.dtype[Any]
    largest: float
    """Largest finite value."""
    smallest: float
    """Smallest positive value (subnormal)."""
    smallest_normal: float
    """Smallest normal value; smaller ones have fewer bits."""


def format_of(precision: str, dtype: ir.DataType) -> Format:
    """Return the limits of a floating-point type of numpy or ml_dtypes."""
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
    """The changes of one tensor's values by a conversion."""

    name: str
    size: int
    """Number of values."""
    format: Format = HALF
    """Target type."""
    clamped: int = 0
    """Finite values beyond the type's range, which become its largest value, not infinity."""
    vanished: int = 0
    """Nonzero values that are closer to 0 than to the type's smallest value."""
    largest: float = 0.0
    """Largest finite absolute value before the conversion."""


class RoundedTensor(DerivedTensor):
    """A floating-point tensor in another floating-point type, rounded to nearest.

    Finite values beyond the range are clamped. In scalars and per-channel vectors a nonzero value never becomes 0: they
    are divisors and epsilons. In weight matrices it may: rounding to nearest is the smaller error there.
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
        """Convert elements of the source to this type; add their changes to `loss`."""
        return rounded(piece, self._keeps_nonzero, self.loss)


def rounded(values: Array, keeps_nonzero: bool, loss: Loss) -> Array:
    """Round to the loss's format, clamp to its range, and count the changes."""
    target = loss.format
    if values.dtype == FORMATS[ir.DataType.BFLOAT16].dtype:
        values = values.astype(np.float32)  # numpy lacks some of these operations for bf16
    with np.errstate(over="ignore"):
        result = values.astype(target.dtype)
    if not values.size:
        return result
    largest = float(np.max(np.abs(values)))
    if not largest <= target.largest:  # also for infinity and NaN, which stay unchanged
        # Finite values are clamped to the range.
        finite = np.isfinite(values)
        beyond = finite & (np.abs(values) > loss.format.largest)
        result[beyond] = np.copysign(loss.format.largest, values[beyond]).astype(result.dtype)
        loss.clamped += int(np.count_nonzero(beyond))
        largest = float(np.max(np.abs(values), initial=0.0, where=finite))
    loss.largest = max(loss.largest, largest)
    lost = np.count_nonzero(values) - np.count_nonzero(result)
    if lost:
        loss.vanished += int(lost)
        if keeps_nonzero:
            gone = (result == 0) & (values != 0)
            result[gone] = np.copysign(target.smallest, values[gone]).astype(target.dtype)
    return result


def rounded_sparse(tensor: SparseInitializer, dtype: ir.DataType, name: str) -> tuple[SparseInitializer, Loss]:
    """Return a sparse floating-point initializer in another type, and its loss."""
    proto = onnx.SparseTensorProto.FromString(tensor.proto.SerializeToString())
    values = numpy_helper.to_array(tensor.proto.values)
    loss = Loss(name, values.size, FORMATS[dtype])
    converted = ir.serde.serialize_tensor(ir.Tensor(rounded(values, False, loss), dtype=dtype, name=name))
    proto.values.CopyFrom(converted)
    return SparseInitializer(proto), loss


_INFINITE = 1e30
_INFINITE_SCALAR = 1e9
"""Larger values stand for infinity in masks: clamping them is intended."""


@dataclass
class Survey:
    """The range of a tensor's values."""

    count: int = 0
    """Nonzero values."""
    largest: float = 0.0
    """Largest absolute value that does not represent infinity."""
    small: int = 0
    """Nonzero values whose absolute value is below the requested limit."""


def survey(tensor: ir.TensorProtocol, min_abs: float) -> Survey:
    """Survey every value of an fp32 tensor, in pieces."""
    result = Survey()
    end = _INFINITE_SCALAR if tensor.size == 1 else _INFINITE
    for piece in array_pieces(tensor):
        size = np.abs(piece)
        result.count += int(np.count_nonzero(size))
        result.small += int(np.count_nonzero((size < min_abs) & (size > 0)))
        result.largest = max(result.largest, float(np.max(size, initial=0.0, where=size < end)))
    return result
