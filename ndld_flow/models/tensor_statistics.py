"""What the numbers of a tensor are like, and the first of them, read within a few megabytes of memory.

::

    told = tensor_statistics(tensor, limit_bytes=64 * 2**20)
    told.size_bytes, told.numbers          # the latter None where nothing was read; told.unread says why
    first_values(tensor, 100)
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from ndld_flow.base.quantities import size
from ndld_flow.models.derived_tensors import pieces_of
from ndld_flow.models.sparse_tensors import SparseInitializer

DEFAULT_LIMIT_BYTES = 64 * 2**20
BINS = 24
"""Bars of a histogram: enough to see a shape, few enough for a line of text."""

Scalar = int | float | str
"""An element as Python has it; complex ones are text."""
_Array = npt.NDArray[Any]
_Reading = Callable[[], Iterable[_Array]]

_PIECE_BYTES = 3 * 2**18
"""A multiple of every element's size and, for types of 2, 4 and 6 bits, of whole groups of eight elements."""


@dataclass(frozen=True)
class Numbers:
    """Of all elements of one tensor. NaN and infinities are counted and else left out."""

    minimum: int | float | None
    """None where no element is finite, as are the three below."""
    maximum: int | float | None
    mean: float | None
    """None also where the sum is past what a double holds."""
    std: float | None
    """Of the population, not of a sample."""
    nans: int
    infinities: int
    zeros: int
    histogram: tuple[int, ...]
    """Counts of the finite elements in `BINS` equal parts of minimum to maximum; one part where these are equal, none
    where there is no range."""


@dataclass(frozen=True)
class TensorStatistics:
    """One tensor: what it declares, and what its numbers are like."""

    dtype: str
    """`float32`, `int4`, `string`, as `TensorSpec` has them."""
    shape: tuple[int, ...]
    elements: int
    size_bytes: int
    """As stored in a dense tensor; of strings, their characters' bytes."""
    numbers: Numbers | None
    unread: str = ""
    """Why there are no numbers, in a few words; empty where there are."""


def tensor_statistics(tensor: ir.TensorProtocol, limit_bytes: int = DEFAULT_LIMIT_BYTES) -> TensorStatistics:
    """Read a tensor in pieces and tell what is in it; nothing is read of one over `limit_bytes`.

    External data must have been checked, as `load_model` does. Raises OSError where it cannot be read.
    """
    stored = tensor_bytes(tensor)
    unread = _unreadable(tensor, stored, limit_bytes)
    shape = _shape(tensor)
    elements = math.prod(shape)
    numbers = None if unread else _numbers_of(elements, _reading(tensor, stored))
    if numbers is None and not unread:
        unread = "it holds fewer values than its shape says"
    return TensorStatistics(dtype_name(tensor.dtype), shape, elements, stored, numbers, unread)


def first_values(tensor: ir.TensorProtocol, most: int) -> tuple[Scalar, ...]:
    """At most so many elements, in the order they lie in memory; empty where they cannot be told.

    Of external data no more than the first piece is read. Raises OSError where that fails.
    """
    if tensor.dtype == ir.DataType.STRING:
        return tuple(_text(one) for one in itertools.islice(tensor.numpy().flat, most))
    if _unreadable(tensor, 0, 1) or (isinstance(tensor, SparseInitializer) and tensor.nbytes > DEFAULT_LIMIT_BYTES):
        return ()
    wanted = math.ceil(most * tensor.dtype.bitwidth / 8)
    piece = next(element_pieces(tensor, min(wanted + -wanted % 48, _PIECE_BYTES)), np.empty(0))
    return tuple(_scalar(one) for one in piece[:most].tolist())


def tensor_bytes(tensor: ir.TensorProtocol) -> int:
    """Bytes of a tensor's elements; of strings, of their characters."""
    if tensor.dtype == ir.DataType.STRING:
        return sum(len(one) for one in tensor.numpy().flat)
    return 0 if tensor.dtype == ir.DataType.UNDEFINED else tensor.nbytes


def dtype_name(dtype: ir.DataType) -> str:
    """numpy's or ml_dtypes' name; `string` and `undefined` for what these lack."""
    if dtype in (ir.DataType.STRING, ir.DataType.UNDEFINED):
        return dtype.name.lower()
    return str(np.dtype(dtype.numpy()).name)


def _shape(tensor: ir.TensorProtocol) -> tuple[int, ...]:
    return tuple(int(dim) for dim in tensor.shape.numpy())


def _unreadable(tensor: ir.TensorProtocol, stored: int, limit: int) -> str:
    if tensor.dtype == ir.DataType.STRING:
        return "strings have no statistics"
    if tensor.dtype == ir.DataType.UNDEFINED:
        return "its type is not told"
    return f"{size(stored)} are over the limit of {size(limit)}" if stored > limit else ""


def element_pieces(tensor: ir.TensorProtocol, piece_bytes: int) -> Iterator[_Array]:
    """The elements, flat and in order, in numpy's dtypes: of floats doubles, of what is ml_dtypes' doubles or int64.

    A piece's bytes should be a multiple of 48, so that elements of 2 to 128 bits end with it. Not for strings.
    """
    left = tensor.size
    for data in pieces_of(tensor, piece_bytes):
        piece = _unpacked(tensor.dtype, data)[:left]
        left -= piece.size
        yield piece


def _unpacked(dtype: ir.DataType, data: bytes) -> _Array:
    kind = np.dtype(dtype.numpy())
    if dtype.bitwidth >= 8:
        piece = np.frombuffer(data, dtype=kind.newbyteorder("<"))
    else:
        groups = np.frombuffer(data, dtype=np.uint8)
        piece = ir.PackedTensor(groups, dtype, shape=ir.Shape([len(groups) * 8 // dtype.bitwidth])).numpy()
    if kind.kind in "biuc":
        return piece.astype(np.uint8) if kind.kind == "b" else piece
    return piece.astype(np.int64 if dtype.is_integer() else np.float64)


def _reading(tensor: ir.TensorProtocol, stored: int) -> _Reading:
    """Gives the pieces as often as it is called; a tensor of one piece is read only once."""
    if stored > _PIECE_BYTES:
        return functools.partial(element_pieces, tensor, _PIECE_BYTES)
    pieces = list(element_pieces(tensor, _PIECE_BYTES))
    return lambda: pieces


def _numbers_of(elements: int, read: _Reading) -> Numbers | None:
    """None where there are fewer elements than the shape says."""
    gathered = _Moments()
    for piece in read():
        gathered.add(piece)
    if gathered.count + gathered.nans + gathered.infinities != elements:
        return None
    low, high = gathered.span or (None, None)
    return Numbers(
        low,
        high,
        _finite(gathered.mean if gathered.count else math.nan),
        _finite(math.sqrt(gathered.squares / gathered.count) if gathered.count else math.nan),
        gathered.nans,
        gathered.infinities,
        gathered.zeros,
        () if low is None or high is None else _histogram(read, float(low), float(high), gathered.count),
    )


@dataclass
class _Moments:
    """Grows piece by piece, by Chan's formula for joining variances: stable, and one pass."""

    count: int = 0
    """Finite elements."""
    nans: int = 0
    infinities: int = 0
    zeros: int = 0
    mean: float = 0.0
    squares: float = 0.0
    """Sum of squared distances from the mean."""
    span: tuple[float, float] | None = None
    """Smallest and largest finite element; None of complex ones, which have no order."""

    def add(self, piece: _Array) -> None:
        self.zeros += int(piece.size - np.count_nonzero(piece))
        if piece.dtype.kind in "fc" and not np.isfinite(piece).all():
            nans = int(np.isnan(piece).sum())
            self.nans += nans
            self.infinities += int((~np.isfinite(piece)).sum()) - nans
            piece = piece[np.isfinite(piece)]
        if piece.size and piece.dtype.kind != "c":
            self._join(piece)
        elif piece.size:
            self.count += piece.size
            self.mean = self.squares = math.nan

    def _join(self, piece: _Array) -> None:
        low, high = piece.min().item(), piece.max().item()
        self.span = (low, high) if self.span is None else (min(low, self.span[0]), max(high, self.span[1]))
        with np.errstate(over="ignore", invalid="ignore"):
            doubles = piece.astype(np.float64)
            mean = float(doubles.mean())
            doubles -= mean
            squares = float(np.dot(doubles, doubles))
        total, shift = self.count + piece.size, mean - self.mean
        self.squares += squares + shift * shift * self.count * piece.size / total
        self.mean += shift * piece.size / total
        self.count = total


def _histogram(read: _Reading, low: float, high: float, count: int) -> tuple[int, ...]:
    """A second reading: the bars' edges are known only after the first."""
    if low == high:
        return (count,)
    scale = BINS / (high - low)
    if not math.isfinite(high - low) or not 0 < scale < math.inf:
        return ()
    counts = np.zeros(BINS, dtype=np.int64)
    for piece in read():
        doubles = piece.astype(np.float64)
        doubles = doubles[np.isfinite(doubles)]
        places = np.minimum(((doubles - low) * scale).astype(np.int64), BINS - 1)
        counts += np.bincount(places, minlength=BINS)
    return tuple(counts.tolist())


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _scalar(value: bool | complex) -> Scalar:
    return f"{value.real:g}{value.imag:+g}j" if isinstance(value, complex) else value


def _text(value: bytes | str) -> str:
    return value.decode("utf-8", errors="replace") if isinstance(value, bytes) else str(value)
