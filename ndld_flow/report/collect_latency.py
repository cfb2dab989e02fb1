"""Collect the latency of a run and the base with which it is compared."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from ndld_flow.base.quantities import milliseconds, percent, seconds, speedup_interval, times_as_fast
from ndld_flow.base.text import short_name
from ndld_flow.profiles.compare.differences import PairCircumstances, circumstances_of
from ndld_flow.profiles.compare.measured import Measured, Rules, compare_metrics
from ndld_flow.profiles.compare.rounds import CLOCK_NAMES
from ndld_flow.profiles.compare.verdicts import Bounds, judge
from ndld_flow.records.comparison import Comparison, MetricVerdict
from ndld_flow.records.measurement import LatencySummary
from ndld_flow.records.profile import Profile
from ndld_flow.records.run_folder import RunDocuments
from ndld_flow.records.run_record import RunRecord
from ndld_flow.report.comparison.verdicts import have_ratio
from ndld_flow.report.measured import profile_titles

_SAME_SESSION = timedelta(minutes=30)
"""Maximum time between profiles that count as consecutive; the machine may drift over longer times."""
_NOISY = 0.15
"""Coefficient of variation above which a median is marked as noisy."""
_NO_DIRECTION = {"unchanged": "unchanged", "inconclusive": "undecided"}
"""Verdict -> its word where the difference may be in either direction."""
_METRIC = "latency.median"
_EQUAL = PairCircumstances()
MODEL_KINDS = ("onnx", "engine")
"""Kinds of artifacts that can be profiled."""
_OF_LATENCY = re.compile(r"([A-Za-z_]\w*)\.(?:latency|throughput)\.")
_RELATION = re.compile(r"<=|>=|==|<|>")


@dataclass(frozen=True)
class MeasuredLatency:
    """One profiled artifact."""

    step: str
    label: str
    profile: Profile
    started_at: datetime | None

    @property
    def latency(self) -> LatencySummary:
        """Latency of the timing pass."""
        return self.profile.latency

    @property
    def runs(self) -> int:
        """Number of process runs."""
        return sum(bool(run.latency_ms) for run in self.profile.runs)


@dataclass(frozen=True)
class LatencyOutcome:
    """The latency of the recipe's result, with its base if there is one."""

    candidate: MeasuredLatency
    base: MeasuredLatency | None = None
    verdict: MetricVerdict | None = None
    """Verdict on the median relative to the base."""
    circumstances: PairCircumstances = _EQUAL

    @property
    def ratio(self) -> float | None:
        """Candidate over base, below 1 is faster; None if they are not comparable."""
        comparable = self.verdict is not None and not self.circumstances.forbidden
        return self.verdict.ratio if self.verdict is not None and comparable else None

    @property
    def change(self) -> str:
        """`0.79x as fast`, `1.41x as fast`, `unchanged`, `undecided`, `not comparable`; empty without a base."""
        if self.verdict is None:
            return ""
        if self.ratio is None:
            return "not comparable"
        outcome, has_both = self.verdict.verdict, self.verdict.low < 1 < self.verdict.high
        if outcome in _NO_DIRECTION and (has_both or self.circumstances.identical):  # the interval is in `basis`
            return _NO_DIRECTION[outcome]
        return f"{times_as_fast(self.ratio)} as fast"

    @property
    def gain(self) -> str:
        """`4.92x to 5.48x as fast` at 95 % confidence; empty if it is not proven that the candidate is faster."""
        if self.verdict is None or self.ratio is None or self.circumstances.identical or not self.verdict.high < 1:
            return ""
        return _between(self.verdict)

    @property
    def values_ms(self) -> tuple[float, float]:
        """Base and candidate as the change has them: in rounds or pairs of runs, whose ratio the medians may not have.

        The base is 0 without one.
        """
        medians = (self.base.latency.median_ms if self.base else 0.0, self.candidate.latency.median_ms)
        if self.verdict is None or have_ratio(*medians, self.verdict):
            return medians
        return self.verdict.base_value, self.verdict.candidate_value

    @property
    def words(self) -> str:
        """`half 12.1 ms vs source 14.3 ms: 1.18x as fast`."""
        if self.base is None:
            return f"{self.candidate.label} {milliseconds(self.candidate.latency.median_ms)}"
        base, candidate = map(milliseconds, self.values_ms)
        pair = f"{self.candidate.label} {candidate} vs {self.base.label} {base}"
        return f"{pair}: {self.change}" if self.change else pair

    @property
    def basis(self) -> str:
        """Description of the measurement behind the numbers."""
        if self.verdict is not None and self.verdict.clock:
            clock = CLOCK_NAMES[self.verdict.clock]
            text = f"{clock} of passes that alternated in rounds"
            is_known = self.verdict.interval_is_known and not self.circumstances.identical
            known = f": {_between(self.verdict)}" if is_known else ""
            return "; ".join([f"{text}{known}", *self._caveats()])
        both = [self.candidate] if self.base is None else [self.candidate, self.base]
        passes = " and ".join(map(str, sorted({measured.latency.sample_count for measured in both})))
        fewest = min(measured.runs for measured in both)
        text = f"median of {passes} passes in {'one process run' if fewest == 1 else f'{fewest} process runs'}"
        if self.base is None:
            return text
        if not self.in_turns or self.verdict is None:
            confidence = ": indicative"
        elif self.ratio is None or self.circumstances.identical:
            confidence = " each, in turns"
        else:
            verdict = self.verdict
            interval = _between(verdict) if verdict.interval_is_known else "no interval"
            confidence = f" each, in turns: {interval} over {fewest} pairs"
            if self.values_ms != (self.base.latency.median_ms, self.candidate.latency.median_ms):
                text, confidence = f"the middle of {fewest} pairs of process runs, in turns", f": {interval}"
        return "; ".join([f"{text}{confidence}", *self._remarks(self.base)])

    @property
    def in_turns(self) -> bool:
        """True if both were measured in several process runs that took turns (A B A B ...)."""
        if (
            self.base is None
            or not self.base.profile.session
            or self.base.profile.session != self.candidate.profile.session
        ):
            return False
        return min(self.base.runs, self.candidate.runs) > 1

    def _caveats(self) -> Iterator[str]:
        if self.circumstances.caveat:
            yield self.circumstances.caveat
        elif self.circumstances.identical:
            yield self.circumstances.noise

    def _remarks(self, base: MeasuredLatency) -> Iterator[str]:
        yield from self._caveats()
        spread = max(base.latency.cov, self.candidate.latency.cov)
        if spread > _NOISY:
            yield f"noisy, CoV {percent(spread)}"
        if base.started_at and self.candidate.started_at and not self.in_turns:
            between = abs(self.candidate.started_at - base.started_at)
            if between > _SAME_SESSION:
                yield f"measured {seconds(between.total_seconds())} apart"


def _between(verdict: MetricVerdict) -> str:
    """Return the 95 % interval as `1.13x to 1.17x as fast`."""
    return f"{speedup_interval(verdict.low, verdict.high)} as fast"


def collect_latency(documents: RunDocuments) -> LatencyOutcome | None:
    """Return the pair that the recipe compares; None if nothing was measured."""
    measured = _measured_profiles(documents)
    if not measured:
        return None
    base, candidate = _pair(documents, measured)
    return LatencyOutcome(_measured(candidate, documents)) if base is None else _compare(documents, base, candidate)


def latency_of_result(documents: RunDocuments, step: str) -> LatencyOutcome | None:
    """Return the latency of a step's result against the source's; None if they were not both measured."""
    measured = _measured_profiles(documents)
    base, candidate = _first_of("source", measured), _first_of(step, measured)
    for pair in _compared(documents):
        if [measured[each].label for each in pair if each in measured] == ["source", step]:
            base, candidate = pair
            break
    return None if base is None or candidate is None else _compare(documents, base, candidate)


def _measured_profiles(documents: RunDocuments) -> dict[str, Profile]:
    return {step: profile for step, profile in documents.of(Profile).items() if profile.latency_ms}


def _compare(documents: RunDocuments, base: str, candidate: str) -> LatencyOutcome:
    profiles = [documents.of(Profile)[base], documents.of(Profile)[candidate]]
    circumstances = circumstances_of(profiles[0], profiles[1], frozenset())
    verdict = _recorded(documents, base, candidate)
    if verdict is None:
        metrics = compare_metrics([Measured(index, "", profile) for index, profile in enumerate(profiles)])
        bounds = Bounds.under(Rules(), profiles[:1], profiles[1:], circumstances)
        verdict = next((judge(metric, 0, 1, bounds) for metric in metrics if metric.metric == _METRIC), None)
    if verdict is not None and verdict.verdict != "incomparable":
        # A comparing step may allow conditions that otherwise forbid a verdict.
        circumstances = replace(circumstances, forbidden="")
    return LatencyOutcome(_measured(candidate, documents), _measured(base, documents), verdict, circumstances)


def _pair(documents: RunDocuments, measured: dict[str, Profile]) -> tuple[str | None, str]:
    """Return the steps of base and candidate: those that the recipe compares, by a step or by a gate.

    If it compares none, the last measured model is compared with the source, or with the first measured one.
    """
    for base, candidate in (*_compared(documents), *_gated(documents.run)):
        if base in measured and candidate in measured and base != candidate:
            return base, candidate
    base = _first_of("source", measured) or next(iter(measured))
    others = {step: profile for step, profile in measured.items() if step != base}
    if not others:
        return None, base
    models = [name for name, record in documents.run.records.items() if record.artifact.kind in MODEL_KINDS]
    return base, next(filter(None, (_first_of(name, others) for name in reversed(models))), list(others)[-1])


def _compared(documents: RunDocuments) -> Iterator[tuple[str, str]]:
    """Yield the pairs of `compare_profiles` steps, the last step first."""
    for comparison in reversed(documents.of(Comparison).values()):
        for compared in comparison.profiles:
            if len(compared.steps) > 1:
                yield compared.steps[0], compared.steps[1]


def _gated(run: RunRecord) -> Iterator[tuple[str, str]]:
    """Yield the pairs in gates such as `speed.latency.median <= 1.05 * base.latency.median`."""
    gates = run.recipe.get("gates")
    for gate in gates if isinstance(gates, list) else []:
        sides = _RELATION.split(str(gate))
        if len(sides) == 2:
            left, right = (_OF_LATENCY.findall(side) for side in sides)
            if len(set(left)) == len(set(right)) == 1:
                yield right[0], left[0]


def _recorded(documents: RunDocuments, base: str, candidate: str) -> MetricVerdict | None:
    """Return a comparing step's verdict on this pair, if there is one."""
    return next(
        (
            verdict
            for comparison in reversed(documents.of(Comparison).values())
            for compared in comparison.profiles
            if compared.steps[:2] == (base, candidate)
            for verdict in compared.verdicts
            if (verdict.metric, verdict.base, verdict.candidate) == (_METRIC, 0, 1)
        ),
        None,
    )


def _first_of(label: str, profiles: dict[str, Profile]) -> str | None:
    return next((step for step, profile in profiles.items() if profile.label == label), None)


def _measured(step: str, documents: RunDocuments) -> MeasuredLatency:
    profile = documents.of(Profile)[step]
    record = documents.run.records.get(step)
    return MeasuredLatency(
        step=short_name(step),
        label=profile_titles(documents.of(Profile))[step],
        profile=profile,
        started_at=profile.measured_at or (record.started_at if record else None),
    )
