"""Metrics side by side, the verdicts relative to the base, the gates, intervals, and the change of layers."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from ndld_flow.base.quantities import ABSENT, MINUS, TIMES, apart, change, milliseconds, quantity, three_digits
from ndld_flow.base.text import short_name, visible_name
from ndld_flow.records.comparison import (
    ComparedMetric,
    Comparison,
    ComparisonGate,
    LayerRow,
    LayerVerdict,
    MetricVerdict,
    ProfileComparison,
)
from ndld_flow.records.profile import Layer, Profile
from ndld_flow.report.measured import UNKNOWN

_LEAST, _MOST = 1e-3, 1e3
_APART = 13.0
"""Minimum distance between two ticks, in percent of the axis."""
_TICKS = (0.001, 0.01, 0.1, 0.2, 0.25, 1 / 3, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.98, 0.99, 1)


@dataclass(frozen=True)
class IntervalPlot:
    """An interval of a ratio against its threshold, in percent of the axis' width."""

    low: float
    point: float
    high: float
    band_low: float
    band_high: float


@dataclass(frozen=True)
class IntervalScale:
    """An axis of ratios that several intervals share."""

    low: float
    high: float

    @classmethod
    def around(cls, verdicts: Iterable[MetricVerdict]) -> IntervalScale:
        """Return a scale that covers the intervals, the threshold bands and a margin."""
        ends = [1.0]
        for verdict in verdicts:
            ends += [1 + 2 * verdict.threshold, 1 / (1 + 2 * verdict.threshold)]
            ends += [end for end in (verdict.low, verdict.high, verdict.ratio) if math.isfinite(end) and end > 0]
        return cls.covering(min(max(end, _LEAST), _MOST) for end in ends if math.isfinite(end))

    @classmethod
    def covering(cls, ends: Iterable[float]) -> IntervalScale:
        """Return a scale that covers these ratios and a margin."""
        held = list(ends)
        margin = (max(held) / min(held)) ** 0.06
        return cls(min(held) / margin, max(held) * margin)

    def place(self, ratio: float) -> float:
        """Return a position from 0 to 100; values outside the axis are at the nearer end."""
        if math.isnan(ratio):
            ratio = 1.0
        held = min(max(ratio, self.low), self.high)
        return 100 * math.log(held / self.low) / math.log(self.high / self.low) if self.high > self.low else 50.0

    def plot(self, verdict: MetricVerdict) -> IntervalPlot | None:
        """Return the plot of a verdict; None without a ratio."""
        if not math.isfinite(verdict.ratio) or verdict.ratio <= 0:
            return None
        low, high = (verdict.low, verdict.high) if verdict.interval_is_known else (verdict.ratio, verdict.ratio)
        ends = (low, verdict.ratio, high, 1 / (1 + verdict.threshold), 1 + verdict.threshold)
        return IntervalPlot(*(round(self.place(end), 2) for end in ends))

    def ticks(self) -> tuple[tuple[float, str], ...]:
        """Return (position, text) of the ticks: `same`, and changes."""
        ratios = {*_TICKS, *(1 / tick for tick in _TICKS)}
        return self.spaced({ratio: "same" if ratio == 1 else change(1, ratio) for ratio in ratios})

    def spaced(self, texts: Mapping[float, str]) -> tuple[tuple[float, str], ...]:
        """Return (position, text) of the ticks that fit: 1, then outwards those with enough distance."""
        kept = [1.0]
        for tick in sorted(texts, key=lambda tick: abs(math.log(tick))):
            inside = self.low < tick < self.high and 3 < self.place(tick) < 96
            if inside and all(abs(self.place(tick) - self.place(other)) >= _APART for other in kept):
                kept.append(tick)
        return tuple((round(self.place(tick), 2), texts[tick]) for tick in sorted(kept))


def metric_values(metric: ComparedMetric, candidate: int, verdict: MetricVerdict | None) -> tuple[str, ...]:
    """Return the values of the base and a candidate with enough digits to differ; those behind the verdict, if any."""
    before, after = metric.values[0], metric.values[candidate]
    if before is None or after is None:
        return tuple(ABSENT if value is None else quantity(value, metric.unit) for value in (before, after))
    if verdict is not None:
        before, after = verdict.base_value, verdict.candidate_value
    return apart((before, after), metric.unit)


def measured_apart(compared: ProfileComparison, metric: ComparedMetric, verdict: MetricVerdict) -> str:
    """Return `in rounds 149 ms → 153 ms`: the values behind a verdict, if those of the profiles have another ratio.

    Pairs of runs and rounds have a ratio of their own, which the profiles' values may contradict if the machine
    drifted. Values of the metric that decides are also named if the sentence above prints other digits.
    """
    before, after = metric.values[verdict.base], metric.values[verdict.candidate]
    if not before or after is None:
        return ""
    behind = apart((verdict.base_value, verdict.candidate_value), metric.unit)
    is_other = metric.metric == compared.decided_by and behind != apart((before, after), metric.unit)
    if have_ratio(before, after, verdict) and not is_other:
        return ""
    return f"in {'rounds' if verdict.clock else 'pairs'} {' → '.join(behind)}"


def have_ratio(before: float, after: float, verdict: MetricVerdict) -> bool:
    """Return whether two values have the ratio of a verdict, within a tenth of its threshold."""
    return not before or math.isclose(after / before, verdict.ratio, rel_tol=max(verdict.threshold / 10, 1e-6))


def with_values_of_verdicts(comparison: Comparison) -> Comparison:
    """Return a comparison whose pairs have the values behind their verdicts as metrics, so that a page has one value of
    a name. Rounds and pairs of runs have their own, which the medians of each side may contradict.
    """
    profiles = []
    for profile in comparison.profiles:
        behind = {
            each.metric: (each.base_value, each.candidate_value)
            for each in profile.verdicts
            if each.base == 0 and len(profile.subjects) == 2
        }
        metrics = tuple(
            each if None in each.values else each.model_copy(update={"values": behind.get(each.metric, each.values)})
            for each in profile.metrics
        )
        profiles.append(profile.model_copy(update={"metrics": metrics}))
    return comparison.model_copy(update={"profiles": tuple(profiles)})


@dataclass(frozen=True)
class VerdictView:
    """One metric of one candidate relative to the base, as text and as a plot."""

    verdict: str
    ratio: str
    """`0.52x`, with a multiplication sign."""
    change: str
    """`-48 %`"""
    interval: str
    """`0.51x to 0.53x`; empty for exact metrics."""
    plot: IntervalPlot | None
    threshold: str
    """`±3 %`"""
    why: str


@dataclass(frozen=True)
class Decision:
    """The verdict of one profile and one candidate."""

    profile: str
    candidate: int
    """Position among the subjects."""
    metric: str
    view: VerdictView


@dataclass(frozen=True)
class MetricCell:
    """One metric of one profile."""

    value: str
    verdict: VerdictView | None
    """None for the base."""
    pair: str = ""
    """`in pairs 9.38 ms → 10.6 ms`: the values with the verdict's ratio, if the displayed ones have another."""


@dataclass(frozen=True)
class MetricRow:
    """One metric of all profiles of one name."""

    metric: str
    in_rounds: bool
    """True if the values are those of the rounds, not of the profiles."""
    decides: bool
    cells: tuple[MetricCell, ...]
    differs: bool
    """True if a verdict is not `unchanged`."""


def collect_decisions(comparison: Comparison) -> tuple[tuple[Decision, ...], IntervalScale]:
    """Return the decisions of all profiles and candidates, and their shared axis."""
    deciding = [(profile, verdict) for profile in comparison.profiles for verdict in profile.deciding]
    scale = IntervalScale.around(verdict for _, verdict in deciding)
    return tuple(
        Decision(
            profile=short_name(profile.name, 80),
            candidate=profile.subjects[verdict.candidate],
            metric=short_name(verdict.metric, 60),
            view=_verdict_view(verdict, scale),
        )
        for profile, verdict in deciding
    ), scale


def collect_metrics(profile: ProfileComparison) -> tuple[MetricRow, ...]:
    """Return all metrics, the deciding one first."""
    against_base = {(verdict.metric, verdict.candidate): verdict for verdict in profile.verdicts if verdict.base == 0}
    ordered = sorted(profile.metrics, key=lambda metric: metric.metric != profile.decided_by)
    return tuple(_metric_row(metric, profile, against_base) for metric in ordered)


def ratio_text(ratio: float) -> str:
    """Return `0.523x`, or a note if it is not a number."""
    if not math.isfinite(ratio):
        return ABSENT
    near_one = 0.9 <= ratio <= 1.1
    return f"{ratio:.3f}{TIMES}" if near_one else f"{three_digits(ratio)}{TIMES}"


def _metric_row(
    metric: ComparedMetric, profile: ProfileComparison, verdicts: dict[tuple[str, int], MetricVerdict]
) -> MetricRow:
    against_base: Sequence[MetricVerdict | None] = [verdicts.get((metric.metric, k)) for k in range(len(metric.values))]
    scale = IntervalScale.around(verdict for verdict in against_base if verdict)
    cells = tuple(
        MetricCell(
            value=ABSENT if value is None else quantity(value, short_name(metric.unit, 20)),
            verdict=_verdict_view(verdict, scale) if verdict and value is not None else None,
            pair=measured_apart(profile, metric, verdict) if verdict else "",
        )
        for value, verdict in zip(metric.values, against_base, strict=True)
    )
    return MetricRow(
        metric=short_name(metric.metric, 60),
        in_rounds=profile.is_of_rounds(metric.metric),
        decides=metric.metric == profile.decided_by,
        cells=cells,
        differs=any(verdict and verdict.verdict != "unchanged" for verdict in against_base),
    )


def _verdict_view(verdict: MetricVerdict, scale: IntervalScale) -> VerdictView:
    finite = math.isfinite(verdict.ratio)
    spread = f"{ratio_text(verdict.low)} to {ratio_text(verdict.high)}" if verdict.interval_is_known else "no interval"
    return VerdictView(
        verdict=verdict.verdict,
        ratio=ratio_text(verdict.ratio),
        change=change(1, verdict.ratio) if finite else "",
        interval="" if verdict.low == verdict.high else spread,
        plot=scale.plot(verdict),
        threshold=f"±{verdict.threshold * 100:.3g} %",
        why=short_name(verdict.why, 600),
    )


_WORST_FIRST = ("failed", "incomparable", "inconclusive", "passed")


def collect_gates(comparison: Comparison) -> tuple[tuple[ComparisonGate, int], ...]:
    """Return the gates, failed ones first, each with the position of its candidate among the subjects."""
    subjects = {profile.name: dict(enumerate(profile.subjects)) for profile in comparison.profiles}
    ordered = sorted(comparison.gates, key=lambda gate: _WORST_FIRST.index(gate.outcome))
    return tuple((gate, subjects.get(gate.name, {}).get(gate.candidate, gate.candidate)) for gate in ordered)


_ROWS_WITHOUT_SCRIPT = 20


@dataclass(frozen=True)
class AlignedRow:
    """One row relative to the base, for paper and pages without a script."""

    name: str
    type: str
    base_ms: float | None
    """None if the base has no such layer."""
    candidate_ms: float | None
    delta: str
    """`-411 µs`"""
    change: str
    precision: str
    """`float32 → float16`"""
    method: str
    verdict: str


def check_rows(comparison: ProfileComparison, profiles: Sequence[Profile]) -> None:
    """Raise IndexError for positions of layers that a profile does not have."""
    for row in comparison.rows:
        for profile, places in zip(profiles, row.layers, strict=True):
            if places and not 0 <= min(places) <= max(places) < len(profile.layers):
                raise IndexError(f"a row of {comparison.name} names a layer that its profile does not have")


def largest_changes(
    comparison: ProfileComparison, profiles: Sequence[Profile], candidate: int = 1
) -> tuple[AlignedRow, ...]:
    """Return the rows of one candidate with the largest changes from the base."""
    if len(profiles) <= candidate:
        return ()
    changes = layer_changes(comparison, profiles, candidate)[:_ROWS_WITHOUT_SCRIPT]
    return tuple(_aligned(comparison.rows[change.row], change, candidate) for change in changes)


def _aligned(row: LayerRow, changed: LayerChange, candidate: int) -> AlignedRow:
    shown = changed.base or changed.candidate
    both = bool(changed.base and changed.candidate)
    before, after = (
        "+".join(dict.fromkeys(visible_name(layer.precision or UNKNOWN) for layer in layers))
        for layers in (changed.base, changed.candidate)
    )
    delta, verdict = changed.delta_ms, changed.verdict
    return AlignedRow(
        name=short_name(changed.name),
        type=short_name(" + ".join(dict.fromkeys(layer.type for layer in shown)), 60),
        base_ms=changed.base_ms if changed.base else None,
        candidate_ms=changed.candidate_ms if changed.candidate else None,
        delta=f"{'+' if delta > 0 else MINUS if delta < 0 else ''}{milliseconds(abs(delta))}",
        change=change(changed.base_ms, changed.candidate_ms) if both else ("new" if changed.candidate else "gone"),
        precision=short_name(before if before == after else f"{before or ABSENT} → {after or ABSENT}", 60),
        method=row.methods[candidate] if both else "unmatched",
        verdict=verdict.verdict if verdict else "",
    )


@dataclass(frozen=True)
class LayerChange:
    """One row for one candidate."""

    row: int
    base: tuple[Layer, ...]
    candidate: tuple[Layer, ...]
    base_ms: float
    candidate_ms: float
    verdict: LayerVerdict | None
    """None if one side has no layer or no times."""

    @property
    def delta_ms(self) -> float:
        return self.candidate_ms - self.base_ms

    @property
    def name(self) -> str:
        """Name of the base's layers, or of the candidate's if the base has none."""
        return " + ".join(layer.name for layer in self.base or self.candidate)


def layer_changes(
    compared: ProfileComparison, profiles: Sequence[Profile], candidate: int | None = None
) -> list[LayerChange]:
    """Return all rows with layers of the base or the candidate (default: the last), the largest change first."""
    candidate = len(profiles) - 1 if candidate is None else candidate
    verdicts = {verdict.row: verdict for verdict in compared.layer_verdicts if verdict.candidate == candidate}
    times = [profile.layer_times for profile in profiles]
    changes = []
    for number, row in enumerate(compared.rows):
        of_base, of_candidate = row.layers[0], row.layers[candidate]
        if of_base or of_candidate:
            change = LayerChange(
                row=number,
                base=tuple(profiles[0].layers[index] for index in of_base),
                candidate=tuple(profiles[candidate].layers[index] for index in of_candidate),
                base_ms=times[0].sum_ms(of_base),
                candidate_ms=times[candidate].sum_ms(of_candidate),
                verdict=verdicts.get(number),
            )
            changes.append(change)
    return sorted(changes, key=lambda change: -abs(change.delta_ms))
