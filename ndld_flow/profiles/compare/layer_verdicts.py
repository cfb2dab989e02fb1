"""Find layers that became slower or faster, from their times in each process run. The result is advice, not a gate."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import accumulate, pairwise
from typing import NamedTuple

from ndld_flow.profiles.compare.intervals import two_sided_p
from ndld_flow.profiles.compare.measured import LARGEST
from ndld_flow.profiles.compare.metric_verdicts import Bounds
from ndld_flow.records.comparison import LayerRow, LayerVerdict, Verdict
from ndld_flow.records.profile import Layer, Profile

TICK_MS = 0.001
"""Resolution of the clock in ONNX Runtime's profiles. Shorter times count as half a tick, because 0 has no ratio."""


class RunTimes(NamedTuple):
    """Time of a row's layers over process runs."""

    runs: int
    median_ms: float
    log_mean: float
    """Mean of the logarithms."""
    log_error: float
    """Its squared standard error, at least that of the clock's resolution; 0 for one run."""


class LayerTimes:
    """Times of one profile's layers, each computed once and reused for all candidates."""

    def __init__(self, profile: Profile) -> None:
        self._cuts = list(pairwise([0, *accumulate(profile.layer_runs)]))
        self._medians_of = [self._run_medians(layer) for layer in profile.layers]
        self._known: dict[tuple[int, ...], RunTimes | None] = {}

    def of(self, positions: tuple[int, ...]) -> RunTimes | None:
        """Return the times of the sum of these layers; None without layers, or if one was not measured."""
        if positions not in self._known:
            self._known[positions] = _reduce(self._sums(positions))
        return self._known[positions]

    def total_ms(self, positions: Sequence[int]) -> float:
        """Return the sum of these layers' medians; unmeasured layers count as 0."""
        return math.fsum(median(self._medians_of[position]) for position in positions if self._medians_of[position])

    def _sums(self, positions: tuple[int, ...]) -> Sequence[float]:
        if len(positions) == 1:
            return self._medians_of[positions[0]]
        return [math.fsum(run) for run in zip(*(self._medians_of[position] for position in positions), strict=False)]

    def _run_medians(self, layer: Layer) -> list[float]:
        samples = layer.samples_ms
        cuts = self._cuts or [(0, len(samples))]
        if samples and min(samples) >= 0 and sum(samples) < LARGEST:  # NaN fails the second
            return [median(samples[start:end]) for start, end in cuts if start < min(end, len(samples))]
        parts = ([one for one in samples[start:end] if 0 <= one < LARGEST] for start, end in cuts)
        return [median(part) for part in parts if part]


def median(values: Sequence[float]) -> float:
    """Return the median in a quarter of the time of `statistics.median`; it is called hundreds of thousands of
    times."""
    ordered, middle = sorted(values), len(values) // 2
    return ordered[middle] if len(values) % 2 else (ordered[middle - 1] + ordered[middle]) / 2


def _reduce(values: Sequence[float]) -> RunTimes | None:
    count = len(values)
    if not count:
        return None
    middle = max(median(values), TICK_MS / 2)
    logs = [math.log(value) if value > TICK_MS / 2 else _LOG_OF_HALF_A_TICK for value in values]
    mean = sum(logs) / count
    if count == 1:
        return RunTimes(count, middle, mean, 0.0)
    variance = sum([(log - mean) ** 2 for log in logs]) / (count - 1)
    return RunTimes(count, middle, mean, max(variance, (TICK_MS / middle) ** 2 / 12) / count)


_LOG_OF_HALF_A_TICK = math.log(TICK_MS / 2)


SIGNIFICANT = 0.05
"""False discovery rate of rows reported as slower or faster (Benjamini and Hochberg, 1995)."""
_MATCHED = 0.6
"""Minimum confidence of a match; below it the layers may be different ones, whose times are not comparable."""
_FLOOR_MS = 2 * TICK_MS
_SINGLE_RUN = 0.5
"""Without repeated runs, a change by this factor is a finding. Single layers vary more than the whole, but one that
takes half the time must not count as noise.
"""


class _Tested(NamedTuple):
    row: int
    ratio: float
    difference_ms: float
    p_value: float | None


def judge_layers(
    rows: Sequence[LayerRow], times: Sequence[LayerTimes], candidate: int, bounds: Bounds
) -> Iterator[LayerVerdict]:
    """Yield a verdict for every row with measured layers of both base and candidate."""
    tested = list(_tests(rows, times, candidate))
    q_values = iter(adjust([test.p_value for test in tested if test.p_value is not None]))
    for test in tested:
        q_value = None if test.p_value is None else next(q_values)
        yield LayerVerdict(
            row=test.row,
            candidate=candidate,
            verdict=_verdict(test, q_value, bounds, rows[test.row].confidence_between(0, candidate)),
            ratio=test.ratio,
            p_value=test.p_value,
            q_value=q_value,
        )


def _tests(rows: Sequence[LayerRow], times: Sequence[LayerTimes], candidate: int) -> Iterator[_Tested]:
    of_base, of_candidate = times[0].of, times[candidate].of
    for number, row in enumerate(rows):
        base, ours = of_base(row.layers[0]), of_candidate(row.layers[candidate])
        if base and ours:
            ratio, difference_ms = ours.median_ms / base.median_ms, abs(ours.median_ms - base.median_ms)
            yield _Tested(number, ratio, difference_ms, _welch(base, ours))


def adjust(p_values: Sequence[float]) -> list[float]:
    """Return the q-values of Benjamini and Hochberg's step-up procedure: the false discovery rate at each p-value."""
    ranked = sorted(range(len(p_values)), key=p_values.__getitem__, reverse=True)
    adjusted, least = [0.0] * len(p_values), 1.0
    for rank, position in enumerate(ranked):
        least = min(least, p_values[position] * len(p_values) / (len(p_values) - rank))
        adjusted[position] = least
    return adjusted


def _welch(base: RunTimes, candidate: RunTimes) -> float | None:
    """Return the two-sided p-value of Welch's t-test on the logarithms, with degrees of freedom rounded down."""
    if base.runs < 2 or candidate.runs < 2:
        return None
    one, other = base.log_error, candidate.log_error
    freedom = (one + other) ** 2 / (one**2 / (base.runs - 1) + other**2 / (candidate.runs - 1))
    # The degrees of freedom are at least the smaller side's, despite rounding.
    whole = max(int(freedom), min(base.runs, candidate.runs) - 1)
    return two_sided_p((candidate.log_mean - base.log_mean) / math.sqrt(one + other), whole)


def _verdict(test: _Tested, q_value: float | None, bounds: Bounds, confidence: float) -> Verdict:
    """Return a verdict, inconclusive unless both sides are likely the same layers."""
    if bounds.circumstances.forbidden:
        return "incomparable"
    return _decide(test, q_value, bounds) if confidence >= _MATCHED else "inconclusive"


def _decide(test: _Tested, q_value: float | None, bounds: Bounds) -> Verdict:
    far = max(test.ratio, 1 / test.ratio) - 1
    if bounds.same or bounds.circumstances.identical or (test.difference_ms <= _FLOOR_MS and q_value is not None):
        return "unchanged"
    if q_value is None:
        counts = far > max(bounds.threshold, _SINGLE_RUN) and test.difference_ms > _FLOOR_MS
    elif far <= bounds.threshold:
        return "unchanged"
    else:
        counts = q_value < SIGNIFICANT
    if not counts:
        return "inconclusive"
    return "regressed" if test.ratio > 1 else "improved"
