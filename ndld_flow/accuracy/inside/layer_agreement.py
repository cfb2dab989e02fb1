"""How far a tensor inside one model agrees with the same tensor inside another.

The formulas are those of `accuracy.agreement`; these are the ones that have a meaning between any two layers.
Models have hundreds of layers: this takes a tenth of the time.
"""

from __future__ import annotations

import math
import sys
from dataclasses import dataclass

import numpy as np

from ndld_flow.accuracy.agreement_formulas import SMALLEST, cosine, decibels
from ndld_flow.accuracy.inside.ranges import CHUNK
from ndld_flow.accuracy.slices import Worst, slice_error
from ndld_flow.models.tensors import Array
from ndld_flow.records.accuracy import higher_is_better


@dataclass
class _Sums:
    """Over the elements of one sample that are finite on both sides."""

    finite: int = 0
    dot: float = 0.0
    signal: float = 0.0
    energy: float = 0.0
    noise: float = 0.0
    max_abs: float = 0.0

    def add(self, r: Array, c: Array) -> bool:
        """Take float64 values in; False, and nothing taken, when some are not finite."""
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
        """Of this sample."""
        smallest = SMALLEST * math.sqrt(max(self.finite, 1))
        return {
            "cosine": 1.0 if self.noise == 0.0 else cosine(self.dot, self.signal, self.energy),
            "snr_db": decibels(self.signal, self.noise),
            "relative_rms": math.sqrt(self.noise) / max(math.sqrt(self.signal), smallest),
            "max_abs": self.max_abs,
        }


class LayerAgreement:
    """One tensor's agreement over all samples: of each metric the worst sample's."""

    def __init__(self, by_slice: bool = False) -> None:
        self.nonfinite = 0
        """Elements that are NaN or infinite in the candidate only."""
        self.worst_slice = ""
        """The slice where `slice_rms` is worst, such as `channel 4`; empty where it is the whole tensor."""
        self._by_slice = by_slice
        self._worst: dict[str, float] = {}

    def add(self, reference: Array, candidate: Array) -> None:
        """Take one sample in: floats of one shape."""
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
        """Return `cosine`, `snr_db`, `relative_rms`, `max_abs`, and `slice_rms` where it was asked for.

        Nothing where no value was finite on both sides.
        """
        return {name: min(value, sys.float_info.max) for name, value in self._worst.items()}

    def _add_finite(self, sums: _Sums, r: Array, c: Array) -> None:
        in_reference, in_candidate = np.isfinite(r), np.isfinite(c)
        self.nonfinite += int(np.count_nonzero(in_reference & ~in_candidate))
        both = in_reference & in_candidate
        if both.any():
            sums.add(r[both], c[both])
