"""Statistics of tensors of any size, updated piece by piece: extremes, moments, and sums over a pair of tensors.

Sums are float64. NaN and infinities are counted and otherwise ignored.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from ndld_flow.models.tensors import Array
from ndld_flow.records.accuracy import SAME_DB


@dataclass
class Extremes:
    """Counts of elements, and the smallest and the largest finite one."""

    count: int = 0
    """Finite elements."""
    nans: int = 0
    infinities: int = 0
    minimum: int | float = math.inf
    """Smallest finite element; infinity without one, and for complex numbers, which have no order."""
    maximum: int | float = -math.inf

    def add(self, piece: Array) -> Array:
        """Add elements of any shape, and return those that are finite."""
        if not piece.size:
            return piece
        low, high = _ends(piece)
        # Extremes are finite only if all elements are, and take less time than a mask.
        if not (math.isfinite(low) and math.isfinite(high)):
            finite = np.isfinite(piece)
            nans = int(np.count_nonzero(np.isnan(piece)))
            size, piece = piece.size, piece[finite]
            self.nans += nans
            self.infinities += size - piece.size - nans
            low, high = _ends(piece)
        self.count += piece.size
        if low <= high:
            self.minimum, self.maximum = min(self.minimum, low), max(self.maximum, high)
        return piece

    @property
    def largest_abs(self) -> int | float:
        """Largest absolute value of a finite element; 0 without one."""
        return max(-self.minimum, self.maximum, 0.0)


def _ends(piece: Array) -> tuple[int | float, int | float]:
    """Return the smallest and the largest element; NaN if there are none, or if they have no order."""
    if not piece.size or piece.dtype.kind == "c":
        return math.nan, math.nan
    if piece.dtype.kind in "biu":
        return int(piece.min()), int(piece.max())
    return float(piece.min()), float(piece.max())


@dataclass
class Moments(Extremes):
    """Extremes, zeros, mean and variance, by Chan's formula for merging variances: stable, and in one pass."""

    zeros: int = 0
    mean: float = 0.0
    """NaN for complex numbers, and if the sum exceeds the range of a double."""
    squares: float = 0.0
    """Sum of squared distances from the mean."""

    def add(self, piece: Array) -> Array:
        self.zeros += int(piece.size - np.count_nonzero(piece))
        before = self.count
        finite = super().add(piece)
        if finite.size and finite.dtype.kind == "c":
            self.mean = self.squares = math.nan
        elif finite.size:
            with np.errstate(over="ignore", invalid="ignore"):
                doubles = finite.astype(np.float64)
                mean = float(doubles.mean())
                doubles -= mean
                squares = float(np.dot(doubles, doubles))
            shift = mean - self.mean
            self.squares += squares + shift * shift * before * finite.size / self.count
            self.mean += shift * finite.size / self.count
        return finite


BLOCK = 1 << 22
"""Number of elements processed at once when slices are separate."""


class SliceMoments:
    """Sums of powers of x - shift for each slice, where shift is the slice's mean in the first sample.

    Slices are the indices of an axis; without one there is a single slice. Elements that are not finite count as the
    shift.
    """

    def __init__(self, axis: int | None) -> None:
        self._axis = axis
        self.samples = 0
        self.count = np.zeros(1)
        """[slices]: number of elements."""
        self.low, self.high = np.zeros(1), np.zeros(1)
        """[slices]"""
        self._shift, self._powers = np.zeros(1), np.zeros((4, 1))

    def add(self, array: Array) -> None:
        """Add one sample."""
        if not array.size:
            return
        slices = 1 if self._axis is None else array.shape[self._axis]
        if not self.samples:
            self.count = np.zeros(slices)
            self._shift, self._powers = np.zeros(slices), np.zeros((4, slices))
            self.low, self.high = np.full(slices, np.inf), np.full(slices, -np.inf)
            for rows, block in _blocks(array, self._axis):
                self._shift[rows] += np.where(np.isfinite(block), block, 0.0).sum(axis=1) / (array.size / slices)
        self.samples += 1
        for rows, block in _blocks(array, self._axis):
            centre = self._shift[rows, None]
            away = np.subtract(block, centre, out=block)  # outputs may have millions of values: no copy is made twice
            np.copyto(away, 0.0, where=~np.isfinite(away))
            self.count[rows] += block.shape[1]
            self.low[rows] = np.minimum(self.low[rows], away.min(axis=1) + centre[:, 0])
            self.high[rows] = np.maximum(self.high[rows], away.max(axis=1) + centre[:, 0])
            power = away.copy()
            for i in range(4):
                self._powers[i, rows] += power.sum(axis=1)
                power *= away

    @property
    def mean(self) -> Array:
        """[slices]"""
        mean: Array = self._shift + self._powers[0] / self.count
        return mean

    @property
    def variance(self) -> Array:
        """[slices]"""
        away = self._powers[0] / self.count
        variance: Array = np.maximum(self._powers[1] / self.count - away**2, 0.0)
        return variance

    @property
    def effective(self) -> Array:
        """[slices]: effective number of elements, sum(d^2)^2 / sum(d^4) with d = x - mean(x); at least 1."""
        p1, p2, p3, p4 = self._powers
        mean = p1 / self.count
        fourth = p4 - 4 * mean * p3 + 6 * mean**2 * p2 - 3 * self.count * mean**4
        square = (self.variance * self.count) ** 2
        ratio = np.divide(square, fourth, out=np.ones_like(square), where=fourth > 0)
        effective: Array = np.clip(ratio, 1.0, self.count)
        return effective


def _blocks(array: Array, axis: int | None) -> Iterator[tuple[slice, Array]]:
    """Yield slice indices and their float64 values [slices, values], a bounded number at a time."""
    moved = array.reshape(1, -1) if axis is None else np.moveaxis(array, axis, 0)
    length = array.size // len(moved) if len(moved) else 0
    if not length:
        return
    step = max(1, BLOCK // length)
    for start in range(0, len(moved), step):
        rows = moved[start : start + step].reshape(-1, length)
        for column in range(0, length, BLOCK):
            yield slice(start, start + len(rows)), rows[:, column : column + BLOCK].astype(np.float64)


SMALLEST = 2.0**-126
"""float32's smallest normal number; smaller divisors are raised to it."""


@dataclass
class PairSums:
    """Sums over the elements of a reference r and a candidate c, both finite float64."""

    count: int = 0
    dot: float = 0.0
    """sum(r c)"""
    signal: float = 0.0
    """sum(r^2)"""
    energy: float = 0.0
    """sum(c^2)"""
    noise: float = 0.0
    """sum((c - r)^2)"""

    def add(self, r: Array, c: Array) -> Array | None:
        """Add flat pieces, and return c - r; None, and nothing is added, if that or its squares are not finite."""
        difference: Array = c - r
        noise = float(difference @ difference)
        if not math.isfinite(noise):
            return None
        self.count += r.size
        self.noise += noise
        self.signal += float(r @ r)
        self.energy += float(c @ c)
        self.dot += float(r @ c)
        return difference

    def ratios(self, scale: float = 1.0) -> dict[str, float]:
        """Return `cosine`, `snr_db` and `relative_rms`; `scale` is the factor by which r and c were multiplied."""
        length = math.sqrt(self.signal) * math.sqrt(self.energy)
        cosine = max(-1.0, min(1.0, self.dot / length)) if length else 0.0
        smallest = SMALLEST * scale * math.sqrt(max(self.count, 1))
        return {
            # Equal tensors have a cosine of exactly 1, despite the rounding of the sums.
            "cosine": 1.0 if self.noise == 0.0 else cosine,
            "snr_db": decibels(self.signal, self.noise),
            "relative_rms": math.sqrt(self.noise) / max(math.sqrt(self.signal), smallest),
        }


def decibels(signal: float, noise: float) -> float:
    """Return 10 log10(signal / noise) of two energies; `SAME_DB` without noise, its negative without a signal."""
    if noise == 0.0:
        return SAME_DB
    return 10.0 * (math.log10(signal) - math.log10(noise)) if signal else -SAME_DB
