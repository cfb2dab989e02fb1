"""Compare subjects by the profiles that they have in common, and decide gates such as `latency.median <= +5 %`."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import permutations
from typing import Literal

from ndld_flow.base.quantities import MINUS, apart, quantity, ratio_change
from ndld_flow.profiles.compare.differences import circumstances_of, find_differences
from ndld_flow.profiles.compare.intervals import applies, median_interval
from ndld_flow.profiles.compare.match_layers import METHODS, match_layers
from ndld_flow.profiles.compare.measured import FEW_RUNS, Measured, Rules, compare_metrics
from ndld_flow.profiles.compare.rounds import ESTIMATES, judge_by_rounds
from ndld_flow.profiles.compare.verdicts import (
    ASSUMED_SINGLE_RUN,
    Bounds,
    JudgedTimes,
    geometric_mean,
    is_of_many_runs,
    judge,
    judge_layers,
    needed_runs,
)
from ndld_flow.profiles.compare.written_gates import ParsedGate, check_names, parse_comparison_gates
from ndld_flow.records.comparison import (
    ComparedMetric,
    Comparison,
    ComparisonGate,
    Coverage,
    LayerRow,
    MatchMethod,
    MetricVerdict,
    ProfileComparison,
    Subject,
    Verdict,
)
from ndld_flow.records.noise import PairedRounds, describe_noise

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


BY_WEIGHT: tuple[Verdict, ...] = ("unchanged", "improved", "inconclusive", "regressed", "incomparable")
"""Verdicts by rank; the overall verdict is the highest. Those that need attention outrank the others, and an
improvement outranks no change.
"""
_LISTED = 3
"""Number of further verdicts listed after the explained one."""


@dataclass(frozen=True)
class RoundsEvidence:
    """Rounds of the two compared profiles, or the reason why there are none."""

    rounds: PairedRounds | None = None
    missing: str = ""


def compare_profiles(
    name: str, measured: Sequence[Measured], rules: Rules, evidence: RoundsEvidence | None = None
) -> ProfileComparison:
    """Compare profiles of one name; the first is the base. `evidence` is for two profiles."""
    profiles = [each.profile for each in measured]
    differences = find_differences(profiles, rules.allow)
    metrics = compare_metrics(measured)
    pairs: dict[tuple[int, int], Bounds] = {}
    for base, candidate in permutations(range(len(profiles)), 2):
        circumstances = circumstances_of(profiles[base], profiles[candidate], rules.allow)
        pairs[base, candidate] = Bounds.under(rules, [profiles[base]], [profiles[candidate]], circumstances)
    evidence = evidence or RoundsEvidence()
    verdicts = [_judge(metric, pair, bounds, evidence.rounds) for metric in metrics for pair, bounds in pairs.items()]
    rows = match_layers(profiles)
    times = [JudgedTimes(profile) for profile in profiles]
    return ProfileComparison(
        name=name,
        subjects=tuple(each.subject for each in measured),
        steps=tuple(each.step for each in measured),
        differences=differences,
        metrics=metrics,
        decided_by=rules.metric,
        verdicts=tuple(_with_remark(verdict, pairs, rules) for verdict in verdicts if verdict is not None),
        rows=rows,
        layer_verdicts=tuple(
            verdict
            for candidate in range(1, len(profiles))
            for verdict in judge_layers(rows, times, candidate, pairs[0, candidate])
        ),
        coverage=tuple(_coverage(rows, times[number], number) for number in range(len(profiles))),
        rounds=evidence.rounds,
        rounds_missing=evidence.missing,
    )


def _judge(
    metric: ComparedMetric, pair: tuple[int, int], bounds: Bounds, rounds: PairedRounds | None
) -> MetricVerdict | None:
    if rounds is None or metric.metric not in ESTIMATES or bounds.circumstances.forbidden:
        return judge(metric, *pair, bounds)
    return judge_by_rounds(metric, pair, bounds, rounds)


def compare(
    subjects: Sequence[Subject],
    sections: Mapping[str, Sequence[Measured]],
    rules: Rules,
    gates: Sequence[str] = (),
    left_out: Sequence[str] = (),
    evidence: RoundsEvidence | None = None,
) -> Comparison:
    """Compare subjects profile by profile: `sections` holds, by name, the profiles that have partners.

    The first profile of each section is its base. Raises RequestError, which lists all invalid gates and metrics.
    """
    parsed = parse_comparison_gates(gates)
    profiles = tuple(compare_profiles(name, measured, rules, evidence) for name, measured in sections.items())
    check_names(parsed, rules.metric, profiles)
    verdict, why = _overall(profiles, subjects)
    ratios = [
        decided.ratio
        for profile in profiles
        if profile.subjects[0] == 0
        for decided in profile.deciding
        if profile.subjects[decided.candidate] == len(subjects) - 1
    ]
    return Comparison(
        subjects=tuple(subjects),
        profiles=profiles,
        left_out=tuple(left_out),
        gates=tuple(
            decided
            for gate in parsed
            for profile, measured in zip(profiles, sections.values(), strict=True)
            for decided in decide(gate, profile, [Bounds.under(rules, [], [each.profile]) for each in measured])
        ),
        noise=_about_noise(rules, sections),
        geometric_mean_ratio=geometric_mean(ratios),
        verdict=verdict,
        why=why,
    )


def _overall(profiles: Sequence[ProfileComparison], subjects: Sequence[Subject]) -> tuple[Verdict, str]:
    judged = [(verdict, profile) for profile in profiles for verdict in profile.deciding]
    if not judged:
        return "inconclusive", "no two profiles have a metric that decides"

    def rank(pair: tuple[MetricVerdict, ProfileComparison]) -> tuple[int, float]:
        ratio = pair[0].ratio
        return BY_WEIGHT.index(pair[0].verdict), abs(math.log(ratio)) if 0 < ratio < math.inf else math.inf

    ranked = sorted(judged, key=rank, reverse=True)
    worst, profile = ranked[0]
    name = _name(worst, profile, profiles, subjects)
    others = ""
    for verdict, owner in ranked[1 : _LISTED + 1]:  # `; fp16 against fp32: improved, -57 %`
        change = "" if verdict.verdict == "incomparable" else f", {ratio_change(verdict.ratio)}"
        others += f"; {_name(verdict, owner, profiles, subjects)}{verdict.verdict}{change}"
    more = f"; and {len(ranked) - 1 - _LISTED} more" if len(ranked) - 1 > _LISTED else ""
    metric = "" if worst.verdict == "incomparable" else f"{worst.metric} "
    return worst.verdict, f"{name}{metric}{worst.why}{_second_opinion(worst, profile)}{others}{more}"


def _name(
    verdict: MetricVerdict,
    profile: ProfileComparison,
    profiles: Sequence[ProfileComparison],
    subjects: Sequence[Subject],
) -> str:
    """Return the name of the judged pair, if there is more than one candidate."""
    several, labels = len(profiles) > 1, [subject.label for subject in subjects]
    if len(labels) > 2:
        candidate, base = labels[profile.subjects[verdict.candidate]], labels[profile.subjects[verdict.base]]
        return f"{candidate} against {base}{f', {profile.name}' if several else ''}: "
    return f"{profile.name}: " if several else ""


def _second_opinion(decided: MetricVerdict, profile: ProfileComparison) -> str:
    """Return a clause on the median if it contradicts the fastest pass with certainty, or vice versa."""
    other = {"latency.min": "latency.median", "latency.median": "latency.min"}.get(decided.metric)
    for verdict in profile.verdicts:
        same_pair = (verdict.base, verdict.candidate) == (decided.base, decided.candidate)
        certain = verdict.verdict in ("improved", "regressed") and verdict.verdict != decided.verdict
        if same_pair and verdict.metric == other and certain:
            return f"; but {verdict.metric} {verdict.verdict}: {verdict.why}"
    return ""


def _with_remark(verdict: MetricVerdict, pairs: Mapping[tuple[int, int], Bounds], rules: Rules) -> MetricVerdict:
    """Add the remark on differing conditions to the deciding verdict."""
    remark = pairs[verdict.base, verdict.candidate].circumstances.remark
    if verdict.metric != rules.metric or not remark or verdict.verdict == "incomparable":
        return verdict
    return verdict.model_copy(update={"why": f"{verdict.why}; {remark}"})


def _about_noise(rules: Rules, sections: Mapping[str, Sequence[Measured]]) -> str:
    if rules.noise is None:
        return ""
    measured = [each.profile for section in sections.values() for each in section]
    used = sum(applies(rules.noise, profile) for profile in measured)
    if used == len(measured):
        return describe_noise(rules.noise)
    others = "the others are of another machine, backend or provider"
    return f"{describe_noise(rules.noise)}; used for {used} of {len(measured)} profiles: {others}"


def _coverage(rows: Sequence[LayerRow], times: JudgedTimes, number: int) -> Coverage | None:
    """Return the part of a profile's layer time with a partner in the base; None for the base and without layers."""
    ours = [row for row in rows if row.layers[number]]
    if number == 0 or not ours:
        return None
    by_method: dict[MatchMethod, float] = {}
    for row in ours:
        method = max(row.methods[0], row.methods[number], key=METHODS.index) if row.layers[0] else "unmatched"
        by_method[method] = by_method.get(method, 0.0) + times.sum_ms(row.layers[number])
    unmatched = by_method.get("unmatched", 0.0)
    matched = math.fsum(ms for method, ms in by_method.items() if method != "unmatched")
    total = matched + unmatched
    return Coverage(
        matched_ms=matched,
        unmatched_ms=unmatched,
        matched_share=matched / total if total else float("unmatched" not in by_method),
        by_method=by_method,
    )
