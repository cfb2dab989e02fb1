"""Judge the differences between two profiles, of metrics and of single layers."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, TypeVar

from ndld_flow.base.declared_metrics import Better
from ndld_flow.base.quantities import apart, quantity, ratio_change
from ndld_flow.profiles.compare.differences import PairCircumstances
from ndld_flow.profiles.compare.intervals import RatioInterval, applies, paired_ratio, two_sided_p, unpaired_ratio
from ndld_flow.profiles.compare.measured import FEW_RUNS, Rules
from ndld_flow.records.comparison import ComparedMetric, LayerRow, LayerVerdict, MetricVerdict, Verdict
from ndld_flow.records.profile import LayerTimes, Profile

ASSUMED_SINGLE_RUN = 0.25
"""Assumed relative difference of single runs of the same model without learned noise; 25 % is common on shared
machines.
"""
_MOST_OTHERS = 1 - 1 / (1 + ASSUMED_SINGLE_RUN)
"""Largest share of the CPUs that other processes may use for this to hold: a run on the rest takes 25 % longer. Beyond
it, single runs of one model differed by up to 108 %.
"""
_OF_MANY_RUNS = ("latency.mean", "latency.p90", "latency.p95", "latency.p99")
"""Metrics that fewer than `FEW_RUNS` process runs do not decide: single runs of one model on a busy machine differed by
20 % in their medians, by 72 % in their means, and 21-fold in `latency.p95` (34 runs).
"""
_EQUAL = PairCircumstances()
_Item = TypeVar("_Item")
_BYTES_FLOOR = 1 << 20
"""Difference in memory that is due to allocators."""


@dataclass(frozen=True)
class Bounds:
    """Thresholds for one pair of profiles, or for one alone."""

    threshold: float
    rounds_threshold: float
    """Threshold for rounds, which are better evidence of the machine's variation than learned noise."""
    floor_ms: float
    single_run_threshold: float
    single_run_is_assumed: bool
    """True without learned noise."""
    is_busy: bool
    """True if the assumption does not hold, as other processes used too much of the CPUs: without learned noise, fewer
    than `FEW_RUNS` runs decide no time."""
    paired: bool
    """True if they were measured in turns, so that run i of both form a pair."""
    same: bool
    """True if both are the same measurement."""
    circumstances: PairCircumstances

    @classmethod
    def under(
        cls,
        rules: Rules,
        base: Sequence[Profile],
        candidate: Sequence[Profile],
        circumstances: PairCircumstances = _EQUAL,
    ) -> Bounds:
        """Return the thresholds of `rules` for values from these profiles, usually one each."""
        profiles = [*base, *candidate]
        noise = rules.noise if rules.noise and all(applies(rules.noise, profile) for profile in profiles) else None
        sessions = {profile.session for profile in profiles}
        return cls(
            threshold=max(rules.threshold, noise.threshold if noise else 0.0),
            rounds_threshold=rules.threshold,
            floor_ms=rules.floor_ms,
            single_run_threshold=noise.single_run_threshold if noise else ASSUMED_SINGLE_RUN,
            single_run_is_assumed=noise is None,
            is_busy=noise is None and any(profile.share_used_by_others > _MOST_OTHERS for profile in profiles),
            paired=len(sessions) == 1 and "" not in sessions,
            same=[(profile.runs, profile.layers) for profile in base]
            == [(profile.runs, profile.layers) for profile in candidate],
            circumstances=circumstances,
        )


def judge(metric: ComparedMetric, base: int, candidate: int, bounds: Bounds) -> MetricVerdict | None:
    """Return the verdict on one metric; None if one of the two does not have it."""
    before, after = metric.values[base], metric.values[candidate]
    if before is None or after is None:
        return None
    if not metric.runs:
        return _judge_exact(metric, (base, candidate), (before, after), bounds)
    # Layers add up to the sum of the printed times, not to that of the pair of runs in the middle.
    bounds = replace(bounds, paired=bounds.paired and metric.metric != "layers.sum")
    in_pairs = _in_pairs(metric.runs[base], metric.runs[candidate], bounds)
    interval = ratio_of_runs(metric.runs[base], metric.runs[candidate], bounds)
    if not in_pairs and not bounds.same:
        interval = interval.around(after / before)
    counts = (len(metric.runs[base]), len(metric.runs[candidate]))
    needed = "" if bounds.same else needed_runs(metric, min(counts), bounds)
    if needed:
        interval = RatioInterval(interval.ratio, 0.0, math.inf)
    # The floor of a rate is that of the latency, converted to its inverse.
    floor = (
        bounds.floor_ms / 1e3 * before * after
        if metric.unit == "1/s"
        else {"ms": bounds.floor_ms, "bytes": _BYTES_FLOOR}.get(metric.unit, 0.0)
    )
    threshold = max(bounds.threshold, floor / min(before, after))
    circumstances = bounds.circumstances
    verdict = "unchanged" if circumstances.identical else decide_ratio(interval, threshold, metric.better)
    figures = middle_pair(metric.runs[base], metric.runs[candidate]) if in_pairs else (before, after)
    meaning = needed or describe_verdict(verdict, threshold)
    is_assumed = min(counts) == 1 and bounds.single_run_is_assumed and not (bounds.same or needed)
    if is_assumed:  # which is no confidence
        interval = RatioInterval(interval.ratio, 0.0, math.inf)
        most = f"{ASSUMED_SINGLE_RUN * 100:.0f} % at most"
        meaning = f"{meaning.removesuffix(_CONFIDENT)}, if single runs differ by {most}"
    text = _describe(metric.unit, figures, counts, interval, bounds, meaning)
    return MetricVerdict(
        metric=metric.metric,
        base=base,
        candidate=candidate,
        verdict="incomparable" if circumstances.forbidden else verdict,
        ratio=interval.ratio,
        base_value=figures[0],
        candidate_value=figures[1],
        low=interval.low,
        high=interval.high,
        is_assumed=is_assumed,
        threshold=threshold,
        floor=floor,
        why=circumstances.forbidden or text,
        identical=circumstances.identical,
    )


def needed_runs(metric: ComparedMetric, runs: int, bounds: Bounds) -> str:
    """Return how many process runs judge a metric, which may be an expression, if so few say nothing of its spread."""
    if runs >= FEW_RUNS:
        return ""
    if is_of_many_runs(metric):
        return f"this metric takes {FEW_RUNS} runs to judge"
    if bounds.is_busy and metric.unit != "bytes":
        return f"other processes used the CPUs: it takes {FEW_RUNS} runs to judge"
    return ""


def is_of_many_runs(metric: ComparedMetric) -> bool:
    """Return whether single slow passes, which come and go, decide a metric, which may be an expression."""
    return any(name in metric.metric for name in _OF_MANY_RUNS)


def _judge_exact(
    metric: ComparedMetric, pair: tuple[int, int], values: tuple[float, float], bounds: Bounds
) -> MetricVerdict:
    """Return the verdict on an exact metric, for which every difference counts."""
    before, after = values
    ratio = after / before if before else 1.0 if after == before else math.inf
    verdict = _decide_exact(before, after, metric.better)
    change = f", {ratio_change(ratio)}" if before > 0 else ""
    shown = quantity(after, metric.unit)
    why = f"{shown} in both" if verdict == "unchanged" else f"{' -> '.join(apart(values, metric.unit))}{change}"
    return MetricVerdict(
        metric=metric.metric,
        base=pair[0],
        candidate=pair[1],
        verdict="incomparable" if bounds.circumstances.forbidden else verdict,
        ratio=ratio,
        base_value=before,
        candidate_value=after,
        low=ratio,
        high=ratio,
        threshold=0.0,
        why=bounds.circumstances.forbidden or why,
    )


def _decide_exact(before: float, after: float, better: Better) -> Verdict:
    if math.isclose(before, after, rel_tol=1e-9):
        return "unchanged"
    if better == "neither":
        return "inconclusive"
    return "improved" if (after < before) == (better == "lower") else "regressed"


def ratio_of_runs(base: Sequence[float], candidate: Sequence[float], bounds: Bounds) -> RatioInterval:
    """Return candidate over base with its 95 % interval, from the value of each process run."""
    if bounds.same:
        return RatioInterval(1.0, 1.0, 1.0)
    fewest = min(len(base), len(candidate))
    if fewest < FEW_RUNS:
        # The runs are too few to show their own spread. That of single runs is learned or assumed, and shrinks with the
        # root of their number; the interval is never narrower than the range of the runs.
        seen = unpaired_ratio(base, candidate)
        half = math.log1p(bounds.single_run_threshold) * math.sqrt((1 / len(base) + 1 / len(candidate)) / 2)
        return RatioInterval(
            seen.ratio, min(seen.low, seen.ratio * math.exp(-half)), max(seen.high, seen.ratio * math.exp(half))
        )
    if _in_pairs(base, candidate, bounds):
        return paired_ratio(base, candidate)
    return unpaired_ratio(base, candidate)


def decide_ratio(interval: RatioInterval, threshold: float, better: Better) -> Verdict:
    """Return the verdict of an interval of candidate over base; `better` states whether less or more is better."""
    # 1 / (1 + t) and not 1 - t: swapping base and candidate must swap the verdict.
    upper, lower = 1 + threshold, 1 / (1 + threshold)
    if lower <= interval.low and interval.high <= upper:
        return "unchanged"
    if better == "neither" or not (interval.low > upper or interval.high < lower):
        return "inconclusive"
    slower = interval.low > upper
    return "regressed" if slower == (better == "lower") else "improved"


def describe_verdict(verdict: Verdict, threshold: float) -> str:
    """Return `within ±3 %`, `more than ±3 % at 95 % confidence`, or that either may be."""
    limit = f"±{threshold * 100:.3g} %"
    return {
        "unchanged": f"within {limit}",
        "inconclusive": f"which may or may not be more than {limit}",
    }.get(verdict, f"more than {limit}{_CONFIDENT}")


_CONFIDENT = " at 95 % confidence"


def middle_pair(base: Sequence[float], candidate: Sequence[float]) -> tuple[float, float]:
    """Return the values of the pair of runs whose quotient is the ratio.

    The medians of each side do not have this ratio: if the machine drifts, they come from different times, and their
    quotient may contradict that of the pairs.
    """
    values = sorted(zip(base, candidate, strict=True), key=lambda pair: pair[1] / pair[0])
    pairs = values[(len(values) - 1) // 2 : len(values) // 2 + 1]
    return statistics.geometric_mean(a for a, _ in pairs), statistics.geometric_mean(b for _, b in pairs)


def _in_pairs(base: Sequence[float], candidate: Sequence[float], bounds: Bounds) -> bool:
    return bounds.paired and len(base) == len(candidate) >= FEW_RUNS and not bounds.same


def _describe(
    unit: str,
    figures: tuple[float, float],
    counts: tuple[int, int],
    interval: RatioInterval,
    bounds: Bounds,
    meaning: str,
) -> str:
    if bounds.same:
        return f"{quantity(figures[1], unit)}: the same measurement"
    runs = _counted(*counts, paired=bounds.paired)
    where = " in the middle pair" if "pairs" in runs else ""
    change = f"{' -> '.join(apart(figures, unit))}{where}: {ratio_change(interval.ratio)}"
    meaning = bounds.circumstances.noise or meaning
    if math.isinf(interval.high):
        return f"{change}; {runs}: no interval; {meaning}"
    return f"{change} ({ratio_change(interval.low)} to {ratio_change(interval.high)}) over {runs}, {meaning}"


def _counted(base: int, candidate: int, *, paired: bool) -> str:
    if base != candidate:
        return f"{base} and {candidate} runs"
    if base == 1:
        return "one run each"
    return f"{base} pairs of runs" if paired and base >= FEW_RUNS else f"{base} runs each"


def geometric_mean(ratios: Sequence[float]) -> float | None:
    """Return the geometric mean; None for fewer than two ratios or if one has no logarithm."""
    if len(ratios) < 2 or not all(0 < ratio < math.inf for ratio in ratios):
        return None
    return math.exp(statistics.fmean(math.log(ratio) for ratio in ratios))


TICK_MS = 0.001
"""Resolution of the clock in ONNX Runtime's profiles. Shorter times count as half a tick, because 0 has no ratio."""


class RunTimes(NamedTuple):
    """Time of a row's layers over process runs."""

    runs: int
    sum_ms: float
    """The printed time, at least half a tick."""
    log_mean: float
    """Mean of the logarithms."""
    log_error: float
    """Its squared standard error, at least that of the clock's resolution; 0 for one run."""


class JudgedTimes(LayerTimes):
    """Times of one profile's layers over its process runs, computed once for each row and reused for all candidates."""

    def __init__(self, profile: Profile) -> None:
        super().__init__(profile.layers, profile.layer_runs)
        self._known: dict[tuple[int, ...], RunTimes | None] = {}

    def of(self, positions: tuple[int, ...]) -> RunTimes | None:
        """Return the times of the sum of these layers; None without layers, or if one was not measured."""
        if positions not in self._known:
            self._known[positions] = _reduce(self.sums_in_runs(positions), self.sum_ms(positions))
        return self._known[positions]


def _reduce(values: Sequence[float], sum_ms: float) -> RunTimes | None:
    count = len(values)
    if not count:
        return None
    middle = max(sum_ms, TICK_MS / 2)
    logs = [math.log(value) if value > TICK_MS / 2 else _LOG_OF_HALF_A_TICK for value in values]
    mean = sum(logs) / count
    if count == 1:
        return RunTimes(count, middle, mean, 0.0)
    variance = sum([(log - mean) ** 2 for log in logs]) / (count - 1)
    return RunTimes(count, middle, mean, max(variance, (TICK_MS / middle) ** 2 / 12) / count)


_LOG_OF_HALF_A_TICK = math.log(TICK_MS / 2)


SIGNIFICANT = 0.05
"""False discovery rate of rows reported as slower or faster (Benjamini and Hochberg, 1995)."""
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
    rows: Sequence[LayerRow], times: Sequence[JudgedTimes], candidate: int, bounds: Bounds
) -> Iterator[LayerVerdict]:
    """Yield a verdict for every row with measured layers of both base and candidate."""
    tested = list(_tests(rows, times, candidate))
    q_values = iter(adjust([test.p_value for test in tested if test.p_value is not None]))
    for test in tested:
        q_value = None if test.p_value is None else next(q_values)
        yield LayerVerdict(
            row=test.row,
            candidate=candidate,
            verdict=_decide(test, q_value, bounds),
            ratio=test.ratio,
            p_value=test.p_value,
            q_value=q_value,
        )


def _tests(rows: Sequence[LayerRow], times: Sequence[JudgedTimes], candidate: int) -> Iterator[_Tested]:
    of_base, of_candidate = times[0].of, times[candidate].of
    for number, row in enumerate(rows):
        base, ours = of_base(row.layers[0]), of_candidate(row.layers[candidate])
        if base and ours:
            ratio, difference_ms = ours.sum_ms / base.sum_ms, abs(ours.sum_ms - base.sum_ms)
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
    base_error, candidate_error = base.log_error, candidate.log_error
    freedom = (base_error + candidate_error) ** 2 / (
        base_error**2 / (base.runs - 1) + candidate_error**2 / (candidate.runs - 1)
    )
    # The degrees of freedom are at least the smaller side's, despite rounding.
    whole = max(int(freedom), min(base.runs, candidate.runs) - 1)
    return two_sided_p((candidate.log_mean - base.log_mean) / math.sqrt(base_error + candidate_error), whole)


def _decide(test: _Tested, q_value: float | None, bounds: Bounds) -> Verdict:
    if bounds.circumstances.forbidden:
        return "incomparable"
    far = max(test.ratio, 1 / test.ratio) - 1
    if bounds.same or bounds.circumstances.identical or (test.difference_ms <= _FLOOR_MS and q_value is not None):
        return "unchanged"
    if q_value is None:
        counts = not bounds.is_busy and far > max(bounds.threshold, _SINGLE_RUN) and test.difference_ms > _FLOOR_MS
    elif far <= bounds.threshold:
        return "unchanged"
    else:
        counts = q_value < SIGNIFICANT
    if not counts:
        return "inconclusive"
    return "regressed" if test.ratio > 1 else "improved"
