"""Comparison of the contents of two tensors, within a few megabytes of memory."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir
from blake3 import blake3

from ndld_flow.models.derived_tensors import byte_pieces
from ndld_flow.models.sparse_tensors import SparseInitializer
from ndld_flow.models.tensor_statistics import element_pieces, first_values

_PIECE_BYTES = 2**22
_PIECE_ELEMENTS = 3 * 2**16
_SAMPLE_BYTES = 4096
_SHOWN = 6
"""Elements of a longer tensor that are printed."""
_SHOWN_WHOLE = 10
"""Largest tensor that is printed as a whole."""

_Array = npt.NDArray[Any]


@dataclass(frozen=True)
class Distance:
    """The difference between two tensors of one shape."""

    elements: int
    differing: int
    max_abs_difference: float | None
    """None if elements cannot be subtracted, such as strings; infinite for a number against NaN or an infinity."""


def shape_of(tensor: ir.TensorProtocol) -> tuple[int, ...]:
    return tuple(int(dim) for dim in tensor.shape.numpy())


def digest_of(tensor: ir.TensorProtocol) -> bytes:
    """Return the digest of type, shape and all contents."""
    return _digest(tensor, None)


def sample_digest(tensor: ir.TensorProtocol) -> bytes:
    """Return the digest of type, shape, and start, middle and end of the contents: enough to distinguish weights."""
    return _digest(tensor, _SAMPLE_BYTES)


def same_contents(one: ir.TensorProtocol, other: ir.TensorProtocol) -> bool:
    """Return whether type, shape and every bit agree. Data at the same location of the same file are not read."""
    if one is other:
        return True
    if one.dtype != other.dtype or shape_of(one) != shape_of(other):
        return False
    if isinstance(one, SparseInitializer) or isinstance(other, SparseInitializer):
        return _sparse_key(one) == _sparse_key(other)
    if one.dtype == ir.DataType.STRING:
        return bool(np.array_equal(one.numpy(), other.numpy()))
    externals = isinstance(one, ir.ExternalTensor) and isinstance(other, ir.ExternalTensor)
    if externals and (one.offset or 0) == (other.offset or 0) and Path(one.path).samefile(other.path):
        return True
    pieces = itertools.zip_longest(byte_pieces(one, _PIECE_BYTES), byte_pieces(other, _PIECE_BYTES))
    return all(left == right for left, right in pieces)


def distance_of(one: ir.TensorProtocol, other: ir.TensorProtocol) -> Distance | None:
    """Return the difference; None if elements cannot be compared: other shapes or kinds of elements, sparse tensors."""
    if shape_of(one) != shape_of(other) or isinstance(one, SparseInitializer) or isinstance(other, SparseInitializer):
        return None
    if one.dtype == other.dtype == ir.DataType.STRING:
        return Distance(one.size, int(np.count_nonzero(one.numpy() != other.numpy())), None)
    floats = one.dtype.is_floating_point() and other.dtype.is_floating_point()
    if not floats and one.dtype != other.dtype:
        return None
    differing, largest = 0, 0.0
    for left, right in zip(_elements(one), _elements(other), strict=True):
        count, difference = _piece_distance(left, right)
        differing, largest = differing + count, max(largest, difference)
    return Distance(one.size, differing, largest)


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
    if isinstance(tensor, SparseInitializer):
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


def _piece_distance(one: _Array, other: _Array) -> tuple[int, float]:
    """Return the number of differing elements and the largest difference. NaN equals NaN here."""
    unequal = one != other
    if one.dtype.kind in "fc":
        unequal &= ~(np.isnan(one) & np.isnan(other))
    if not unequal.any():
        return 0, 0.0
    left, right = one[unequal], other[unequal]
    wide = np.complex128 if one.dtype.kind == "c" else np.float64
    with np.errstate(invalid="ignore", over="ignore"):
        largest = float(np.abs(left.astype(wide) - right.astype(wide)).max())
    return int(unequal.sum()), math.inf if math.isnan(largest) else largest
