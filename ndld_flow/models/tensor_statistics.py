"""Statistics, first values, digests and differences of tensors, read within a few megabytes of memory.

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
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir
from blake3 import blake3

from ndld_flow.base.quantities import finite, size
from ndld_flow.models.element_types import dtype_name
from ndld_flow.models.external_data import MissingTensor
from ndld_flow.models.lazy_tensors import UNPACKED_BYTES, SparseInitializer, byte_pieces, element_pieces
from ndld_flow.models.streaming_statistics import Moments
from ndld_flow.records.inspection import Numbers

DEFAULT_LIMIT_BYTES = 64 * 2**20
BINS = 24
"""Bars of a histogram: enough to see a shape, few enough for a line of text."""

Scalar = int | float | str
"""An element as a Python value; complex numbers are text."""
_Array = npt.NDArray[Any]
_Reading = Callable[[], Iterable[_Array]]


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
    shape = shape_of(tensor)
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
    piece = next(element_pieces(tensor, min(wanted + -wanted % 48, UNPACKED_BYTES)), np.empty(0))
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


def _reading(tensor: ir.TensorProtocol, stored: int) -> _Reading:
    """Return a function that yields the pieces each time it is called; a tensor of one piece is read only once."""
    if stored > UNPACKED_BYTES:
        return functools.partial(element_pieces, tensor, UNPACKED_BYTES)
    pieces = list(element_pieces(tensor, UNPACKED_BYTES))
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
        mean=finite(moments.mean if moments.count else math.nan),
        std=finite(math.sqrt(moments.squares / moments.count) if moments.count else math.nan),
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


_PIECE_BYTES = 2**22
_PIECE_ELEMENTS = 3 * 2**16
_SAMPLE_BYTES = 4096
_SHOWN = 6
"""Number of elements printed of a longer tensor."""
_SHOWN_WHOLE = 10
"""Largest tensor that is printed as a whole."""


@dataclass(frozen=True)
class Distance:
    """The difference between two tensors of the same shape."""

    elements: int
    differing: int
    max_abs_difference: float | None
    """None if elements cannot be subtracted, such as strings; infinite for a number against NaN or an infinity."""


def shape_of(tensor: ir.TensorProtocol) -> tuple[int, ...]:
    return tuple(int(dim) for dim in tensor.shape.numpy())


def digest_of(tensor: ir.TensorProtocol) -> bytes:
    """Return the digest of type, shape and all contents; without data, of type and shape."""
    return _digest(tensor, None)


def sample_digest(tensor: ir.TensorProtocol) -> bytes:
    """Return the digest of type, shape, and start, middle and end of the contents: enough to distinguish weights."""
    return _digest(tensor, _SAMPLE_BYTES)


def same_contents(first: ir.TensorProtocol, second: ir.TensorProtocol) -> bool:
    """Return whether type, shape and every bit agree. Data at the same location of the same file are not read."""
    if first is second:
        return True
    if first.dtype != second.dtype or shape_of(first) != shape_of(second):
        return False
    if isinstance(first, SparseInitializer) or isinstance(second, SparseInitializer):
        return _sparse_key(first) == _sparse_key(second)
    if first.dtype == ir.DataType.STRING:
        return bool(np.array_equal(first.numpy(), second.numpy()))
    if (
        isinstance(first, ir.ExternalTensor)
        and isinstance(second, ir.ExternalTensor)
        and (first.offset or 0) == (second.offset or 0)
        and Path(first.path).samefile(second.path)
    ):
        return True
    pieces = itertools.zip_longest(byte_pieces(first, _PIECE_BYTES), byte_pieces(second, _PIECE_BYTES))
    return all(left == right for left, right in pieces)


def distance_of(first: ir.TensorProtocol, second: ir.TensorProtocol) -> Distance | None:
    """Return the difference; None if elements cannot be compared: different shapes or kinds of elements, sparse
    tensors."""
    if (
        shape_of(first) != shape_of(second)
        or isinstance(first, SparseInitializer)
        or isinstance(second, SparseInitializer)
    ):
        return None
    if first.dtype == second.dtype == ir.DataType.STRING:
        return Distance(first.size, int(np.count_nonzero(first.numpy() != second.numpy())), None)
    floats = first.dtype.is_floating_point() and second.dtype.is_floating_point()
    if not floats and first.dtype != second.dtype:
        return None
    differing, largest = 0, 0.0
    for left, right in zip(_elements(first), _elements(second), strict=True):
        unequal = left != right
        if left.dtype.kind in "fc":  # NaN equals NaN here
            unequal &= ~(np.isnan(left) & np.isnan(right))
        if not unequal.any():
            continue
        wide = np.complex128 if left.dtype.kind == "c" else np.float64
        with np.errstate(invalid="ignore", over="ignore"):
            difference = float(np.abs(left[unequal].astype(wide) - right[unequal].astype(wide)).max())
        differing += int(unequal.sum())
        largest = max(largest, math.inf if math.isnan(difference) else difference)
    return Distance(first.size, differing, largest)


def values_text(tensor: ir.TensorProtocol) -> str:
    """Return `[1, 3, 320, 320]`; only the first of many elements."""
    if isinstance(tensor, SparseInitializer):
        return f"{tensor.stored_count:,} stored values"
    shown = first_values(tensor, tensor.size if tensor.size <= _SHOWN_WHOLE else _SHOWN)
    texts = [f"{value:.6g}" if isinstance(value, float) else str(value) for value in shown]
    if not shape_of(tensor) and texts:
        return texts[0]
    return f"[{', '.join([*texts, '…'] if tensor.size > len(texts) else texts)}]"


def _digest(tensor: ir.TensorProtocol, sample: int | None) -> bytes:
    hasher = blake3(repr((tensor.dtype, shape_of(tensor))).encode())
    if isinstance(tensor, MissingTensor):
        hasher.update(b"no data")
    elif isinstance(tensor, SparseInitializer):
        hasher.update(repr(_sparse_key(tensor)).encode())
    elif tensor.dtype == ir.DataType.STRING:
        hasher.update(repr(tensor.numpy().tolist()).encode())
    elif sample is None or tensor.nbytes <= 3 * sample:
        for piece in byte_pieces(tensor, _PIECE_BYTES):
            hasher.update(piece)
    else:
        hasher.update(_sample(tensor, sample))
    return hasher.digest(16)


def _sample(tensor: ir.TensorProtocol, width: int) -> bytes:
    starts = (0, tensor.nbytes // 2, tensor.nbytes - width)
    if not isinstance(tensor, ir.ExternalTensor):
        data = memoryview(tensor.tobytes())
        return b"".join(data[start : start + width] for start in starts)
    with Path(tensor.path).open("rb", buffering=0) as file:
        sampled = b""
        for start in starts:
            file.seek((tensor.offset or 0) + start)
            sampled += file.read(width)
        return sampled


def _sparse_key(tensor: ir.TensorProtocol) -> tuple[bytes, bytes] | None:
    """Return stored values and positions without the name; None for a dense tensor."""
    if not isinstance(tensor, SparseInitializer):
        return None
    values, indices = type(tensor.proto.values)(), type(tensor.proto.indices)()
    values.CopyFrom(tensor.proto.values)
    indices.CopyFrom(tensor.proto.indices)
    values.name = indices.name = ""
    return values.SerializeToString(deterministic=True), indices.SerializeToString(deterministic=True)


def _elements(tensor: ir.TensorProtocol) -> Iterator[_Array]:
    """Yield pieces of equally many elements, regardless of their width."""
    return element_pieces(tensor, _PIECE_ELEMENTS * tensor.dtype.bitwidth // 8)
