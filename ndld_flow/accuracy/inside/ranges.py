"""The values of a tensor against what a floating-point format can hold."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import onnx_ir as ir

from ndld_flow.models.float_tensors import FORMATS, Format, format_of
from ndld_flow.models.tensors import Array
from ndld_flow.records.divergence import TensorRange

FormatLimits = Format
FORMAT_LIMITS: Mapping[str, FormatLimits] = {
    **{one.precision: one for one in FORMATS.values()},
    "fp8e4m3": format_of("fp8e4m3", ir.DataType.FLOAT8E4M3FN),
    "fp8e5m2": format_of("fp8e5m2", ir.DataType.FLOAT8E5M2),
}
"""`fp16`, `bf16`, `fp32`, `fp64`, `fp8e4m3`, `fp8e5m2` -> largest, smallest normal and smallest number."""
CHUNK = 8192
"""Elements looked at in one go: they stay in the processor's cache, and BLAS does not share so few among threads, which
costs far more than it saves."""


class RangeMeter:
    """The range of one tensor's values, sample after sample."""

    def __init__(self, tensor: str, limits: FormatLimits) -> None:
        self._tensor = tensor
        self._limits = limits
        self._elements = self._nans = self._infinities = self._finite = 0
        self._beyond = self._subnormal = self._vanishing = 0
        self._minimum, self._maximum, self._smallest = math.inf, -math.inf, math.inf
        self._squares = 0.0

    def add(self, array: Array) -> None:
        """Take one sample in: floats, integers or bools of any shape."""
        self._elements += array.size
        for chunk in _chunks(array.reshape(-1)):
            self._add(chunk)

    def range(self) -> TensorRange:
        """Of everything that was added."""
        any_finite, elements = self._finite > 0, max(self._elements, 1)
        return TensorRange(
            tensor=self._tensor,
            elements=self._elements,
            minimum=self._minimum if any_finite else 0.0,
            maximum=self._maximum if any_finite else 0.0,
            rms=math.sqrt(self._squares / self._finite) if any_finite else 0.0,
            smallest_abs=self._smallest if self._smallest < math.inf else 0.0,
            nan_count=self._nans,
            inf_count=self._infinities,
            beyond_share=self._beyond / elements,
            subnormal_share=self._subnormal / elements,
            vanishing_share=self._vanishing / elements,
        )

    def _add(self, chunk: Array) -> None:
        low, high = float(chunk.min()), float(chunk.max())
        if not (math.isfinite(low) and math.isfinite(high)):
            chunk = self._without_nonfinite(chunk)
            if not chunk.size:
                return
            low, high = float(chunk.min()), float(chunk.max())
        self._finite += chunk.size
        self._minimum, self._maximum = min(self._minimum, low), max(self._maximum, high)
        self._add_squares(chunk)
        size = np.abs(chunk)
        if max(-low, high) > self._limits.largest:
            self._beyond += int(np.count_nonzero(size > self._limits.largest))
        self._count_small(size)

    def _without_nonfinite(self, chunk: Array) -> Array:
        nans = int(np.count_nonzero(np.isnan(chunk)))
        finite: Array = chunk[np.isfinite(chunk)]
        self._nans += nans
        self._infinities += chunk.size - finite.size - nans
        return finite

    def _add_squares(self, chunk: Array) -> None:
        doubles = chunk.astype(np.float64)
        with np.errstate(over="ignore"):
            self._squares = min(self._squares + float(doubles @ doubles), np.finfo(np.float64).max)

    def _count_small(self, size: Array) -> None:
        """Of what is other than 0. Halfway between 0 and the smallest number is rounded to 0, which is even."""
        smallest = _smallest_above_zero(size)
        self._smallest = min(self._smallest, smallest)
        if smallest < self._limits.smallest_normal:
            zeros = size.size - int(np.count_nonzero(size))
            self._subnormal += int(np.count_nonzero(size < self._limits.smallest_normal)) - zeros
            self._vanishing += int(np.count_nonzero(size <= self._limits.smallest / 2)) - zeros


def _chunks(flat: Array) -> Iterator[Array]:
    """In a type that numpy computes with, which holds all values exactly where they are floats of 64 bits or fewer."""
    for start in range(0, flat.size, CHUNK):
        chunk = flat[start : start + CHUNK]
        yield chunk if chunk.dtype in (np.float32, np.float64) else chunk.astype(_wider(chunk))


def _smallest_above_zero(size: Array) -> float:
    """Infinity when all are 0. Bits of positive floats are ordered as the floats; those of 0, less 1, are the last."""
    bits: Any = size.view(np.uint32 if size.dtype == np.float32 else np.uint64)
    least = int((bits - bits.dtype.type(1)).min())
    none = least == np.iinfo(bits.dtype).max
    return math.inf if none else float(np.array(least + 1, bits.dtype).view(size.dtype))


def _wider(chunk: Array) -> type[np.floating]:
    return np.float64 if chunk.dtype.kind in "biu" else np.float32
