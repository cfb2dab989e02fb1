"""Tensors in another element type, and which values that costs. Any size, in pieces."""

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
"""Whole elements of every size."""


@dataclass
class Lost:
    """What values lose in another type. Each is counted once, where it loses most."""

    beyond: int = 0
    """Outside the type's range: they became its nearest number. NaN where the type has none: it became 0."""
    vanished: int = 0
    """Other than 0, and too near to it: they became 0."""
    rounded: int = 0
    """Became another number near by; of integers, what stands before the point."""

    def add(self, other: Lost) -> None:
        self.beyond += other.beyond
        self.vanished += other.vanished
        self.rounded += other.rounded

    def in_words(self, of: int, dtype: ir.DataType) -> str:
        """`3 of 100 values are beyond float16's range, 2 became 0, 40 were rounded`; empty when all are as before."""
        said = [
            f"{count(number)} {words}"
            for number, words in (
                (self.beyond, f"beyond {dtype_name(dtype)}'s range"),
                (self.vanished, "became 0"),
                (self.rounded, "rounded"),
            )
            if number
        ]
        return f"of {count(of)} values {', '.join(said)}" if said else ""


class ConvertedTensor(DerivedTensor):
    """A tensor's numbers in another type: to the nearest, and within its range; integers are cut at the point."""

    def convert(self, piece: Array) -> Array:
        return in_type(piece, self.dtype)[0]

    def pieces(self) -> Iterator[bytes]:
        for piece in element_pieces(self.source, _PIECE_BYTES):
            yield element_bytes(self.convert(piece), self.dtype)

    def lost(self) -> Lost:
        """Read all values and count what they lose."""
        total = Lost()
        for piece in element_pieces(self.source, _PIECE_BYTES):
            total.add(in_type(piece, self.dtype)[1])
        return total


def check_conversion(source: ir.DataType, target: ir.DataType) -> None:
    """Raises `RequestError` for types between which numbers do not go."""
    for dtype in (source, target):
        if dtype in (ir.DataType.STRING, ir.DataType.UNDEFINED) or dtype.name.startswith("COMPLEX"):
            raise RequestError(f"{dtype_name(source)} cannot be converted to {dtype_name(target)}")


def in_type(piece: Array, dtype: ir.DataType) -> tuple[Array, Lost]:
    """Integers or doubles -> the same numbers in another type, and what they lost."""
    if dtype == ir.DataType.BOOL:
        return piece != 0, Lost(rounded=int(np.count_nonzero((piece != 0) & (piece != 1))))
    return _as_integers(piece, dtype) if dtype.is_integer() else _as_floats(piece, dtype)


def _as_integers(piece: Array, dtype: ir.DataType) -> tuple[Array, Lost]:
    limits = ml_dtypes.iinfo(dtype.numpy())
    low, high = int(limits.min), int(limits.max)
    if piece.dtype.kind != "f":
        over, under, nothing, whole = piece > high, piece < low, np.zeros(piece.shape, bool), piece
    else:
        # A double cannot hold 2**63 - 1: what is not below 2**63 is over.
        whole = np.trunc(piece)
        over, under, nothing = whole >= float(high + 1), whole < float(low), np.isnan(piece)
    beyond = over | under | nothing
    result = np.where(beyond, 0, whole).astype(np.uint64 if high > 2**63 else np.int64)
    result[over], result[under] = high, low
    cut = ~beyond & (whole != piece)
    vanished = int(np.count_nonzero(cut & (whole == 0)))
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
        nothing = np.isnan(doubles) & ~np.isnan(result.astype(np.float64))
        result[nothing] = 0
        back = result.astype(np.float64)
        differs = ~beyond & ~np.isnan(doubles) & (back.astype(piece.dtype) != piece)
    vanished = int(np.count_nonzero(differs & (back == 0)))
    lost = Lost(int(np.count_nonzero(beyond | nothing)), vanished, int(np.count_nonzero(differs)) - vanished)
    return result, lost
