"""Which layers became slower or quicker. It advises and does not gate."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ndld_flow.compare.layer_times import LayerTimes, median
from ndld_flow.compare.metric_verdicts import Bounds
from ndld_flow.compare.student_t import two_sided_p
from ndld_flow.records.comparison import LayerRow, LayerVerdict, Verdict

SIGNIFICANT = 0.05
"""Of the rows that are called slower or quicker, about so many may be wrong (Benjamini and Hochberg, 1995)."""
TICK_MS = 0.001
"""Resolution of the clock in ONNX Runtime's profiles."""
_FLOOR_MS = 2 * TICK_MS
_SINGLE_RUN = 0.5
"""Without repeated runs, a layer half again as slow, or in two thirds of the time, is told as a finding: single layers
vary more than the whole, and still one that takes half the time must not read as noise."""


@dataclass(frozen=True)
class _Tested:
    row: int
    ratio: float
    difference_ms: float
    p_value: float | None


def judge_layers(
    rows: Sequence[LayerRow], times: Sequence[LayerTimes], candidate: int, bounds: Bounds
) -> Iterator[LayerVerdict]:
    """A verdict for every row in which both the base and the candidate have measured layers."""
    tested = list(_tests(rows, times, candidate))
    q_values = iter(adjust([test.p_value for test in tested if test.p_value is not None]))
    for test in tested:
        q_value = None if test.p_value is None else next(q_values)
        yield LayerVerdict(
            row=test.row,
            candidate=candidate,
            verdict="incomparable" if bounds.forbidden_by else _decide(test, q_value, bounds),
            ratio=test.ratio,
            p_value=test.p_value,
            q_value=q_value,
        )


def _tests(rows: Sequence[LayerRow], times: Sequence[LayerTimes], candidate: int) -> Iterator[_Tested]:
    for number, row in enumerate(rows):
        base, ours = times[0].of(row.layers[0]), times[candidate].of(row.layers[candidate])
        if base and ours:
            yield _test(number, base, ours)


def adjust(p_values: Sequence[float]) -> list[float]:
    """Benjamini and Hochberg's step-up: the share of false findings when everything as small as this is believed."""
    ranked = sorted(range(len(p_values)), key=p_values.__getitem__, reverse=True)
    adjusted, least = [0.0] * len(p_values), 1.0
    for rank, position in enumerate(ranked):
        least = min(least, p_values[position] * len(p_values) / (len(p_values) - rank))
        adjusted[position] = least
    return adjusted


def _test(row: int, base: Sequence[float], candidate: Sequence[float]) -> _Tested:
    before, after = median(base), median(candidate)
    # A kernel that took no whole tick is as good as one of half a tick: 0 has no ratio.
    ratio = max(after, TICK_MS / 2) / max(before, TICK_MS / 2)
    return _Tested(row, ratio, abs(after - before), _welch(base, candidate))


def _welch(base: Sequence[float], candidate: Sequence[float]) -> float | None:
    """Two-sided p of Welch's t-test on the logarithms, its degrees of freedom rounded down."""
    if min(len(base), len(candidate)) < 2:
        return None
    means, errors = zip(*(_mean_and_error(values) for values in (base, candidate)), strict=True)
    error = sum(errors)
    freedom = error**2 / sum(e**2 / (len(v) - 1) for e, v in zip(errors, (base, candidate), strict=True))
    return two_sided_p((means[1] - means[0]) / math.sqrt(error), max(1, int(freedom)))


def _mean_and_error(values: Sequence[float]) -> tuple[float, float]:
    """Mean of the logarithms and its squared standard error, at least that of reading a clock that ticks."""
    logs = [math.log(max(value, TICK_MS / 2)) for value in values]
    mean = math.fsum(logs) / len(logs)
    variance = math.fsum((log - mean) ** 2 for log in logs) / (len(logs) - 1)
    of_tick = (TICK_MS / max(median(values), TICK_MS / 2)) ** 2 / 12
    return mean, max(variance, of_tick) / len(values)


def _decide(test: _Tested, q_value: float | None, bounds: Bounds) -> Verdict:
    far = max(test.ratio, 1 / test.ratio) - 1
    if bounds.same or (test.difference_ms <= _FLOOR_MS and q_value is not None):
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
