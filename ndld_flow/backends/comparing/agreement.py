"""How far a candidate's output agrees with a reference's, over any number of samples.

All sums are float64. `r` is the reference, `c` the candidate, both at the elements where both are finite:

- cosine: sum(r c) / (|r| |c|), cosine similarity; 1 when both are all zero, 0 when one is
- max_abs, mean_abs: maximum and mean of |c - r| (Polygraphy's `--check-error-stat max|mean`, absolute)
- max_rel: maximum of |c - r| / |r|, where an |r| below 2^-126 (float32's smallest normal number) counts as that
- snr_db: 10 log10(sum(r^2) / sum((c - r)^2)), the signal-to-noise ratio; `SAME_DB` when there is no noise
- mismatched: the fraction of elements outside |c - r| <= atol + rtol |r| (numpy.allclose); equality for integers,
  bools and strings. An element that is NaN or infinite in one of the two only is always outside. Floats have it only
  where a bound is given.
- top1: the fraction of rows (along the last axis) whose largest element is at the same place

Over several samples: the worst sample's cosine and snr_db, the worst element's max_abs and max_rel, and mean_abs,
mismatched and top1 over everything.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator

import numpy as np

from ndld_flow.backends.models.tensors import Array
from ndld_flow.backends.running.generated_values import is_float

SAME_DB = 1000.0
"""snr_db of outputs that do not differ at all (the ratio is infinite, which JSON cannot say)."""
_CHUNK = 1 << 20
_SMALLEST = 2.0**-126


class Agreement:
    """One output's agreement, sample after sample. Samples must have equal shapes on both sides."""

    def __init__(self, rtol: float | None = None, atol: float | None = None) -> None:
        self._bounded = rtol is not None or atol is not None
        self._rtol, self._atol = rtol or 0.0, atol or 0.0
        self._cosine, self._snr_db = 1.0, SAME_DB
        self._max_abs = self._max_rel = self._sum_abs = 0.0
        self._elements = self._finite = self._outside = 0
        self._rows = self._same_rows = 0
        self._numeric, self._exact = True, False
        self._lowest, self._highest = math.inf, -math.inf
        self.only_candidate_nonfinite = 0
        """Elements that are NaN or infinite in the candidate only."""
        self.only_reference_nonfinite = 0
        """Elements that are NaN or infinite in the reference only, or in another way in both."""

    def add(self, reference: Array, candidate: Array) -> None:
        """Take one sample in."""
        if reference.dtype.kind in "OUS" or candidate.dtype.kind in "OUS":
            self._add_text(reference, candidate)
            return
        self._add_top1(reference, candidate)
        self._add_numbers(reference.reshape(-1), candidate.reshape(-1))

    @property
    def says_little(self) -> bool:
        """The reference is the same number everywhere (to a millionth): almost anything would agree with it."""
        if self._finite < 2 or self._exact:
            return False
        return self._highest - self._lowest <= 1e-6 * max(abs(self._lowest), abs(self._highest))

    def metrics(self) -> dict[str, float]:
        """Every metric that has a meaning for what was added, by name."""
        if not self._elements:
            return {}
        found = {"mismatched": self._outside / self._elements} if self._bounded or self._exact else {}
        if self._numeric and self._finite:
            found |= {
                "cosine": self._cosine,
                "max_abs": self._max_abs,
                "mean_abs": self._sum_abs / self._finite,
                "max_rel": self._max_rel,
                "snr_db": self._snr_db,
            }
        if self._rows:
            found["top1"] = self._same_rows / self._rows
        # JSON has no infinity: differences that overflow float64 stay comparable as the largest number.
        return {name: max(-sys.float_info.max, min(value, sys.float_info.max)) for name, value in found.items()}

    def _add_text(self, reference: Array, candidate: Array) -> None:
        self._numeric, self._exact = False, True
        self._elements += reference.size
        self._outside += int(np.count_nonzero(reference.astype(str) != candidate.astype(str)))

    def _add_top1(self, reference: Array, candidate: Array) -> None:
        if reference.ndim == 0 or reference.shape[-1] < 2 or not reference.size or reference.dtype.kind == "b":
            return
        same = np.argmax(reference, axis=-1) == np.argmax(candidate, axis=-1)
        self._rows += int(same.size)
        self._same_rows += int(np.count_nonzero(same))

    def _add_numbers(self, reference: Array, candidate: Array) -> None:
        self._elements += reference.size
        dot = reference_energy = candidate_energy = noise = 0.0
        with np.errstate(over="ignore", invalid="ignore"):
            for r, c in self._finite_chunks(reference, candidate):
                distance = np.abs(c - r)
                self._take_distances(distance, np.abs(r))
                self._lowest = min(self._lowest, float(r.min(initial=math.inf)))
                self._highest = max(self._highest, float(r.max(initial=-math.inf)))
                dot += float(r @ c)
                reference_energy += float(r @ r)
                candidate_energy += float(c @ c)
                noise += float(distance @ distance)
        # Of equal outputs it is 1, whatever the rounding of the sums says.
        self._cosine = min(self._cosine, 1.0 if noise == 0.0 else _cosine(dot, reference_energy, candidate_energy))
        self._snr_db = min(self._snr_db, _snr_db(reference_energy, noise))

    def _finite_chunks(self, reference: Array, candidate: Array) -> Iterator[tuple[Array, Array]]:
        """Float64 pairs of what is finite in both, a bounded number of elements at a time."""
        self._exact = not (is_float(reference.dtype) and is_float(candidate.dtype))
        for start in range(0, reference.size, _CHUNK):
            raw_r, raw_c = reference[start : start + _CHUNK], candidate[start : start + _CHUNK]
            r, c = raw_r.astype(np.float64), raw_c.astype(np.float64)
            if self._exact:
                # Before float64, which would round large integers.
                self._outside += int(np.count_nonzero(raw_r != raw_c))
                yield r, c
                continue
            finite = np.isfinite(r) & np.isfinite(c)
            if not finite.all():
                self._count_nonfinite(r[~finite], c[~finite])
                r, c = r[finite], c[finite]
            self._outside += int(np.count_nonzero(np.abs(c - r) > self._atol + self._rtol * np.abs(r)))
            yield r, c

    def _count_nonfinite(self, r: Array, c: Array) -> None:
        same = (r == c) | (np.isnan(r) & np.isnan(c))
        only_candidate = np.isfinite(r)
        self.only_candidate_nonfinite += int(np.count_nonzero(only_candidate))
        self.only_reference_nonfinite += int(np.count_nonzero(~same & ~only_candidate))
        self._outside += int(np.count_nonzero(~same))

    def _take_distances(self, distance: Array, size: Array) -> None:
        if not distance.size:
            return
        self._finite += distance.size
        self._sum_abs += float(distance.sum())
        self._max_abs = max(self._max_abs, float(distance.max()))
        self._max_rel = max(self._max_rel, float((distance / np.maximum(size, _SMALLEST)).max()))


def _cosine(dot: float, reference_energy: float, candidate_energy: float) -> float:
    if reference_energy == 0.0 or candidate_energy == 0.0:
        return 0.0
    return max(-1.0, min(1.0, dot / (math.sqrt(reference_energy) * math.sqrt(candidate_energy))))


def _snr_db(signal: float, noise: float) -> float:
    if noise == 0.0:
        return SAME_DB
    if signal == 0.0:
        return -SAME_DB
    return 10.0 * (math.log10(signal) - math.log10(noise))
