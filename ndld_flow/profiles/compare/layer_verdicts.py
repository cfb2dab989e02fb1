"""Find layers that became slower or faster. The result is advice, not a gate."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from ndld_flow.profiles.compare.layer_times import TICK_MS, LayerTimes, RunTimes
from ndld_flow.profiles.compare.metric_verdicts import Bounds
from ndld_flow.profiles.compare.student_t import two_sided_p
from ndld_flow.records.comparison import LayerRow, LayerVerdict, Verdict

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
