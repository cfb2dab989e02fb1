"""Agreement of a candidate's output with a reference's, over any number of samples.

All sums are float64. `r` is the reference, `c` the candidate, both at the elements where both are finite:

- cosine: sum(r c) / (|r| |c|), cosine similarity; 1 if both are all zero, 0 if one is
- max_abs, mean_abs: maximum and mean of |c - r| (Polygraphy's `--check-error-stat max|mean`, absolute)
- max_rel: maximum of |c - r| / |r|, where an |r| below 2^-126 (float32's smallest normal number) is raised to it
- rmse: sqrt(mean((c - r)^2)), the root of the mean square error
- relative_rms: rms(c - r) / rms(r), where an rms(r) below 2^-126 is raised to it; equals 10^(-snr_db / 20)
- snr_db: 10 log10(sum(r^2) / sum((c - r)^2)), the signal-to-noise ratio; `SAME_DB` when there is no noise
- psnr_db: 10 log10(peak^2 / mean((c - r)^2)), the peak signal-to-noise ratio (ITU-T J.340), where peak is the range
  max(r) - min(r) of the sample; `SAME_DB` when there is no noise, and undefined where r is constant
- mismatched: the fraction of elements outside |c - r| <= atol + rtol |r| (numpy.allclose); equality for integers,
  bools and strings. An element that is NaN or infinite in only one of the two is always outside. Floats have it only if
  a bound is given.
- top1: the fraction of rows (along the last axis) whose largest element is at the same index
- topK, such as top5: the fraction of rows where the reference's largest element is among the candidate's K largest;
  for rows of more than K elements
- kl: mean over the rows along `axis` of sum(r log(r / c)) in nats, the Kullback-Leibler divergence of c from r, both
  scaled to a sum of 1; a c below 2^-126 is raised to it. With `softmax` it compares softmax(r) and softmax(c). Without
  it, only outputs whose reference rows are distributions (nothing below 0, a sum of 1 within 1 %) have a `kl`.

- slice_rms, slice_max, position_rms: by slices, each against its own spread; see `slices`
- iou_loss: of class maps; see `ClassOverlap`

Over several samples: cosine, snr_db, psnr_db and relative_rms are those of the worst sample, max_abs and max_rel those
of the worst element, and the rest are over all elements.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, field

import numpy as np

from ndld_flow.accuracy.ranked_lists import Outputs, RankedList
from ndld_flow.accuracy.slices import Reference, SliceErrors, measure_reference
from ndld_flow.base.declared_metrics import higher_is_better
from ndld_flow.models.streaming_statistics import SMALLEST, PairSums, decibels
from ndld_flow.models.tensors import Array
from ndld_flow.records.accuracy import OutputKind
from ndld_flow.samples.generated_values import is_float

Samples = Callable[[], Iterable[Array]]
"""Yields an output's values, sample by sample; may be called more than once."""

_MOST_CLASSES = 256
_LEAST_ELEMENTS = 30
"""Minimum number of elements for each class of a class map, on average."""
_LEVELS = 64
"""If neighbours differ, an 8-bit output with more distinct values than this is an image or a quantized tensor."""
_EQUAL_NEIGHBOURS = 0.5


@dataclass(frozen=True)
class Yardstick:
    """How an output is judged, and the reference against which its errors are measured."""

    kind: OutputKind = "exact"
    slices: Reference | None = None
    """The reference for numbers; None if they cannot be cut into slices."""
    rows: RankedList | None = None
    """The list that the output is part of, whose rows are compared in pairs."""

    def pair(self, output: str, right: Outputs, wrong: Outputs) -> tuple[Array | None, Array | None]:
        """Return an output of the reference (`right`) and of the candidate (`wrong`), under one name, as compared."""
        paired = None if self.rows is None else self.rows.pair(output, right, wrong)
        return paired or (right.get(output), wrong.get(output))


def find_yardstick(samples: Samples, positions: Collection[int] = (), rows: RankedList | None = None) -> Yardstick:
    """Choose the criterion of an output from the reference's values.

    `positions` are axes known to have no features; of the list `rows`, `samples` yields the rows that are compared.
    """
    first = next(iter(samples()), None)
    if first is None or first.dtype.kind not in "biuf":
        return Yardstick(rows=rows)
    if is_float(first.dtype) or _has_levels(first, samples):
        varying = () if rows is None else (rows.axis,)  # a candidate's list may have more rows to compare
        return Yardstick("numbers", measure_reference(samples, positions, varying), rows)
    return Yardstick("classes" if _is_class_map(samples) else "exact", rows=rows)


def _is_class_map(samples: Samples) -> bool:
    """Return True for few distinct values among many elements."""
    classes: set[int] = set()
    elements = 0
    for array in samples():
        elements += array.size
        classes.update(np.unique(array).tolist())
        if len(classes) > _MOST_CLASSES:
            return False
    return elements >= _LEAST_ELEMENTS * max(1, len(classes))


def _has_levels(first: Array, samples: Samples) -> bool:
    """Return True if 8-bit values are levels, such as brightness, and not class indices, which form regions."""
    if first.dtype.itemsize != 1 or first.dtype.kind not in "iu" or not first.ndim:
        return False
    levels: set[int] = set()
    equal = steps = 0
    for array in samples():
        levels.update(np.unique(array).tolist())
        equal += int(np.count_nonzero(array[..., 1:] == array[..., :-1]))
        steps += array[..., 1:].size
    return len(levels) > _LEVELS and equal < _EQUAL_NEIGHBOURS * steps


class ClassOverlap:
    """Overlap of two class maps over one or more samples.

    `iou_loss` is the maximum of 1 - (intersection + 2) / union, at least 0, over the classes of the reference: the loss
    of intersection over union (the Jaccard index) beyond two elements, which a tie may flip anywhere.
    """

    def __init__(self) -> None:
        self._counts: dict[int, Array] = {}
        """Class -> number of elements that have it in the reference, in the candidate, in both."""

    def add(self, reference: Array, candidate: Array) -> None:
        """Add one sample; both have the same shape."""
        same = reference[reference == candidate]
        for index, values in enumerate((reference, candidate, same)):
            for value, count in zip(*np.unique(values, return_counts=True), strict=True):
                self._counts.setdefault(int(value), np.zeros(3))[index] += count

    def take(self, other: ClassOverlap) -> None:
        """Add another sample's counts."""
        for value, counts in other._counts.items():
            self._counts[value] = self._counts.get(value, np.zeros(3)) + counts

    def worst(self) -> tuple[int, float] | None:
        """Return the class that overlaps least and its `iou_loss`; None if nothing was added."""
        losses = {
            value: max(0.0, 1.0 - float((both + 2) / (mine + theirs - both)))
            for value, (mine, theirs, both) in self._counts.items()
            if mine or theirs > 2
        }
        return max(losses.items(), key=lambda item: item[1], default=None)


@dataclass(frozen=True)
class Measuring:
    """Parameters of metrics that have any; see `agreement` for the formulas."""

    rtol: float | None = None
    atol: float | None = None
    """Relative (`rtol`) and absolute part of the bound of `mismatched`; without either, floats have no `mismatched`."""
    topk: int = 5
    """k of `topK`."""
    axis: int = -1
    """The axis along which values form one distribution, for `kl`."""
    softmax: bool = False
    """The values are logits: `kl` is computed on their softmax."""


_SUM_MAY_BE_OFF = 0.01
"""Tolerance of a distribution's sum of 1: fp16 and int8 outputs of a softmax are only near it."""
_ROWS_CHUNK = 1 << 18


@dataclass
class Divergence:
    """Rows that are distributions, and the sum of their divergences in nats."""

    rows: int = 0
    total: float = 0.0
    meaningless: bool = False
    """The reference's values are not a distribution."""

    def take(self, other: Divergence) -> None:
        self.rows += other.rows
        self.total += other.total
        self.meaningless |= other.meaningless

    def metrics(self) -> dict[str, float]:
        return {"kl": self.total / self.rows} if self.rows and not self.meaningless else {}


def diverge_rows(reference: Array, candidate: Array, measuring: Measuring) -> Divergence:
    """Sum the divergence of every row along the axis.

    Rows with NaN or +infinity on either side (without softmax, any infinity) are skipped.
    """
    axis, dims = measuring.axis, reference.ndim
    if not -dims <= axis < dims or reference.shape[axis] < 2 or not reference.size:
        return Divergence(meaningless=True)
    if not (is_float(reference.dtype) and is_float(candidate.dtype)):
        return Divergence(meaningless=True)
    divergence = Divergence()
    for r, c in _row_chunks(reference, candidate, axis):
        p, q = (_softmax(r), _softmax(c)) if measuring.softmax else (r, c)
        usable = np.isfinite(p).all(axis=-1) & np.isfinite(q).all(axis=-1)
        p, q = p[usable], q[usable]
        if (p < 0).any() or (np.abs(p.sum(axis=-1) - 1) > _SUM_MAY_BE_OFF).any():
            return Divergence(meaningless=True)
        # The divergence of a row is sum(p log(p / q)), both scaled to a sum of 1.
        p, q = _normalized(p), np.maximum(_normalized(np.maximum(q, 0.0)), SMALLEST)
        # 0 log 0 is 0. Rounding and raised q may make the sum slightly negative.
        terms = p * (np.log(np.maximum(p, SMALLEST)) - np.log(q))
        sums: Array = np.maximum(terms.sum(axis=-1), 0.0)
        divergence.take(Divergence(len(p), float(sums.sum())))
    return divergence


def _row_chunks(reference: Array, candidate: Array, axis: int) -> Iterator[tuple[Array, Array]]:
    """Yield float64 rows, a bounded number of elements at a time."""
    size = reference.shape[axis]
    r, c = (np.moveaxis(array, axis, -1).reshape(-1, size) for array in (reference, candidate))
    step = max(1, _ROWS_CHUNK // size)
    for start in range(0, len(r), step):
        yield r[start : start + step].astype(np.float64), c[start : start + step].astype(np.float64)


def _softmax(logits: Array) -> Array:
    with np.errstate(invalid="ignore", over="ignore"):
        powers = np.exp(logits - logits.max(axis=-1, keepdims=True))
        shares: Array = powers / powers.sum(axis=-1, keepdims=True)
    return shares


def _normalized(rows: Array) -> Array:
    sums = rows.sum(axis=-1, keepdims=True)
    scaled: Array = np.divide(rows, sums, out=np.zeros_like(rows), where=sums > 0)
    return scaled


@dataclass
class Ranking:
    """Counts of rows along the last axis, and of those that agree on the largest element."""

    rows: int = 0
    first: int = 0
    """Rows whose largest element is at the same index; of equal ones, the first counts (numpy.argmax)."""
    among: int = 0
    """Rows where fewer than k of the candidate's elements are larger than the one at the reference's index."""
    long: bool = False
    """Rows have more than k elements; in shorter rows all elements are among the k largest."""

    def take(self, other: Ranking) -> None:
        self.rows += other.rows
        self.first += other.first
        self.among += other.among
        self.long |= other.long

    def metrics(self, k: int) -> dict[str, float]:
        if not self.rows:
            return {}
        among = {f"top{k}": self.among / self.rows} if self.long else {}
        return {"top1": self.first / self.rows} | among


def rank(reference: Array, candidate: Array, k: int) -> Ranking:
    """Rank every row; the result has no rows for scalars, rows of one element, and bools."""
    if reference.ndim == 0 or reference.shape[-1] < 2 or not reference.size or reference.dtype.kind == "b":
        return Ranking()
    places = np.argmax(reference, axis=-1)
    same = np.argmax(candidate, axis=-1) == places
    if reference.shape[-1] <= k:
        return Ranking(int(same.size), int(np.count_nonzero(same)))
    there = np.take_along_axis(candidate, np.expand_dims(places, -1), axis=-1)
    # NaN is larger than everything, as for numpy.argmax.
    larger = np.count_nonzero(~(candidate <= there), axis=-1)
    return Ranking(int(same.size), int(np.count_nonzero(same)), int(np.count_nonzero(larger < k)), long=True)


_CHUNK = 1 << 13
"""Elements at a time: they stay in the cache, and OpenBLAS starts no threads for products of so few."""
_SQUARES_FIT = 2.0**500
"""The sums of squares of float64 numbers below this do not overflow, and squares of those above its inverse do not
underflow."""


@dataclass
class Tally:
    """Sums, extremes and counts over one or more samples."""

    elements: int = 0
    outside: int = 0
    exact: bool = False
    """Elements are integers, bools or strings, which are compared for equality."""
    only_candidate_nonfinite: int = 0
    """Elements that are NaN or infinite only in the candidate."""
    only_reference_nonfinite: int = 0
    """Elements that are NaN or infinite only in the reference, or differently in both."""
    finite: int = 0
    """Elements that are finite in both; the following fields are computed from these."""
    sum_abs: float = 0.0
    sum_squares: float = 0.0
    """Sum of squares of c - r."""
    max_abs: float = 0.0
    max_rel: float = 0.0
    lowest: float = math.inf
    """Smallest value of the reference."""
    highest: float = -math.inf
    ratios: dict[str, float] = field(default_factory=dict)
    """Metrics of whole samples, which cannot be added: the worst is kept. NaN if one sample has none."""
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
    """Measure one sample; both arrays have the same shape."""
    if reference.dtype.kind in "OUS" or candidate.dtype.kind in "OUS":
        differ = int(np.count_nonzero(reference.astype(str) != candidate.astype(str)))
        return Tally(elements=reference.size, outside=differ, exact=True)
    sums = Tally(
        elements=reference.size,
        exact=not (is_float(reference.dtype) and is_float(candidate.dtype)),
        ranking=rank(reference, candidate, measuring.topk),
        divergence=diverge_rows(reference, candidate, measuring),
    )
    with np.errstate(over="ignore", invalid="ignore"):
        _add_numbers(sums, reference.reshape(-1), candidate.reshape(-1), measuring)
    return sums


def _add_numbers(total: Tally, reference: Array, candidate: Array, measuring: Measuring) -> None:
    scale, sums = _scale(reference, candidate), PairSums()
    for r, c in _finite_chunks(total, reference, candidate, measuring):
        if r.size:
            distance = np.abs(c - r)
            total.finite += distance.size
            total.sum_abs += float(distance.sum())
            total.max_abs = max(total.max_abs, float(distance.max()))
            total.max_rel = max(total.max_rel, float((distance / np.maximum(np.abs(r), SMALLEST)).max()))
            total.lowest, total.highest = min(total.lowest, float(r.min())), max(total.highest, float(r.max()))
        sums.add(r * scale, c * scale)
    if not total.finite:
        return
    total.sum_squares = sums.noise / scale / scale
    peak = total.highest * scale - total.lowest * scale
    psnr = decibels(peak**2 * total.finite, sums.noise) if peak or not sums.noise else math.nan
    total.ratios = {**sums.ratios(scale), "psnr_db": psnr}


def _finite_chunks(
    total: Tally, reference: Array, candidate: Array, measuring: Measuring
) -> Iterator[tuple[Array, Array]]:
    """Yield float64 pairs of the elements that are finite in both, a bounded number at a time."""
    rtol, atol = measuring.rtol or 0.0, measuring.atol or 0.0
    for start in range(0, reference.size, _CHUNK):
        raw_r, raw_c = reference[start : start + _CHUNK], candidate[start : start + _CHUNK]
        r, c = raw_r.astype(np.float64), raw_c.astype(np.float64)
        if total.exact:
            # Before float64, which would round large integers.
            total.outside += int(np.count_nonzero(raw_r != raw_c))
            yield r, c
            continue
        finite = np.isfinite(r) & np.isfinite(c)
        if not finite.all():
            rest_r, rest_c = r[~finite], c[~finite]
            same = (rest_r == rest_c) | (np.isnan(rest_r) & np.isnan(rest_c))
            only_candidate = np.isfinite(rest_r)
            total.only_candidate_nonfinite += int(np.count_nonzero(only_candidate))
            total.only_reference_nonfinite += int(np.count_nonzero(~same & ~only_candidate))
            total.outside += int(np.count_nonzero(~same))
            r, c = r[finite], c[finite]
        total.outside += int(np.count_nonzero(np.abs(c - r) > atol + rtol * np.abs(r)))
        yield r, c


def _scale(reference: Array, candidate: Array) -> float:
    """Return a power of two that keeps the squares of float64 in range; 1 for all other types."""
    if not any(array.dtype.kind == "f" and array.dtype.itemsize > 4 for array in (reference, candidate)):
        return 1.0
    finite = (np.abs(array[np.isfinite(array)]).max(initial=0.0) for array in (reference, candidate))
    largest = float(max(finite))
    if largest == 0.0 or 1 / _SQUARES_FIT < largest < _SQUARES_FIT:
        return 1.0
    return 2.0 ** -max(-1000, min(math.frexp(largest)[1], 1000))


class Agreement:
    """One output's agreement, sample after sample. Samples must have equal shapes on both sides."""

    def __init__(self, measuring: Measuring | None = None, yardstick: Yardstick | None = None) -> None:
        self._measuring = measuring or Measuring()
        self.yardstick = yardstick or Yardstick()
        self._all, self._slices, self._overlap = Tally(), self._new_slices(), ClassOverlap()
        self._worst: dict[str, tuple[float, str]] = {}
        self._unequal: set[str] = set()

    def add(self, reference: Array, candidate: Array, sample: str = "") -> dict[str, float]:
        """Add one sample and return its metrics."""
        sums, slices, overlap = tally(reference, candidate, self._measuring), self._new_slices(), ClassOverlap()
        self._all.take(sums)
        if slices is not None and self._slices is not None:
            slices.add(reference, candidate)
            self._slices.take(slices)
        if self.yardstick.kind == "classes":
            overlap.add(reference, candidate)
            self._overlap.take(overlap)
        metrics = self._metrics(sums, slices, overlap)
        for name, value in metrics.items():
            known, _ = self._worst.setdefault(name, (value, sample))
            if value != known:
                self._unequal.add(name)
            if value < known if higher_is_better(name) else value > known:
                self._worst[name] = (value, sample)
        return metrics

    @property
    def only_candidate_nonfinite(self) -> int:
        """Return the number of elements that are NaN or infinite only in the candidate."""
        return self._all.only_candidate_nonfinite

    @property
    def only_reference_nonfinite(self) -> int:
        """Return the number of elements that are NaN or infinite only in the reference, or differently in both."""
        return self._all.only_reference_nonfinite

    @property
    def nonfinite(self) -> int:
        """Return the number of elements that are NaN or infinite in one of the two only."""
        return self.only_candidate_nonfinite + self.only_reference_nonfinite

    @property
    def is_without_values(self) -> bool:
        """Return True if no element can be compared: the output is empty, or NaN or infinite in both everywhere."""
        return not self._all.elements or not (self._all.exact or self._all.finite)

    @property
    def is_weak_evidence(self) -> bool:
        """Return True if the reference is constant (to a millionth): almost anything would agree with it."""
        total = self._all
        if total.finite < 2 or (total.exact and self.yardstick.kind != "classes"):
            return False
        return total.highest - total.lowest <= 1e-6 * max(abs(total.lowest), abs(total.highest))

    def metrics(self) -> dict[str, float]:
        """Return every metric that is defined for the samples added, by name."""
        return self._metrics(self._all, self._slices, self._overlap)

    def certain_metrics(self) -> dict[str, float]:
        """Return the metrics, those of slices as small as they may be where the reference does not show their scale."""
        certain = {} if self._slices is None else self._slices.certain_metrics()
        return {name: certain.get(name, value) for name, value in self.metrics().items()}

    def worst_slices(self) -> dict[str, str]:
        """Return metric -> slice, position or class where it is worst; metrics of the whole output are omitted."""
        places = {}
        if self._slices is not None:
            places = {name: worst.place for name, worst in self._slices.worst().items() if worst.place}
        worst_class = self._overlap.worst()
        return places if worst_class is None else {**places, "iou_loss": f"class {worst_class[0]}"}

    def worst_samples(self) -> dict[str, str]:
        """Return metric -> the sample where it is worst, the first of equal ones; metrics that are equal on all samples
        are omitted.
        """
        return {name: self._worst[name][1] for name in self.metrics() if name in self._unequal}

    def _new_slices(self) -> SliceErrors | None:
        return None if self.yardstick.slices is None else SliceErrors(self.yardstick.slices)

    def _metrics(self, total: Tally, slices: SliceErrors | None, overlap: ClassOverlap) -> dict[str, float]:
        if not total.elements:
            return {}
        measuring = self._measuring
        bounded = total.exact or measuring.rtol is not None or measuring.atol is not None
        metrics = {"mismatched": total.outside / total.elements} if bounded else {}
        if total.finite:
            metrics |= {
                "cosine": total.ratios["cosine"],
                "max_abs": total.max_abs,
                "mean_abs": total.sum_abs / total.finite,
                "max_rel": total.max_rel,
                "rmse": math.sqrt(total.sum_squares / total.finite),
                "relative_rms": total.ratios["relative_rms"],
                "snr_db": total.ratios["snr_db"],
                "psnr_db": total.ratios["psnr_db"],
            }
        if slices is not None and total.finite:
            metrics |= slices.metrics()
        if (worst_class := overlap.worst()) is not None:
            metrics["iou_loss"] = worst_class[1]
        metrics |= total.ranking.metrics(measuring.topk) | total.divergence.metrics()
        # JSON has no infinity: differences that overflow float64 stay comparable as the largest number.
        most = sys.float_info.max
        return {name: max(-most, min(value, most)) for name, value in metrics.items() if not math.isnan(value)}
