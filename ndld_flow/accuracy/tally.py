"""The numbers of one sample that the metrics are made of, and how those of several samples come together."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from ndld_flow.accuracy.agreement_formulas import SMALLEST, cosine, decibels
from ndld_flow.accuracy.distributions import Divergence, diverge_rows
from ndld_flow.accuracy.measuring import Measuring
from ndld_flow.accuracy.rankings import Ranking, rank
from ndld_flow.models.tensors import Array
from ndld_flow.records.accuracy import higher_is_better
from ndld_flow.samples.generated_values import is_float

_CHUNK = 1 << 20
_SQUARES_FIT = 2.0**500
"""Squares of smaller float64, and their sums, do not overflow; those of its inverse do not vanish."""


@dataclass
class Tally:
    """Sums, extremes and counts over one sample or more."""

    elements: int = 0
    outside: int = 0
    exact: bool = False
    """Integers, bools and strings are equal or not."""
    only_candidate_nonfinite: int = 0
    """Elements that are NaN or infinite in the candidate only."""
    only_reference_nonfinite: int = 0
    """Elements that are NaN or infinite in the reference only, or in another way in both."""
    finite: int = 0
    """Elements that are finite in both; what follows is over these."""
    sum_abs: float = 0.0
    sum_squares: float = 0.0
    """Of c - r."""
    max_abs: float = 0.0
    max_rel: float = 0.0
    lowest: float = math.inf
    """Of the reference."""
    highest: float = -math.inf
    ratios: dict[str, float] = field(default_factory=dict)
    """Metrics of a whole sample, which cannot be added up: the worst one is kept. NaN where one sample has none."""
    ranking: Ranking = field(default_factory=Ranking)
    divergence: Divergence = field(default_factory=Divergence)

    def take(self, other: Tally) -> None:
        """Add another sample's."""
        self.elements += other.elements
        self.outside += other.outside
        self.only_candidate_nonfinite += other.only_candidate_nonfinite
        self.only_reference_nonfinite += other.only_reference_nonfinite
        self.finite += other.finite
        self.exact |= other.exact
        self.sum_abs += other.sum_abs
        self.sum_squares += other.sum_squares
        self.max_abs, self.max_rel = max(self.max_abs, other.max_abs), max(self.max_rel, other.max_rel)
        self.lowest, self.highest = min(self.lowest, other.lowest), max(self.highest, other.highest)
        for name, value in other.ratios.items():
            known = self.ratios.get(name, value)
            worse = min if higher_is_better(name) else max
            self.ratios[name] = math.nan if math.isnan(known) or math.isnan(value) else worse(known, value)
        self.ranking.take(other.ranking)
        self.divergence.take(other.divergence)


def tally(reference: Array, candidate: Array, measuring: Measuring) -> Tally:
    """Measure one sample. Both have the same shape."""
    if reference.dtype.kind in "OUS" or candidate.dtype.kind in "OUS":
        differ = int(np.count_nonzero(reference.astype(str) != candidate.astype(str)))
        return Tally(elements=reference.size, outside=differ, exact=True)
    found = Tally(
        elements=reference.size,
        exact=not (is_float(reference.dtype) and is_float(candidate.dtype)),
        ranking=rank(reference, candidate, measuring.topk),
        divergence=diverge_rows(reference, candidate, measuring),
    )
    with np.errstate(over="ignore", invalid="ignore"):
        _add_numbers(found, reference.reshape(-1), candidate.reshape(-1), measuring)
    return found


def _add_numbers(found: Tally, reference: Array, candidate: Array, measuring: Measuring) -> None:
    scale = _scale(reference, candidate)
    dot = signal = energy = noise = 0.0
    for raw_r, raw_c in _finite_chunks(found, reference, candidate, measuring):
        _add_distances(found, np.abs(raw_c - raw_r), raw_r)
        r, c = raw_r * scale, raw_c * scale
        dot += float(r @ c)
        signal += float(r @ r)
        energy += float(c @ c)
        noise += float((c - r) @ (c - r))
    if not found.finite:
        return
    found.sum_squares = noise / scale / scale
    peak = found.highest * scale - found.lowest * scale
    found.ratios = {
        # Of equal outputs it is 1, whatever the rounding of the sums says.
        "cosine": 1.0 if noise == 0.0 else cosine(dot, signal, energy),
        "snr_db": decibels(signal, noise),
        "psnr_db": decibels(peak**2 * found.finite, noise) if peak or not noise else math.nan,
        "relative_rms": math.sqrt(noise) / max(math.sqrt(signal), SMALLEST * scale * math.sqrt(found.finite)),
    }


def _finite_chunks(
    found: Tally, reference: Array, candidate: Array, measuring: Measuring
) -> Iterator[tuple[Array, Array]]:
    """Float64 pairs of what is finite in both, a bounded number of elements at a time."""
    rtol, atol = measuring.rtol or 0.0, measuring.atol or 0.0
    for start in range(0, reference.size, _CHUNK):
        raw_r, raw_c = reference[start : start + _CHUNK], candidate[start : start + _CHUNK]
        r, c = raw_r.astype(np.float64), raw_c.astype(np.float64)
        if found.exact:
            # Before float64, which would round large integers.
            found.outside += int(np.count_nonzero(raw_r != raw_c))
            yield r, c
            continue
        finite = np.isfinite(r) & np.isfinite(c)
        if not finite.all():
            _count_nonfinite(found, r[~finite], c[~finite])
            r, c = r[finite], c[finite]
        found.outside += int(np.count_nonzero(np.abs(c - r) > atol + rtol * np.abs(r)))
        yield r, c


def _count_nonfinite(found: Tally, r: Array, c: Array) -> None:
    same = (r == c) | (np.isnan(r) & np.isnan(c))
    only_candidate = np.isfinite(r)
    found.only_candidate_nonfinite += int(np.count_nonzero(only_candidate))
    found.only_reference_nonfinite += int(np.count_nonzero(~same & ~only_candidate))
    found.outside += int(np.count_nonzero(~same))


def _add_distances(found: Tally, distance: Array, r: Array) -> None:
    if not distance.size:
        return
    found.finite += distance.size
    found.sum_abs += float(distance.sum())
    found.max_abs = max(found.max_abs, float(distance.max()))
    found.max_rel = max(found.max_rel, float((distance / np.maximum(np.abs(r), SMALLEST)).max()))
    found.lowest, found.highest = min(found.lowest, float(r.min())), max(found.highest, float(r.max()))


def _scale(reference: Array, candidate: Array) -> float:
    """A power of two that keeps the squares of float64 within range; 1 for everything else, whose squares are."""
    if not any(array.dtype.kind == "f" and array.dtype.itemsize > 4 for array in (reference, candidate)):
        return 1.0
    finite = (np.abs(array[np.isfinite(array)]).max(initial=0.0) for array in (reference, candidate))
    largest = float(max(finite))
    if largest == 0.0 or 1 / _SQUARES_FIT < largest < _SQUARES_FIT:
        return 1.0
    return 2.0 ** -max(-1000, min(math.frexp(largest)[1], 1000))
