"""Streaming statistics of the tensors inside models: ranges relative to a floating-point format, and agreement.

The formulas are those of `accuracy.agreement` that are defined between any two layers. Models have hundreds of layers:
this module takes a tenth of the time."""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx_ir as ir

from ndld_flow.accuracy.slices import Worst, slice_error
from ndld_flow.base.declared_metrics import higher_is_better
from ndld_flow.models.lazy_tensors import FORMATS, Format, format_of
from ndld_flow.models.streaming_statistics import Extremes, PairSums
from ndld_flow.models.tensors import Array
from ndld_flow.records.accuracy import TensorRange

FormatLimits = Format
FORMAT_LIMITS: Mapping[str, FormatLimits] = {
    **{limits.precision: limits for limits in FORMATS.values()},
    "fp8e4m3": format_of("fp8e4m3", ir.DataType.FLOAT8E4M3FN),
    "fp8e5m2": format_of("fp8e5m2", ir.DataType.FLOAT8E5M2),
}
"""`fp16`, `bf16`, `fp32`, `fp64`, `fp8e4m3`, `fp8e5m2` -> largest, smallest normal and smallest number."""
CHUNK = 8192
"""Elements processed at once: they fit the processor's cache, and are too few for BLAS to split them among threads,
which would cost far more than it saves."""


class RangeMeter:
    """The range of one tensor's values over samples."""

    def __init__(self, tensor: str, limits: FormatLimits) -> None:
        self._tensor = tensor
        self._limits = limits
        self._extremes = Extremes()
        self._beyond = self._subnormal = self._vanishing = 0
        self._smallest, self._squares = math.inf, 0.0

    def add(self, array: Array) -> None:
        """Add one sample: floats, integers or bools of any shape."""
        flat = array.reshape(-1)
        for start in range(0, flat.size, CHUNK):
            chunk = flat[start : start + CHUNK]
            if chunk.dtype not in (np.float32, np.float64):  # in a type that numpy computes with, exact for these
                chunk = chunk.astype(np.float64 if chunk.dtype.kind in "biu" else np.float32)
            self._add(chunk)

    def range(self) -> TensorRange:
        """Return the range over all samples added."""
        extremes = self._extremes
        elements = extremes.count + extremes.nans + extremes.infinities
        total = max(elements, 1)
        return TensorRange(
            tensor=self._tensor,
            elements=elements,
            minimum=float(extremes.minimum) if extremes.count else 0.0,
            maximum=float(extremes.maximum) if extremes.count else 0.0,
            rms=math.sqrt(self._squares / extremes.count) if extremes.count else 0.0,
            smallest_abs=self._smallest if self._smallest < math.inf else 0.0,
            nan_count=extremes.nans,
            inf_count=extremes.infinities,
            beyond_share=self._beyond / total,
            subnormal_share=self._subnormal / total,
            vanishing_share=self._vanishing / total,
        )

    def _add(self, chunk: Array) -> None:
        chunk = self._extremes.add(chunk)
        if not chunk.size:
            return
        doubles = chunk.astype(np.float64)
        with np.errstate(over="ignore"):
            self._squares = min(self._squares + float(doubles @ doubles), sys.float_info.max)
        size = np.abs(chunk)
        if self._extremes.largest_abs > self._limits.largest:
            self._beyond += int(np.count_nonzero(size > self._limits.largest))
        self._count_small(size)

    def _count_small(self, size: Array) -> None:
        """Count small non-zero values. Half of the smallest number rounds to 0, which is even."""
        # Bits of positive floats have the order of the floats; those of 0, minus 1, come last.
        bits: Any = size.view(np.uint32 if size.dtype == np.float32 else np.uint64)
        least = int((bits - bits.dtype.type(1)).min())
        none = least == np.iinfo(bits.dtype).max
        smallest = math.inf if none else float(np.array(least + 1, bits.dtype).view(size.dtype))
        self._smallest = min(self._smallest, smallest)
        if smallest < self._limits.smallest_normal:
            zeros = size.size - int(np.count_nonzero(size))
            self._subnormal += int(np.count_nonzero(size < self._limits.smallest_normal)) - zeros
            self._vanishing += int(np.count_nonzero(size <= self._limits.smallest / 2)) - zeros


class LayerAgreement:
    """One tensor's agreement over all samples: each metric of its worst sample."""

    def __init__(self, by_slice: bool = False) -> None:
        self.nonfinite = 0
        """Elements that are NaN or infinite in the candidate only."""
        self.worst_slice = ""
        """The slice where `slice_rms` is worst, such as `channel 4`; empty if it is the whole tensor."""
        self._by_slice = by_slice
        self._worst: dict[str, float] = {}

    def add(self, reference: Array, candidate: Array) -> None:
        """Add one sample: floats of equal shapes."""
        sums, largest = PairSums(), 0.0
        flat_r, flat_c = reference.reshape(-1), candidate.reshape(-1)
        with np.errstate(over="ignore", invalid="ignore"):
            for start in range(0, flat_r.size, CHUNK):
                r = flat_r[start : start + CHUNK].astype(np.float64)
                c = flat_c[start : start + CHUNK].astype(np.float64)
                difference = sums.add(r, c)
                if difference is None:
                    in_reference, in_candidate = np.isfinite(r), np.isfinite(c)
                    self.nonfinite += int(np.count_nonzero(in_reference & ~in_candidate))
                    finite: Array = in_reference & in_candidate
                    difference = sums.add(r[finite], c[finite])
                if difference is not None and difference.size:
                    largest = max(largest, float(difference.max()), -float(difference.min()))
        if sums.count:
            for name, value in {**sums.ratios(), "max_abs": largest}.items():
                worse = min if higher_is_better(name) else max
                self._worst[name] = worse(self._worst.get(name, value), value)
            if self._by_slice:
                are_finite = bool(np.isfinite(reference).all() and np.isfinite(candidate).all())
                worst = slice_error(reference, candidate) if are_finite and sums.noise else Worst(0.0)
                if worst.value >= self._worst.get("slice_rms", 0.0):
                    self._worst["slice_rms"], self.worst_slice = worst.value, worst.place

    def metrics(self) -> dict[str, float]:
        """Return `cosine`, `snr_db`, `relative_rms`, `max_abs`, and `slice_rms` if requested.

        Empty if no value was finite on both sides.
        """
        return {name: min(value, sys.float_info.max) for name, value in self._worst.items()}
