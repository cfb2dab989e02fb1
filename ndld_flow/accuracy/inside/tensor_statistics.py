"""Streaming statistics of the tensors inside models: ranges relative to a floating-point format, and agreement.

The formulas are those of `accuracy.agreement` that are defined between any two layers. Models have hundreds of layers:
this module takes a tenth of the time."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir

from ndld_flow.accuracy.agreement import SMALLEST, cosine, decibels
from ndld_flow.accuracy.slices import Worst, slice_error
from ndld_flow.models.float_tensors import FORMATS, Format, format_of
from ndld_flow.models.tensors import Array
from ndld_flow.records.accuracy import TensorRange, higher_is_better

FormatLimits = Format
FORMAT_LIMITS: Mapping[str, FormatLimits] = {
    **{limits.precision: limits for limits in FORMATS.values()},
    "fp8e4m3": format_of("fp8e4m3", ir.DataType.FLOAT8E4M3FN),
    "fp8e5m2": format_of("fp8e5m2", ir.DataType.FLOAT8E5M2),
}
"""`fp16`, `bf16`, `fp32`, `fp64`, `fp8e4m3`, `fp8e5m2` -> largest, smallest normal and smallest number."""
CHUNK = 8192
"""Elements processed at once: they stay in the processor's cache, and BLAS does not split so few among threads,
which would cost far more than it saves."""


class RangeMeter:
    """The range of one tensor's values over samples."""

    def __init__(self, tensor: str, limits: FormatLimits) -> None:
        self._tensor = tensor
        self._limits = limits
        self._elements = self._nans = self._infinities = self._finite = 0
        self._beyond = self._subnormal = self._vanishing = 0
        self._minimum, self._maximum, self._smallest = math.inf, -math.inf, math.inf
        self._squares = 0.0

    def add(self, array: Array) -> None:
        """Add one sample: floats, integers or bools of any shape."""
        self._elements += array.size
        for chunk in _chunks(array.reshape(-1)):
            self._add(chunk)

    def range(self) -> TensorRange:
        """Return the range over all samples added."""
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
        """Count small non-zero values. Half of the smallest number rounds to 0, which is even."""
        smallest = _smallest_above_zero(size)
        self._smallest = min(self._smallest, smallest)
        if smallest < self._limits.smallest_normal:
            zeros = size.size - int(np.count_nonzero(size))
            self._subnormal += int(np.count_nonzero(size < self._limits.smallest_normal)) - zeros
            self._vanishing += int(np.count_nonzero(size <= self._limits.smallest / 2)) - zeros


def _chunks(flat: Array) -> Iterator[Array]:
    """Yield chunks in a type that numpy computes with, exact for floats of up to 64 bits."""
    for start in range(0, flat.size, CHUNK):
        chunk = flat[start : start + CHUNK]
        yield chunk if chunk.dtype in (np.float32, np.float64) else chunk.astype(_wider(chunk))


def _smallest_above_zero(size: Array) -> float:
    """Return the smallest value above 0, infinity when all are 0.

    Bits of positive floats have the order of the floats; those of 0, minus 1, come last.
    """
    bits: Any = size.view(np.uint32 if size.dtype == np.float32 else np.uint64)
    least = int((bits - bits.dtype.type(1)).min())
    none = least == np.iinfo(bits.dtype).max
    return math.inf if none else float(np.array(least + 1, bits.dtype).view(size.dtype))


def _wider(chunk: Array) -> type[np.floating]:
    return np.float64 if chunk.dtype.kind in "biu" else np.float32


@dataclass
class _Sums:
    """Sums over the elements of one sample that are finite on both sides."""

    finite: int = 0
    dot: float = 0.0
    signal: float = 0.0
    energy: float = 0.0
    noise: float = 0.0
    max_abs: float = 0.0

    def add(self, r: Array, c: Array) -> bool:
        """Add float64 values; return False and add nothing when some are not finite."""
        difference = c - r
        noise = float(difference @ difference)
        if not math.isfinite(noise):
            return False
        self.finite += r.size
        self.noise += noise
        self.signal += float(r @ r)
        self.energy += float(c @ c)
        self.dot += float(r @ c)
        self.max_abs = max(self.max_abs, float(difference.max()), -float(difference.min()))
        return True

    def metrics(self) -> dict[str, float]:
        """Return the metrics of this sample."""
        smallest = SMALLEST * math.sqrt(max(self.finite, 1))
        return {
            "cosine": 1.0 if self.noise == 0.0 else cosine(self.dot, self.signal, self.energy),
            "snr_db": decibels(self.signal, self.noise),
            "relative_rms": math.sqrt(self.noise) / max(math.sqrt(self.signal), smallest),
            "max_abs": self.max_abs,
        }


class LayerAgreement:
    """One tensor's agreement over all samples: each metric of its worst sample."""

    def __init__(self, by_slice: bool = False) -> None:
        self.nonfinite = 0
        """Elements that are NaN or infinite in the candidate only."""
        self.worst_slice = ""
        """The slice where `slice_rms` is worst, such as `channel 4`; empty where it is the whole tensor."""
        self._by_slice = by_slice
        self._worst: dict[str, float] = {}

    def add(self, reference: Array, candidate: Array) -> None:
        """Add one sample: floats of equal shapes."""
        sums = _Sums()
        flat_r, flat_c = reference.reshape(-1), candidate.reshape(-1)
        with np.errstate(over="ignore", invalid="ignore"):
            for start in range(0, flat_r.size, CHUNK):
                r = flat_r[start : start + CHUNK].astype(np.float64)
                c = flat_c[start : start + CHUNK].astype(np.float64)
                if not sums.add(r, c):
                    self._add_finite(sums, r, c)
        if sums.finite:
            for name, value in sums.metrics().items():
                worse = min if higher_is_better(name) else max
                self._worst[name] = worse(self._worst.get(name, value), value)
            if self._by_slice:
                self._add_slices(reference, candidate, equal=not sums.noise)

    def _add_slices(self, reference: Array, candidate: Array, equal: bool) -> None:
        finite = bool(np.isfinite(reference).all() and np.isfinite(candidate).all())
        found = slice_error(reference, candidate) if finite and not equal else Worst(0.0)
        if found.value >= self._worst.get("slice_rms", 0.0):
            self._worst["slice_rms"], self.worst_slice = found.value, found.place

    def metrics(self) -> dict[str, float]:
        """Return `cosine`, `snr_db`, `relative_rms`, `max_abs`, and `slice_rms` where requested.

        Empty where no value was finite on both sides.
        """
        return {name: min(value, sys.float_info.max) for name, value in self._worst.items()}

    def _add_finite(self, sums: _Sums, r: Array, c: Array) -> None:
        in_reference, in_candidate = np.isfinite(r), np.isfinite(c)
        self.nonfinite += int(np.count_nonzero(in_reference & ~in_candidate))
        both = in_reference & in_candidate
        if both.any():
            sums.add(r[both], c[both])
