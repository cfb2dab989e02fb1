"""Statistics and first values of tensors, read within a few megabytes of memory.

::

    statistics = tensor_statistics(tensor, limit_bytes=64 * 2**20)
    statistics.size_bytes, statistics.numbers          # the latter None if nothing was read; `unread` says why
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
from ndld_flow.models.derived_tensors import byte_pieces
from ndld_flow.models.element_types import dtype_name
from ndld_flow.models.external_data import MissingTensor
from ndld_flow.models.sparse_tensors import SparseInitializer
from ndld_flow.models.streaming_statistics import Moments
from ndld_flow.records.inspection import Numbers

DEFAULT_LIMIT_BYTES = 64 * 2**20
BINS = 24
"""Bars of a histogram: enough to see a shape, few enough for a line of text."""

Scalar = int | float | str
"""An element as a Python value; complex numbers are text."""
_Array = npt.NDArray[Any]
_Reading = Callable[[], Iterable[_Array]]

_PIECE_BYTES = 3 * 2**18
"""A multiple of every element's size and, for types of 2, 4 and 6 bits, of whole groups of eight elements."""


@dataclass(frozen=True)
class TensorStatistics:
    """One tensor: its declaration and its statistics."""

    dtype: str
    """`float32`, `int4`, `string`, as `TensorSpec` has them."""
    shape: tuple[int, ...]
    elements: int
    size_bytes: int
    """Size of a dense tensor; for strings, the bytes of their characters."""
    numbers: Numbers | None
    unread: str = ""
    """Reason why there are no numbers; empty if there are."""


def tensor_statistics(tensor: ir.TensorProtocol, limit_bytes: int = DEFAULT_LIMIT_BYTES) -> TensorStatistics:
    """Read a tensor in pieces and return its statistics; a tensor over `limit_bytes` is not read.

    External data must have been checked, as `load_model` does. Raises OSError if it cannot be read.
    """
    stored = tensor_bytes(tensor)
    unread = _unreadable(tensor, stored, limit_bytes)
    shape = tuple(int(dim) for dim in tensor.shape.numpy())
    elements = math.prod(shape)
    numbers = None if unread else _numbers_of(elements, _reading(tensor, stored))
    if numbers is None and not unread:
        unread = "it has fewer values than its shape requires"
    return TensorStatistics(dtype_name(tensor.dtype), shape, elements, stored, numbers, unread)


def first_values(tensor: ir.TensorProtocol, most: int) -> tuple[Scalar, ...]:
    """Return at most `most` elements in memory order; empty if they cannot be read.

    Only the first piece of external data is read. Raises OSError if that fails.
    """
    if tensor.dtype == ir.DataType.STRING:
        return tuple(
            text.decode("utf-8", errors="replace") if isinstance(text, bytes) else str(text)
            for text in itertools.islice(tensor.numpy().flat, most)
        )
    if _unreadable(tensor, 0, 1) or (isinstance(tensor, SparseInitializer) and tensor.nbytes > DEFAULT_LIMIT_BYTES):
        return ()
    wanted = math.ceil(most * tensor.dtype.bitwidth / 8)
    piece = next(element_pieces(tensor, min(wanted + -wanted % 48, _PIECE_BYTES)), np.empty(0))
    return tuple(
        f"{value.real:g}{value.imag:+g}j" if isinstance(value, complex) else value for value in piece[:most].tolist()
    )


def tensor_bytes(tensor: ir.TensorProtocol) -> int:
    """Return the bytes of a tensor's elements, by its shape; for strings, of their characters."""
    if tensor.dtype == ir.DataType.STRING:
        return sum(len(element) for element in tensor.numpy().flat)
    return 0 if tensor.dtype == ir.DataType.UNDEFINED else tensor.nbytes


def _unreadable(tensor: ir.TensorProtocol, stored: int, limit: int) -> str:
    if isinstance(tensor, MissingTensor):
        return f"unknown: {tensor.reason}"
    if tensor.dtype == ir.DataType.STRING:
        return "strings have no statistics"
    if tensor.dtype == ir.DataType.UNDEFINED:
        return "its type is undefined"
    return f"{size(stored)} exceed the limit of {size(limit)}" if stored > limit else ""


def element_pieces(tensor: ir.TensorProtocol, piece_bytes: int) -> Iterator[_Array]:
    """Yield the elements, flat and in order, in numpy's dtypes: floats and types of ml_dtypes as doubles or int64.

    A piece's bytes should be a multiple of 48, so that it contains whole elements of 2 to 128 bits. Not for strings.
    """
    left = tensor.size
    for data in byte_pieces(tensor, piece_bytes):
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
    """Return a function that yields the pieces each time it is called; a tensor of one piece is read only once."""
    if stored > _PIECE_BYTES:
        return functools.partial(element_pieces, tensor, _PIECE_BYTES)
    pieces = list(element_pieces(tensor, _PIECE_BYTES))
    return lambda: pieces


def _numbers_of(elements: int, read: _Reading) -> Numbers | None:
    """Return the statistics; None if there are fewer elements than the shape needs."""
    moments = Moments()
    for piece in read():
        moments.add(piece)
    if moments.count + moments.nans + moments.infinities != elements:
        return None
    low, high = (moments.minimum, moments.maximum) if moments.minimum <= moments.maximum else (None, None)
    return Numbers(
        minimum=low,
        maximum=high,
        mean=_finite(moments.mean if moments.count else math.nan),
        std=_finite(math.sqrt(moments.squares / moments.count) if moments.count else math.nan),
        nans=moments.nans,
        infinities=moments.infinities,
        zeros=moments.zeros,
        histogram=() if low is None or high is None else _histogram(read, float(low), float(high), moments.count),
    )


def _histogram(read: _Reading, low: float, high: float, count: int) -> tuple[int, ...]:
    """Count the elements of each bar in a second reading: the first gives the edges."""
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
