"""Metrics side by side and what was decided, against the first base."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from ndld_flow.base.quantities import TIMES, change, quantity, three_digits
from ndld_flow.base.text import short_name
from ndld_flow.records.comparison import ComparedMetric, Comparison, MetricVerdict, ProfileComparison
from ndld_flow.report.comparison.interval_scale import IntervalPlot, IntervalScale
from ndld_flow.report.comparison.values import ABSENT, agrees, values_beside


@dataclass(frozen=True)
class VerdictView:
    """One metric of one candidate against the base, in words and as a picture."""

    verdict: str
    ratio: str
    """`0.52x`, with a real multiplication sign."""
    change: str
    """`-48 %`"""
    interval: str
    """`0.51x to 0.53x`; empty for what is exact."""
    plot: IntervalPlot | None
    threshold: str
    """`±3 %`"""
    why: str


@dataclass(frozen=True)
class Decision:
    """The verdict of one profile and one candidate."""

    profile: str
    base: int
    """Position among the subjects."""
    candidate: int
    metric: str
    view: VerdictView


@dataclass(frozen=True)
class MetricCell:
    """One metric of one profile."""

    value: str
    verdict: VerdictView | None
    """None for the base."""
    pair: str = ""
    """`9.38 ms → 10.6 ms`: the runs whose ratio the verdict has, where the values of both sides have another."""


@dataclass(frozen=True)
class MetricRow:
    """One metric of all profiles of one name."""

    metric: str
    decides: bool
    cells: tuple[MetricCell, ...]
    differs: bool
    """True when a verdict says so: not `unchanged`."""


def collect_decisions(comparison: Comparison) -> tuple[tuple[Decision, ...], IntervalScale]:
    """Return every profile and candidate by the metric that decides, and the axis that they share."""
    found = [(one, verdict) for one in comparison.profiles for verdict in one.deciding]
    scale = IntervalScale.around(verdict for _, verdict in found)
    return tuple(_decision(one, verdict, scale) for one, verdict in found), scale


def collect_metrics(profile: ProfileComparison) -> tuple[MetricRow, ...]:
    """Return every metric, the deciding one first."""
    against_base = {(one.metric, one.candidate): one for one in profile.verdicts if one.base == 0}
    ordered = sorted(profile.metrics, key=lambda metric: metric.metric != profile.decided_by)
    return tuple(_metric_row(metric, profile, against_base) for metric in ordered)


def ratio_text(ratio: float) -> str:
    """`0.523x`; what is no number says so."""
    if not math.isfinite(ratio):
        return ABSENT
    near_one = 0.9 <= ratio <= 1.1
    return f"{ratio:.3f}{TIMES}" if near_one else f"{three_digits(ratio)}{TIMES}"


def _decision(profile: ProfileComparison, verdict: MetricVerdict, scale: IntervalScale) -> Decision:
    return Decision(
        profile=short_name(profile.name, 80),
        base=profile.subjects[0],
        candidate=profile.subjects[verdict.candidate],
        metric=short_name(verdict.metric, 60),
        view=_verdict_view(verdict, scale),
    )


def _metric_row(
    metric: ComparedMetric, profile: ProfileComparison, verdicts: dict[tuple[str, int], MetricVerdict]
) -> MetricRow:
    found: Sequence[MetricVerdict | None] = [verdicts.get((metric.metric, k)) for k in range(len(metric.values))]
    scale = IntervalScale.around(one for one in found if one)
    cells = tuple(
        MetricCell(
            value=ABSENT if value is None else quantity(value, short_name(metric.unit, 20)),
            verdict=_verdict_view(one, scale) if one and value is not None else None,
            pair=" → ".join(values_beside(metric, one, (0, one.candidate))) if one and not agrees(metric, one) else "",
        )
        for value, one in zip(metric.values, found, strict=True)
    )
    return MetricRow(
        metric=short_name(metric.metric, 60),
        decides=metric.metric == profile.decided_by,
        cells=cells,
        differs=any(one and one.verdict != "unchanged" for one in found),
    )


def _verdict_view(verdict: MetricVerdict, scale: IntervalScale) -> VerdictView:
    finite = math.isfinite(verdict.ratio)
    return VerdictView(
        verdict=verdict.verdict,
        ratio=ratio_text(verdict.ratio),
        change=change(1, verdict.ratio) if finite else "",
        interval=_interval_text(verdict),
        plot=scale.plot(verdict),
        threshold=f"±{verdict.threshold * 100:.3g} %",
        why=short_name(verdict.why, 600),
    )


def _interval_text(verdict: MetricVerdict) -> str:
    if verdict.low == verdict.high:
        return ""
    return f"{ratio_text(verdict.low)} to {ratio_text(verdict.high)}"
