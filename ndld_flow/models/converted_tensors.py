"""Conversion of tensors of any size to another element type, in pieces, with a count of the values that change."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import ml_dtypes
import numpy as np
import onnx_ir as ir

from ndld_flow.base.errors import RequestError
from ndld_flow.base.quantities import count
from ndld_flow.models.derived_tensors import Array, DerivedTensor
from ndld_flow.models.generated_tensors import element_bytes
from ndld_flow.models.tensor_statistics import dtype_name, element_pieces

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
