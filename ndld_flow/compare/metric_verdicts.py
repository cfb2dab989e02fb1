"""What a metric's difference between two profiles means."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from ndld_flow.compare.intervals import RatioInterval, paired_ratio, unpaired_ratio
from ndld_flow.compare.measured import FEW_RUNS
from ndld_flow.quantities import MINUS, quantity
from ndld_flow.records.comparison import Better, ComparedMetric, Difference, MetricVerdict, Verdict

ASSUMED_SINGLE_RUN = 0.25
"""How far single runs of the same thing may lie apart where no noise was learned: on shared machines a quarter is
common."""
_BYTES_FLOOR = 1 << 20
"""Memory that allocators take or leave as they please."""


@dataclass(frozen=True)
class Bounds:
    """What counts for one pair of profiles."""

    threshold: float
    floor_ms: float
    single_run_threshold: float
    paired: bool
    """They were measured in turns: run i of both belong together."""
    same: bool
    """They are the very same measurement."""
    forbidden_by: tuple[Difference, ...]


def judge(metric: ComparedMetric, base: int, candidate: int, bounds: Bounds) -> MetricVerdict | None:
    """The verdict on one metric; None where one of the two does not have it."""
    before, after = metric.values[base], metric.values[candidate]
    if before is None or after is None:
        return None
    exact = not metric.runs
    interval = (
        _exact_ratio(before, after) if exact else ratio_of_runs(metric.runs[base], metric.runs[candidate], bounds)
    )
    floor = 0.0 if exact else _floor(metric.unit, bounds)
    threshold = 0.0 if exact else max(bounds.threshold, floor / min(before, after))
    if bounds.forbidden_by:
        verdict, why = "incomparable", say_forbidden(bounds.forbidden_by)
    else:
        verdict = _decide(interval, threshold, metric.better)
        why = _say(metric, (base, candidate), interval, bounds, _meaning(verdict, threshold))
    return MetricVerdict(
        metric=metric.metric,
        base=base,
        candidate=candidate,
        verdict=verdict,
        ratio=interval.ratio,
        low=interval.low,
        high=interval.high,
        threshold=threshold,
        floor=floor,
        why=why,
    )


def ratio_of_runs(base: Sequence[float], candidate: Sequence[float], bounds: Bounds) -> RatioInterval:
    """Candidate over base with its 95 % interval, from the value of each process run."""
    if bounds.same:
        return RatioInterval(1.0, 1.0, 1.0)
    fewest = min(len(base), len(candidate))
    if fewest < FEW_RUNS:
        return _assumed_spread(base, candidate, bounds.single_run_threshold)
    if bounds.paired and len(base) == len(candidate):
        return paired_ratio(base, candidate)
    return unpaired_ratio(base, candidate)


def _assumed_spread(base: Sequence[float], candidate: Sequence[float], single_run: float) -> RatioInterval:
    """So few runs do not tell their own spread: what single runs may lie apart is taken from learned noise or assumed,
    and shrinks with the root of the number of runs. It is never narrower than what the runs themselves show.
    """
    seen = unpaired_ratio(base, candidate)
    half = math.log1p(single_run) * math.sqrt((1 / len(base) + 1 / len(candidate)) / 2)
    return RatioInterval(
        seen.ratio, min(seen.low, seen.ratio * math.exp(-half)), max(seen.high, seen.ratio * math.exp(half))
    )


def _exact_ratio(before: float, after: float) -> RatioInterval:
    ratio = after / before if before else 1.0 if after == before else math.inf
    return RatioInterval(ratio, ratio, ratio)


def _floor(unit: str, bounds: Bounds) -> float:
    return {"ms": bounds.floor_ms, "bytes": _BYTES_FLOOR}.get(unit, 0.0)


def _decide(interval: RatioInterval, threshold: float, better: Better) -> Verdict:
    # 1 / (1 + t) and not 1 - t: swapping base and candidate must swap the verdict.
    upper, lower = 1 + threshold, 1 / (1 + threshold)
    if lower <= interval.low and interval.high <= upper:
        return "unchanged"
    if better == "neither" or not (interval.low > upper or interval.high < lower):
        return "inconclusive"
    slower = interval.low > upper
    return "regressed" if slower == (better == "lower") else "improved"


def say_forbidden(differences: Sequence[Difference]) -> str:
    """Why two profiles cannot be compared, and how to compare them all the same."""
    told = "; ".join(f"{d.detail}: {', '.join(dict.fromkeys(filter(None, d.values)))}" for d in differences[:3])
    names = sorted({difference.circumstance for difference in differences})
    more = f" and {len(differences) - 3} more" if len(differences) > 3 else ""
    options = " ".join(f"--allow {name}" for name in names)
    return f"measured under different {' and '.join(names)} ({told}{more}); to compare all the same: {options}"


def _meaning(verdict: Verdict, threshold: float) -> str:
    limit = f"±{threshold * 100:.3g} %"
    return {
        "unchanged": f"within {limit}",
        "inconclusive": f"which may or may not be more than {limit}",
    }.get(verdict, f"surely more than {limit}")


def _say(metric: ComparedMetric, pair: tuple[int, int], interval: RatioInterval, bounds: Bounds, meaning: str) -> str:
    before, after = (metric.values[position] for position in pair)
    assert before is not None and after is not None  # there would be no verdict
    values = f"{quantity(before, metric.unit)} -> {quantity(after, metric.unit)}"
    if not metric.runs:
        return (
            f"{values}, {say_change(interval.ratio)}" if before != after else f"{quantity(after, metric.unit)} in both"
        )
    if bounds.same:
        return f"{quantity(after, metric.unit)}: the very same measurement"
    counts = [len(metric.runs[position]) for position in pair]
    change = f"{say_change(interval.ratio)} ({say_change(interval.low)} to {say_change(interval.high)})"
    return f"{values}: {change} over {_counted(*counts, paired=bounds.paired)}, {meaning}"


def _counted(base: int, candidate: int, *, paired: bool) -> str:
    if base != candidate:
        return f"{base} and {candidate} runs"
    if base == 1:
        return "one run each"
    return f"{base} pairs of runs" if paired and base >= FEW_RUNS else f"{base} runs each"


def say_change(ratio: float) -> str:
    """A ratio as a change: `+4.2 %`, `-50 %`, `±0 %`."""
    if not math.isfinite(ratio):
        return "from nothing"
    percent = (ratio - 1) * 100
    if abs(percent) < 0.05:
        return "±0 %"
    digits = f"{abs(percent):.1f}" if abs(percent) < 9.95 else f"{abs(percent):,.0f}"
    return f"{'+' if percent > 0 else MINUS}{digits} %"


def geometric_mean(ratios: Sequence[float]) -> float:
    """Of positive ratios."""
    return math.exp(statistics.fmean(math.log(ratio) for ratio in ratios))
