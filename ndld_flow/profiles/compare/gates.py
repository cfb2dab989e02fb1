"""Decide gates on comparisons, such as `latency.median <= +5 %` or `model.bytes <= 64 MiB`."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Literal

from ndld_flow.base.quantities import MINUS, apart, quantity, ratio_change
from ndld_flow.profiles.compare.intervals import median_interval
from ndld_flow.profiles.compare.measured import FEW_RUNS
from ndld_flow.profiles.compare.verdicts import ASSUMED_SINGLE_RUN, Bounds, is_of_many_runs, needed_runs
from ndld_flow.profiles.compare.written_gates import ParsedGate
from ndld_flow.records.comparison import ComparedMetric, ComparisonGate, MetricVerdict, ProfileComparison

Outcome = Literal["passed", "failed", "inconclusive", "incomparable"]


def decide(gate: ParsedGate, profile: ProfileComparison, bounds: Sequence[Bounds]) -> Iterator[ComparisonGate]:
    """Yield the gate's result for every candidate of a profile comparison; none if no profile has the metric.

    `bounds` are those of each profile alone.
    """
    metric = next((metric for metric in profile.metrics if metric.metric == gate.metric), None)
    if metric is None:
        return
    for candidate in range(1, len(profile.subjects)):
        if gate.kind == "value":
            outcome, why = _decide_value(gate, metric, candidate, bounds[candidate])
        else:
            outcome, why = _decide(gate, profile, metric, candidate)
        yield ComparisonGate(gate=gate.text, name=profile.name, candidate=candidate, outcome=outcome, why=why)


def _decide(
    gate: ParsedGate, profile: ProfileComparison, metric: ComparedMetric, candidate: int
) -> tuple[Outcome, str]:
    if metric.values[candidate] is None:
        return "incomparable", f"it has no {metric.metric}"
    wanted = (metric.metric, 0, candidate)
    verdict = next((each for each in profile.verdicts if (each.metric, each.base, each.candidate) == wanted), None)
    if verdict is None:
        return "incomparable", f"the base has no {metric.metric}"
    if verdict.verdict == "incomparable":
        return "incomparable", verdict.why
    if verdict.identical:
        difference = 1.0 if gate.kind == "ratio" else 0.0
        return _outcome(gate, difference, difference, difference), verdict.why
    ends = (verdict.low, verdict.high)
    if verdict.is_assumed:
        ends = (verdict.ratio / (1 + ASSUMED_SINGLE_RUN), verdict.ratio * (1 + ASSUMED_SINGLE_RUN))
    if gate.kind == "ratio":
        spread = f"{_change(verdict.low, gate)} to {_change(verdict.high, gate)}"
        interval = f" ({spread if verdict.interval_is_known else _no_interval(verdict)})"
        is_exact = verdict.low == verdict.high
        text = f"{_change(verdict.ratio, gate)}{'' if is_exact else interval}"
        return _outcome(gate, ends[0], verdict.ratio, ends[1]), text
    base = metric.values[0]
    assert base is not None  # the verdict compares against it
    low, middle, high = (base * (ratio - 1) for ratio in (ends[0], verdict.ratio, ends[1]))
    text = _signed(middle, gate.limit, metric.unit)
    spread = _between(low, high, metric.unit) if verdict.interval_is_known else f" ({_no_interval(verdict)})"
    return _outcome(gate, low, middle, high), f"{text}{spread}"


def _no_interval(verdict: MetricVerdict) -> str:
    return "single runs: no interval" if verdict.is_assumed else f"fewer than {FEW_RUNS} runs: no interval"


def _outcome(gate: ParsedGate, low: float, value: float, high: float) -> Outcome:
    """Return the outcome; it is decided if both ends of the interval are on the same side of the limit."""
    ends = {gate.holds(low), gate.holds(value), gate.holds(high)}
    if len(ends) > 1:
        return "inconclusive"
    return "passed" if ends == {True} else "failed"


def _decide_value(gate: ParsedGate, metric: ComparedMetric, candidate: int, bounds: Bounds) -> tuple[Outcome, str]:
    value = metric.values[candidate]
    if value is None:
        return "incomparable", f"it has no {metric.metric}"
    text, _ = apart((value, gate.limit), metric.unit)
    if not metric.runs:
        return _outcome(gate, value, value, value), text
    runs = metric.runs[candidate]
    low, high = median_interval(runs)
    if len(runs) < FEW_RUNS:
        factor = math.exp(math.log1p(bounds.single_run_threshold) / math.sqrt(2 * len(runs)))
        low, high = min(low, value / factor), max(high, value * factor)
    ends = (low, high)
    needed = needed_runs(metric, len(runs), bounds)
    if needed:  # other processes only slow a model down: a limit that is met despite them is met without them
        knows_worst = not is_of_many_runs(metric)
        ends = (
            low if knows_worst and metric.better == "higher" else 0.0,
            high if knows_worst and metric.better == "lower" else math.inf,
        )
    outcome = _outcome(gate, ends[0], value, ends[1])
    if needed and outcome == "inconclusive":
        return outcome, f"{text} ({needed})"
    return outcome, f"{text}{_between(low, high, metric.unit)}"


def _between(low: float, high: float, unit: str) -> str:
    return "" if low == high else f" (between {quantity(low, unit)} and {quantity(high, unit)})"


def _change(ratio: float, gate: ParsedGate) -> str:
    """Return a change with enough digits to differ from the limit: `+5.04 %` rather than `+5.0 %` for a limit of
    5 %."""
    text = ratio_change(ratio)
    if text != ratio_change(gate.limit) or ratio == gate.limit:
        return text
    return _signed((ratio - 1) * 100, (gate.limit - 1) * 100, "%")


def _signed(value: float, limit: float, unit: str) -> str:
    amount, _ = apart((abs(value), abs(limit)), unit)
    return f"{'+' if value >= 0 else MINUS}{amount}"
