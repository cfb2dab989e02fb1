"""Compare two profiles, and hold the difference against gates."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from pydantic import field_validator

from ndld_flow.artifacts.kinds import Artifact, ComparisonDocument, ProfileDocument
from ndld_flow.errors import RequestError
from ndld_flow.records.comparison import Allowance
from ndld_flow.records.metric import Metric
from ndld_flow.step import Context, Reads, Result, Reuse, Step
from ndld_flow.units import Fraction

if TYPE_CHECKING:
    from ndld_flow.compare.measured import Measured
    from ndld_flow.records.comparison import Comparison, ProfileComparison, Subject


class CompareProfiles(Step[ProfileDocument, ComparisonDocument]):
    """Compare a profile with another, metric by metric and layer by layer; say no when a gate fails.

    Profiles of one recipe are measured in turns, so their process runs are compared in pairs. `from` is the candidate.
    """

    # What it reads was measured here, so what it says holds here.
    reuse: ClassVar[Reuse] = Reuse.THIS_MACHINE

    base: Annotated[str, Reads(ProfileDocument)]
    """The step whose profile is the base."""
    gates: tuple[str, ...] = ()
    """Sentences that must hold: `latency.min <= +5 %`, `latency.median <= -10 %`, `load <= +20 ms`,
    `latency.p99 <= 30 ms`. A signed limit relates to the base."""
    metric: str = "latency.min"
    """The metric that decides. The quickest pass of a run is what others' work disturbs least."""
    threshold: Fraction = 0.03
    """Relative difference that counts: a metric improved or regressed when the 95 % interval of its ratio lies wholly
    beyond it, and is unchanged when the interval lies wholly within."""
    allow: tuple[Allowance, ...] = ()
    """Circumstances that may differ or be unknown although verdicts are refused then; `unknown`: all that were not
    recorded."""
    # `fail` would make noise fail runs, and people would learn to run again until it passes. What is undecided is told.
    inconclusive: Literal["pass", "fail"] = "pass"
    """What a gate does that cannot be decided because the interval holds its limit: more process runs would tell."""

    @field_validator("gates")
    @classmethod
    def _read_gates(cls, gates: tuple[str, ...]) -> tuple[str, ...]:
        from ndld_flow.compare.gates import parse_comparison_gates

        try:
            parse_comparison_gates(gates)
        except RequestError as error:
            raise ValueError(str(error)) from None
        return gates

    def run(self, source: ProfileDocument, out: Path, context: Context) -> Result:
        from ndld_flow.compare.comparison import compare
        from ndld_flow.compare.measured import Rules

        base = context.read("base")
        rules = Rules(threshold=self.threshold, metric=self.metric, allow=frozenset(self.allow))
        measured = [_read(place, document) for place, document in enumerate((base, source))]
        comparison = compare(_subjects(measured, (base.path, source.path)), {source.label: measured}, rules, self.gates)
        (out / ComparisonDocument.main).write_text(comparison.to_json(), encoding="utf-8")
        for verdict in comparison.profiles[0].verdicts:
            if verdict.base == 0:
                context.log.info("%s %s: %s", verdict.metric, verdict.verdict, verdict.why)
        for gate in comparison.gates:
            context.log.info("gate %s %s: %s", gate.gate, gate.outcome, gate.why)
        return Result(_summary(comparison), self._passed(comparison), _metrics(comparison.profiles[0]))

    def _passed(self, comparison: Comparison) -> bool:
        wrong = {"failed", "incomparable"} | ({"inconclusive"} if self.inconclusive == "fail" else set())
        return not any(gate.outcome in wrong for gate in comparison.gates)


def _read(place: int, document: Artifact) -> Measured:
    from ndld_flow.compare.measured import Measured
    from ndld_flow.records.profile import Profile
    from ndld_flow.records.read_document import read_document

    profile = read_document(Profile, document.path)
    return Measured(place, document.label, profile)


def _subjects(measured: list[Measured], paths: tuple[Path, Path]) -> list[Subject]:
    from ndld_flow.records.comparison import Subject

    labels = [one.step for one in measured]
    if labels[0] == labels[1]:
        labels[1] += " again"
    return [
        Subject(label=label, location=str(path), kind="profile", measured_at=one.profile.measured_at)
        for label, path, one in zip(labels, paths, measured, strict=True)
    ]


def _metrics(profile: ProfileComparison) -> dict[str, Metric]:
    """The ratio of every metric with its interval, and how much of the layers' time was matched."""
    found: dict[str, Metric] = {}
    for verdict in profile.verdicts:
        if verdict.base == 0:
            found[f"{verdict.metric}.ratio"] = Metric(value=verdict.ratio)
            found[f"{verdict.metric}.ratio_low"] = Metric(value=verdict.low)
            found[f"{verdict.metric}.ratio_high"] = Metric(value=verdict.high)
    if profile.coverage[1] is not None:
        found["layers.matched_share"] = Metric(value=profile.coverage[1].matched_share)
    return found


def _summary(comparison: Comparison) -> str:
    said = f"{comparison.verdict}: {comparison.why}"
    undecided = [gate for gate in comparison.gates if gate.outcome != "passed"]
    if not undecided:
        return said
    told = "; ".join(f"gate `{gate.gate}` {gate.outcome} ({gate.why})" for gate in undecided)
    return f"{told}; {said}"
