"""Judge two models by rounds in which they alternate pass by pass: choose the clock and the verdict.

A round compares a fresh process of each model. Its estimate is the median over cycles of ln(candidate / base), so that
drift of the machine, which both turns of a cycle share, cancels out. Rounds are independent; their spread includes
effects of a process, such as its memory layout.

The evidence is evaluated after every round, and the measurement stops once it decides. Repeated evaluation raises the
error rate, so the interval is 2.6 standard errors wide and the first decision needs four rounds. `bench_compare`
simulates the remaining error rate.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from ndld_flow.base.quantities import apart, ratio_change
from ndld_flow.profiles.compare.intervals import RatioInterval
from ndld_flow.profiles.compare.verdicts import Bounds, decide_ratio, describe_verdict
from ndld_flow.records.comparison import ComparedMetric, MetricVerdict
from ndld_flow.records.measurement import FEWEST_ROUNDS
from ndld_flow.records.noise import Clock, ClockRatio, PairedRounds, Round, RoundSide

FLOOR = 0.01
"""Minimum assumed standard deviation of a round: a few rounds may agree by chance."""
_STANDARD_ERRORS = 2.6
_LEAST_ERROR = 0.002
_MAD_TO_MEDIAN_ERROR = 1.2533 * 1.4826
"""Standard error of a median, from the median absolute deviation of normal values, times the root of their number."""
_WAITS = 0.03
"""Share of a pass that may be spent neither running nor ready to run, before CPU time is rejected."""
_PARALLEL = 1.05
"""CPU time over wall time above which several threads ran."""
_SMALLEST_MS = 1e-9
CLOCK_NAMES: dict[Clock, str] = {"cpu": "CPU time", "wall": "wall time"}


class Estimate(NamedTuple):
    """The logarithm of candidate over base in one round."""

    log_ratio: float
    error: float
    """Standard error estimated from the cycles."""


@dataclass(frozen=True)
class RoundsPlan:
    """The inputs for judging rounds, apart from their times."""

    on_device: bool
    """True if the models run on a GPU or another device."""
    rounds_limit: int
    budget_ms: float
    threshold: float
    floor: float = FLOOR


def choose_clock(rounds: Sequence[Round], on_device: bool) -> tuple[Clock, str]:
    """Choose the clock that decides, and give the reason.

    CPU time decides for single-threaded models that never wait: concurrent load hardly affects it. With several threads
    it misses how well they share the work, and if a pass waits for a device, a lock or a clock, it misses the wait.
    Wall time decides then.
    """
    sides = [side for round_ in rounds for side in (round_.base, round_.candidate)]
    threads = max(side.threads for side in sides)
    if on_device:
        return "wall", "CPU time misses the work of a device"
    if threads > 1:
        return "wall", f"CPU time misses how well {threads} threads share the work"
    if any(statistics.median(map(_share, side.cpu_ms, side.wall_ms)) > _PARALLEL for side in sides):
        return "wall", "more CPU time than wall time: several threads share the work"
    waits = max(map(_waiting_share, sides))
    if waits > _WAITS:
        return "wall", f"CPU time misses the {waits:.0%} of a pass that are spent waiting"
    return "cpu", "one thread that never waits; concurrent load affects its CPU time least"


def _share(part: float, whole: float) -> float:
    return part / whole if whole else 0.0


def _waiting_share(side: RoundSide) -> float:
    """Return the share of a pass in which the process was neither running nor ready to run.

    If the system does not report the time in the ready state, the fastest pass is the least disturbed one.
    """
    if not side.queued_ms:
        return 1 - _share(min(side.cpu_ms), min(side.wall_ms))
    times = zip(side.cpu_ms, side.queued_ms, side.wall_ms, strict=True)
    return statistics.median(1 - _share(cpu + queued, wall) for cpu, queued, wall in times)


def estimate_median(round_: Round, clock: Clock) -> Estimate:
    """Estimate the ratio of the median passes."""
    base, candidate = _samples(round_, clock)
    logs = [math.log(ours / theirs) for theirs, ours in zip(base, candidate, strict=True)]
    middle = statistics.median(logs)
    spread = statistics.median(abs(log - middle) for log in logs)
    return Estimate(middle, max(_LEAST_ERROR, _MAD_TO_MEDIAN_ERROR * spread / math.sqrt(len(logs))))


def estimate_minimum(round_: Round, clock: Clock) -> Estimate:
    """Estimate the ratio of the fastest passes; only the spread of rounds shows its error."""
    base, candidate = _samples(round_, clock)
    return Estimate(math.log(min(candidate) / min(base)), _LEAST_ERROR)


def _estimate_throughput(round_: Round, clock: Clock) -> Estimate:
    latency = estimate_median(round_, clock)
    return Estimate(-latency.log_ratio, latency.error)


ESTIMATES: dict[str, Callable[[Round, Clock], Estimate]] = {
    "latency.median": estimate_median,
    "latency.min": estimate_minimum,
    "throughput": _estimate_throughput,
}
"""The metrics that rounds decide. They have too few passes for percentiles."""


def _samples(round_: Round, clock: Clock) -> tuple[Sequence[float], Sequence[float]]:
    if clock == "cpu":
        return round_.base.cpu_ms, round_.candidate.cpu_ms
    return round_.base.wall_ms, round_.candidate.wall_ms


def interval_of(estimates: Sequence[Estimate], floor: float = FLOOR) -> RatioInterval:
    """Return candidate over base with the deciding interval, which needs at least `FEWEST_ROUNDS`.

    The spread of few rounds is unreliable, so it counts only if it exceeds the floor and the rounds' own errors.
    """
    logs = [estimate.log_ratio for estimate in estimates]
    mean = statistics.fmean(logs)
    if len(logs) < FEWEST_ROUNDS:
        return RatioInterval(math.exp(mean), 0.0, math.inf)
    least = floor**2 + statistics.fmean(estimate.error**2 for estimate in estimates)
    half = _STANDARD_ERRORS * math.sqrt(max(least, statistics.variance(logs)) / len(logs))
    return RatioInterval(math.exp(mean), math.exp(mean - half), math.exp(mean + half))


def spread_of(paired: PairedRounds) -> float:
    """Return an upper bound, at 95 % confidence, of the standard deviation of A/A rounds.

    It includes the rounds' own errors. The quantile of the chi-square distribution is Wilson and Hilferty's (1931).
    """
    logs = [estimate_median(round_, paired.clock).log_ratio for round_ in paired.rounds]
    degrees = len(logs) - 1
    part = 2 / (9 * degrees)
    quantile = degrees * (1 - part - 1.645 * math.sqrt(part)) ** 3
    return statistics.stdev(logs) * math.sqrt(degrees / quantile)


def describe_rounds(rounds: Sequence[Round], plan: RoundsPlan, stopped_because: str) -> PairedRounds:
    """Describe the rounds of two profiles, the first being the base."""
    clock, reason = choose_clock(rounds, plan.on_device)
    cpu, wall = (_interval(rounds, "latency.median", each, plan.floor) for each in ("cpu", "wall"))
    # Wall time shows a relevant difference that CPU time excludes.
    limit = 1 + plan.threshold
    is_excluded = wall.low > max(limit, cpu.high) or wall.high < min(1 / limit, cpu.low)
    return PairedRounds(
        base=0,
        candidate=1,
        rounds=tuple(rounds),
        clock=clock,
        clock_reason=reason,
        cpu=ClockRatio(ratio=cpu.ratio, low=cpu.low, high=cpu.high),
        wall=ClockRatio(ratio=wall.ratio, low=wall.low, high=wall.high),
        clocks_disagree=clock == "cpu" and is_excluded,
        floor=plan.floor,
        rounds_limit=plan.rounds_limit,
        budget_ms=plan.budget_ms,
        stopped_because=stopped_because,
    )


def _interval(rounds: Sequence[Round], metric: str, clock: Clock, floor: float) -> RatioInterval:
    # A turn that is too short for the CPU clock has no CPU time.
    usable = [round_ for round_ in rounds if min(map(min, _samples(round_, clock))) > 0]
    if not usable:
        return RatioInterval(1.0, 0.0, math.inf)
    return interval_of([ESTIMATES[metric](round_, clock) for round_ in usable], floor)


def deciding_interval(paired: PairedRounds, metric: str = "latency.median") -> RatioInterval:
    """Return candidate over base by the deciding clock; if the clocks disagree, the interval spans both."""
    interval = _interval(paired.rounds, metric, paired.clock, paired.floor)
    if paired.clocks_disagree:  # a change that one clock excludes is not certain
        other = _interval(paired.rounds, metric, "wall", paired.floor)
        interval = RatioInterval(interval.ratio, min(interval.low, other.low), max(interval.high, other.high))
    return interval


def judge_by_rounds(
    metric: ComparedMetric, pair: tuple[int, int], bounds: Bounds, paired: PairedRounds
) -> MetricVerdict:
    """Return the verdict of rounds on a metric that they decide."""
    interval = deciding_interval(paired, metric.metric)
    base = typical_base(paired, metric.metric)
    if pair == (paired.candidate, paired.base):
        base *= interval.ratio
        interval = interval.inverted()
    figures = (base, base * interval.ratio)
    circumstances, threshold = bounds.circumstances, bounds.rounds_threshold
    verdict = "unchanged" if circumstances.identical else decide_ratio(interval, threshold, metric.better)
    open_ = f", {describe_verdict(verdict, threshold)}" if verdict == "inconclusive" else ""
    values = " -> ".join(apart(figures, metric.unit))
    text = _describe(values, interval, paired, open_, inverted=pair[0] != paired.base)
    return MetricVerdict(
        metric=metric.metric,
        base=pair[0],
        candidate=pair[1],
        verdict=verdict,
        ratio=interval.ratio,
        base_value=figures[0],
        candidate_value=figures[1],
        low=interval.low,
        high=interval.high,
        threshold=threshold,
        why=f"{text}; {circumstances.noise}" if circumstances.noise else text,
        identical=circumstances.identical,
        clock=paired.clock,
    )


def typical_base(paired: PairedRounds, metric: str = "latency.median") -> float:
    """Return the base's value of a metric over all rounds, by the deciding clock."""
    samples = [_samples(round_, paired.clock)[0] for round_ in paired.rounds]
    values = [min(each) if metric == "latency.min" else statistics.median(each) for each in samples]
    typical_ms = statistics.geometric_mean(max(value, _SMALLEST_MS) for value in values)
    return 1e3 / typical_ms if metric == "throughput" else typical_ms


def _describe(values: str, interval: RatioInterval, paired: PairedRounds, meaning: str, *, inverted: bool) -> str:
    """Return `5.55 ms -> 6.11 ms in rounds: +10.1 % (+8.9 % to +11.4 %) by CPU time; the median by wall time: ...;
    4 rounds of ...`, with `meaning` after the interval.
    """
    other: Clock = "wall" if paired.clock == "cpu" else "cpu"
    second = paired.wall if paired.clock == "cpu" else paired.cpu
    parts = [f"{values} in rounds: {describe_interval(interval)} by {CLOCK_NAMES[paired.clock]}{meaning}"]
    if not inverted:
        parts.append(f"the median by {CLOCK_NAMES[other]}: {describe_interval(second)}")
    if paired.clocks_disagree:
        parts.append("the clocks disagree, so the interval spans both")
    parts.append(f"alternating passes, {paired.stopped_because}")
    return "; ".join(parts)


def describe_interval(interval: RatioInterval | ClockRatio) -> str:
    """Return `+10.1 % (+8.9 % to +11.4 %)`."""
    if not interval.low or math.isinf(interval.high):
        return f"{ratio_change(interval.ratio)} (too few rounds)"
    return f"{ratio_change(interval.ratio)} ({ratio_change(interval.low)} to {ratio_change(interval.high)})"


def estimated_ratio(round_: Round, clock: Clock) -> float:
    """Return candidate over base of the median pass in one round; 1 if a clock has no reading."""
    return _interval([round_], "latency.median", clock, FLOOR).ratio
