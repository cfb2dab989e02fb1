"""Histograms of two models' values over the same bins, sample after sample."""

from __future__ import annotations

import math

import numpy as np

from ndld_flow.models.tensors import Array
from ndld_flow.records.activations import Histogram

BINS = 64
_FINE = 64 * BINS
"""Bins that are counted in: enough that those which are told can be joined of them and still be near the values."""
_CHUNK = 1 << 20


class SharedHistogram:
    """Counts of the finite values of several sides in bins of equal width.

    Fine bins lie between the first sample's smallest and largest value; a later one outside them doubles the width of
    all, which keeps the counts exact. Those that are told begin with the first fine one that is not empty.
    """

    def __init__(self, sides: int) -> None:
        self._low = self._high = math.nan
        self._counts = [np.zeros(_FINE, np.int64) for _ in range(sides)]

    def add(self, *sides: Array) -> None:
        """Take one sample of each side in."""
        bounds = [bound for side in sides for bound in _finite_bounds(side)]
        if not bounds:
            return
        if math.isnan(self._low):
            self._low, self._high = _opened(min(bounds), max(bounds))
        while min(bounds) < self._low:
            self._double(downward=True)
        while max(bounds) > self._high:
            self._double(downward=False)
        for counts, side in zip(self._counts, sides, strict=True):
            self._count(counts, side)

    def histograms(self) -> tuple[Histogram, ...]:
        """One for each side."""
        used = np.flatnonzero(sum(self._counts))
        if not used.size:
            return tuple(Histogram(low=0.0, high=1.0, counts=(0,) * BINS) for _ in self._counts)
        first, joined = int(used[0]), -(-int(used[-1] - used[0] + 1) // BINS)
        width = self._high / _FINE - self._low / _FINE
        low, high = self._low + first * width, self._low + (first + joined * BINS) * width
        return tuple(Histogram(low=low, high=high, counts=_joined(counts, first, joined)) for counts in self._counts)

    def _double(self, downward: bool) -> None:
        # Float64 ends: wider than that there is nothing.
        span = min(self._high / 2 - self._low / 2, np.finfo(np.float64).max / 4) * 2
        if downward:
            self._low = max(self._low - span, -np.finfo(np.float64).max)
        else:
            self._high = min(self._high + span, np.finfo(np.float64).max)
        for counts in self._counts:
            merged = counts.reshape(-1, 2).sum(axis=1)
            none = np.zeros(_FINE // 2, np.int64)
            counts[:] = np.concatenate([none, merged] if downward else [merged, none])

    def _count(self, counts: Array, side: Array) -> None:
        flat = side.reshape(-1)
        for start in range(0, flat.size, _CHUNK):
            wide = flat[start : start + _CHUNK].astype(np.float64)
            # Halves, for the difference of two large numbers may be infinite.
            share = (wide[np.isfinite(wide)] / 2 - self._low / 2) / (self._high / 2 - self._low / 2)
            counts += np.bincount(np.clip((share * _FINE).astype(np.int64), 0, _FINE - 1), minlength=_FINE)


def _joined(counts: Array, first: int, joined: int) -> tuple[int, ...]:
    padded = np.concatenate([counts[first:], np.zeros(_FINE, np.int64)])[: joined * BINS]
    return tuple(padded.reshape(BINS, joined).sum(axis=1).tolist())


def _opened(low: float, high: float) -> tuple[float, float]:
    """Edges with something between them: one value alone is in the middle."""
    if low < high:
        return low, high
    margin = max(abs(low), 1.0) / 2
    return low - margin, high + margin


def _finite_bounds(side: Array) -> tuple[float, ...]:
    finite = side[np.isfinite(side)]
    return (float(finite.min()), float(finite.max())) if finite.size else ()
