"""How far a candidate's output agrees with a reference's, over any number of samples.

All sums are float64. `r` is the reference, `c` the candidate, both at the elements where both are finite:

- cosine: sum(r c) / (|r| |c|), cosine similarity; 1 when both are all zero, 0 when one is
- max_abs, mean_abs: maximum and mean of |c - r| (Polygraphy's `--check-error-stat max|mean`, absolute)
- max_rel: maximum of |c - r| / |r|, where an |r| below 2^-126 (float32's smallest normal number) counts as that
- rmse: sqrt(mean((c - r)^2)), the root of the mean square error
- relative_rms: rms(c - r) / rms(r), where an rms(r) below 2^-126 counts as that; 10^(-snr_db / 20)
- snr_db: 10 log10(sum(r^2) / sum((c - r)^2)), the signal-to-noise ratio; `SAME_DB` when there is no noise
- psnr_db: 10 log10(peak^2 / mean((c - r)^2)), the peak signal-to-noise ratio (ITU-T J.340), where peak is the range
  max(r) - min(r) of the sample; `SAME_DB` when there is no noise, and none where r is one number everywhere
- mismatched: the fraction of elements outside |c - r| <= atol + rtol |r| (numpy.allclose); equality for integers,
  bools and strings. An element that is NaN or infinite in one of the two only is always outside. Floats have it only
  where a bound is given.
- top1: the fraction of rows (along the last axis) whose largest element is at the same place
- topK, such as top5: the fraction of rows where the reference's largest element is among the candidate's K largest;
  for rows of more than K elements
- kl: mean over the rows along `axis` of sum(r log(r / c)) in nats, the Kullback-Leibler divergence of c from r, both
  scaled to a sum of 1; a c below 2^-126 counts as that. With `softmax` of softmax(r) and softmax(c). Without it only
  where the reference's rows are distributions (nothing below 0, a sum of 1 within 1 %); other outputs have no `kl`.

- slice_rms, slice_max, position_rms: by slices, each against its own spread; see `slices`
- iou_loss: of maps of class numbers; see `yardstick`

Over several samples: the worst sample's cosine, snr_db, psnr_db and relative_rms, the worst element's max_abs and
max_rel, and the rest over everything.
"""

from __future__ import annotations

import math
import sys

from ndld_flow.accuracy.measuring import Measuring
from ndld_flow.accuracy.slices import SliceErrors
from ndld_flow.accuracy.tally import Tally, tally
from ndld_flow.accuracy.yardstick import ClassOverlap, Yardstick
from ndld_flow.models.tensors import Array
from ndld_flow.records.accuracy import SAME_DB, higher_is_better

__all__ = ["SAME_DB", "Agreement", "Measuring"]


class Agreement:
    """One output's agreement, sample after sample. Samples must have equal shapes on both sides."""

    def __init__(self, measuring: Measuring | None = None, yardstick: Yardstick | None = None) -> None:
        self._measuring = measuring or Measuring()
        self._yardstick = yardstick or Yardstick()
        self._all, self._slices, self._overlap = Tally(), self._new_slices(), ClassOverlap()
        self._worst: dict[str, tuple[float, str]] = {}
        self._unequal: set[str] = set()

    def add(self, reference: Array, candidate: Array, sample: str = "") -> dict[str, float]:
        """Take one sample in; returns its own metrics."""
        one, slices, overlap = tally(reference, candidate, self._measuring), self._new_slices(), ClassOverlap()
        self._all.take(one)
        if slices is not None and self._slices is not None:
            slices.add(reference, candidate)
            self._slices.take(slices)
        if self._yardstick.kind == "classes":
            overlap.add(reference, candidate)
            self._overlap.take(overlap)
        metrics = self._metrics(one, slices, overlap)
        for name, value in metrics.items():
            known, _ = self._worst.setdefault(name, (value, sample))
            if value != known:
                self._unequal.add(name)
            if value < known if higher_is_better(name) else value > known:
                self._worst[name] = (value, sample)
        return metrics

    @property
    def only_candidate_nonfinite(self) -> int:
        """Elements that are NaN or infinite in the candidate only."""
        return self._all.only_candidate_nonfinite

    @property
    def only_reference_nonfinite(self) -> int:
        """Elements that are NaN or infinite in the reference only, or in another way in both."""
        return self._all.only_reference_nonfinite

    @property
    def says_little(self) -> bool:
        """Whether the reference is the same number everywhere (to a millionth): almost anything would agree with it."""
        found = self._all
        if found.finite < 2 or (found.exact and self._yardstick.kind != "classes"):
            return False
        return found.highest - found.lowest <= 1e-6 * max(abs(found.lowest), abs(found.highest))

    def metrics(self) -> dict[str, float]:
        """Every metric that has a meaning for what was added, by name."""
        return self._metrics(self._all, self._slices, self._overlap)

    def worst_slices(self) -> dict[str, str]:
        """Metric -> the slice, position or class where it is worst; not where that is the whole output."""
        found = {}
        if self._slices is not None:
            found = {name: worst.place for name, worst in self._slices.worst().items() if worst.place}
        worst_class = self._overlap.worst()
        return found if worst_class is None else {**found, "iou_loss": f"class {worst_class[0]}"}

    def worst_samples(self) -> dict[str, str]:
        """Metric -> the sample where it is worst, the first of equal ones; not those that are equal on all."""
        return {name: self._worst[name][1] for name in self.metrics() if name in self._unequal}

    def _new_slices(self) -> SliceErrors | None:
        return None if self._yardstick.slices is None else SliceErrors(self._yardstick.slices)

    def _metrics(self, found: Tally, slices: SliceErrors | None, overlap: ClassOverlap) -> dict[str, float]:
        if not found.elements:
            return {}
        asked = self._measuring
        bounded = found.exact or asked.rtol is not None or asked.atol is not None
        metrics = {"mismatched": found.outside / found.elements} if bounded else {}
        if found.finite:
            metrics |= {
                "cosine": found.ratios["cosine"],
                "max_abs": found.max_abs,
                "mean_abs": found.sum_abs / found.finite,
                "max_rel": found.max_rel,
                "rmse": math.sqrt(found.sum_squares / found.finite),
                "relative_rms": found.ratios["relative_rms"],
                "snr_db": found.ratios["snr_db"],
                "psnr_db": found.ratios["psnr_db"],
            }
        if slices is not None and found.finite:
            metrics |= slices.metrics()
        if (worst_class := overlap.worst()) is not None:
            metrics["iou_loss"] = worst_class[1]
        metrics |= found.ranking.metrics(asked.topk) | found.divergence.metrics()
        # JSON has no infinity: differences that overflow float64 stay comparable as the largest number.
        most = sys.float_info.max
        return {name: max(-most, min(value, most)) for name, value in metrics.items() if not math.isnan(value)}
