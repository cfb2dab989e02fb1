"""The page of a comparison."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import get_args

from ndld_flow.base.quantities import change
from ndld_flow.base.text import joined, short_name, visible_name
from ndld_flow.records.comparison import (
    ComparedMetric,
    Comparison,
    ComparisonGate,
    Coverage,
    LayerVerdict,
    MatchMethod,
    ProfileComparison,
)
from ndld_flow.records.profile import Profile
from ndld_flow.report.comparison.subjects import (
    DifferenceView,
    RankedSubject,
    RoundsView,
    SettingGroup,
    SubjectView,
    collect_differences,
    collect_rounds,
    collect_settings,
    collect_subjects,
    name_fastest,
    rank_subjects,
)
from ndld_flow.report.comparison.verdicts import (
    AlignedRow,
    Decision,
    MetricRow,
    check_rows,
    collect_decisions,
    collect_gates,
    collect_metrics,
    largest_changes,
    measured_apart,
    ratio_text,
    with_values_of_verdicts,
)
from ndld_flow.report.diff_rows import ChangeView, collect_change
from ndld_flow.report.encoding import evenly_sorted, rounded
from ndld_flow.report.measured import UNKNOWN, StacksView, collect_stacks, quartiles_ms, shape_text, short_provider
from ndld_flow.report.noted_failures import page_with_notes
from ndld_flow.report.render import PageParts, render, write_page
from ndld_flow.report.report_data import GraphShape, TimelineSpans, collect_graphs, timeline_spans

_GRAPH_LAYERS = 10_000
"""Maximum layers of all graphs of a page, to limit the time for layout."""

_METHODS: tuple[MatchMethod, ...] = get_args(MatchMethod)


@dataclass(frozen=True)
class SubjectData:
    """A report that takes part in a comparison."""

    letter: str
    series: int
    label: str


@dataclass(frozen=True)
class MetricData:
    """A metric of all compared profiles."""

    metric: str
    key: str
    unit: str
    better: str
    in_rounds: bool
    values: list[float | None]
    runs: list[list[float | None]]


@dataclass(frozen=True)
class VerdictRow:
    """The verdict on a metric of two profiles."""

    metric: int
    """Position among the metrics; -1 for another one."""
    base: int
    candidate: int
    apart: str
    ratio: float | None
    low: float | None
    high: float | None
    threshold: float | None
    verdict: str
    why: str


@dataclass(frozen=True)
class ComparedLayers:
    """The layers of one compared profile; each list has an item for each layer."""

    ms: list[float | None]
    name: list[str]
    type: list[str]
    precision: list[str]
    dims: list[str]
    role: list[str]
    tactic: list[str]
    provider: list[str]
    onnx: list[list[str]]


@dataclass(frozen=True)
class ComparedReport:
    """One compared profile."""

    label: str
    latency: dict[str, float]
    """Empty without samples."""
    quartiles_ms: list[float]
    samples: list[float]
    """Sorted, and at most some thousands."""
    sample_count: int
    started_s: list[float | None]
    session: str
    layers: ComparedLayers
    timeline: TimelineSpans | None


@dataclass(frozen=True)
class MatchedRows:
    """Matched layers: a list for each profile, with an item for each row."""

    layers: list[list[tuple[int, ...]]]
    """Positions of layers."""
    methods: list[list[int]]
    confidences: list[list[float | None]]


@dataclass(frozen=True)
class ComparedProfile:
    """Profiles of the same name in several reports."""

    name: str
    subjects: Sequence[int]
    decided_by: str
    metrics: list[MetricData]
    verdicts: list[VerdictRow]
    reports: list[ComparedReport]
    rows: MatchedRows
    layer_verdicts: Sequence[LayerVerdict]


@dataclass(frozen=True)
class ComparisonData:
    """All data of the page."""

    verdict: str
    why: str
    methods: Sequence[str]
    """Ways to match layers, the surest first."""
    subjects: list[SubjectData]
    profiles: list[ComparedProfile]
    graphs: list[GraphShape]
    graph_of: list[int | None]
    """For each report, profile after profile, the position of its graph."""


def comparison_data(
    comparison: Comparison, subjects: Sequence[SubjectView], profiles: Sequence[Sequence[Profile]]
) -> ComparisonData:
    """Return all data of the page."""
    graphs, graph_of = collect_graphs(list(chain.from_iterable(profiles)), _GRAPH_LAYERS)
    return ComparisonData(
        verdict=comparison.verdict,
        why=short_name(comparison.why, 600),
        methods=_METHODS,
        subjects=[SubjectData(subject.letter, subject.series, subject.label) for subject in subjects],
        profiles=[_compared(profile, own) for profile, own in zip(comparison.profiles, profiles, strict=True)],
        graphs=graphs,
        graph_of=graph_of,
    )


def _compared(comparison: ProfileComparison, profiles: Sequence[Profile]) -> ComparedProfile:
    places = {metric.metric: index for index, metric in enumerate(comparison.metrics)}
    rows, of_profiles = comparison.rows, range(len(comparison.subjects))
    return ComparedProfile(
        name=short_name(comparison.name, 80),
        subjects=comparison.subjects,
        decided_by=comparison.decided_by,
        metrics=[_metric(metric, comparison.is_of_rounds(metric.metric)) for metric in comparison.metrics],
        verdicts=[
            VerdictRow(
                metric=places.get(verdict.metric, -1),
                base=verdict.base,
                candidate=verdict.candidate,
                apart=measured_apart(comparison, comparison.metrics[places[verdict.metric]], verdict)
                if verdict.metric in places
                else "",
                ratio=_number(verdict.ratio, 9),
                low=_number(verdict.low, 9) if verdict.interval_is_known else None,
                high=_number(verdict.high, 9),
                threshold=_number(verdict.threshold),
                verdict=verdict.verdict,
                why=short_name(verdict.why, 600),
            )
            for verdict in comparison.verdicts
        ],
        reports=[_report(profile) for profile in profiles],
        rows=MatchedRows(
            layers=[[row.layers[profile] for row in rows] for profile in of_profiles],
            methods=[[_METHODS.index(row.methods[profile]) for row in rows] for profile in of_profiles],
            confidences=[[_number(row.confidences[profile]) for row in rows] for profile in of_profiles],
        ),
        layer_verdicts=comparison.layer_verdicts,
    )


def _metric(metric: ComparedMetric, in_rounds: bool) -> MetricData:
    return MetricData(
        metric=short_name(metric.metric, 60),
        key=metric.metric,
        unit=short_name(metric.unit, 20),
        better=metric.better,
        in_rounds=in_rounds,
        values=[_number(value, 9) for value in metric.values],
        runs=[[_number(value) for value in runs] for runs in metric.runs],
    )


def _report(profile: Profile) -> ComparedReport:
    samples = profile.latency_ms
    numbers = profile.latency.model_dump() if samples else {}
    return ComparedReport(
        label=short_name(profile.label, 60),
        latency={name: rounded(value) for name, value in numbers.items()},
        quartiles_ms=list(map(rounded, quartiles_ms(profile))) if samples else [],
        samples=evenly_sorted(samples),
        sample_count=len(samples),
        started_s=[_number(run.started_s) for run in profile.runs],
        session=short_name(profile.session),
        layers=_layers(profile),
        timeline=timeline_spans(profile) if profile.timeline else None,
    )


def _layers(profile: Profile) -> ComparedLayers:
    layers = profile.layers
    return ComparedLayers(
        ms=[_number(value) for value in profile.layer_times.ms],
        name=[visible_name(layer.name) for layer in layers],
        type=[visible_name(layer.type) for layer in layers],
        precision=[visible_name(layer.precision or UNKNOWN) for layer in layers],
        dims=[shape_text(layer.outputs[0].shape) if layer.outputs else "" for layer in layers],
        role=[layer.purpose for layer in layers],
        tactic=[visible_name(layer.tactic) for layer in layers],
        provider=[short_provider(layer.provider) for layer in layers],
        onnx=[list(map(visible_name, layer.onnx_nodes)) for layer in layers],
    )


def _number(value: float | None, digits: int = 5) -> float | None:
    """Round to significant digits, more for what is printed in three: the second rounding would print another last
    digit than other surfaces. NaN and infinity, which JSON does not support, become null.
    """
    if value is None or isinstance(value, int):
        return value
    return rounded(value, digits) if math.isfinite(value) else None


@dataclass(frozen=True)
class ProfileView:
    """Profiles of one name, compared."""

    name: str
    subjects: tuple[int, ...]
    steps: tuple[str, ...]
    metrics: tuple[MetricRow, ...]
    largest: tuple[AlignedRow, ...]
    """Largest changes of the first candidate relative to the base."""
    row_count: int
    coverage: tuple[tuple[int, Coverage], ...]
    """(position among the compared profiles, part of its layer time that is matched with the base)"""
    settings: tuple[SettingGroup, ...]
    timelines: int
    """Number of profiles with a timeline."""
    graphs: ChangeView | None
    """The graphs that ran, after optimization, of the base and the first candidate."""
    graphs_missing: str
    """The reason why they are not known; empty if nobody asked."""
    stacks: StacksView | None
    """The profiles side by side; None without times."""

    @property
    def has_layers(self) -> bool:
        return self.row_count > 0


@dataclass(frozen=True)
class ComparisonPage:
    """The page of one comparison."""

    title: str
    comparison: Comparison
    subjects: tuple[SubjectView, ...]
    ranked: tuple[RankedSubject, ...]
    fastest: str
    """The subjects that are the fastest; empty for a pair, and if they cannot be ranked."""
    decisions: tuple[Decision, ...]
    rounds: tuple[RoundsView, ...]
    ticks: tuple[tuple[float, str], ...]
    """(position in percent, text) of the ticks of the axis of decisions."""
    geometric_mean: str
    """`0.52x (-48 %)`, of the last subject; empty for fewer than two profiles."""
    gates: tuple[tuple[ComparisonGate, int], ...]
    """Each with the position of its candidate among the subjects."""
    differences: tuple[DifferenceView, ...]
    left_out: tuple[str, ...]
    profiles: tuple[ProfileView, ...]
    data: ComparisonData

    @property
    def forbids(self) -> bool:
        """True if a condition forbids a verdict, so that conditions come first."""
        return any(difference.effect == "forbids" for difference in self.differences)

    @property
    def leads_with_stacks(self) -> bool:
        """True if stacked bars compare more than two subjects, which no other chart does at once."""
        return len(self.subjects) > 2 and any(profile.stacks for profile in self.profiles)

    @property
    def sections(self) -> tuple[tuple[str, str], ...]:
        """(anchor, title) of the sections this page has, in order."""
        layered = any(profile.has_layers for profile in self.profiles)
        present = (
            ("decision", bool(self.decisions)),
            ("conditions", self.forbids),
            ("stacks", self.leads_with_stacks),
            ("where", layered),
            ("gates", bool(self.gates)),
            ("rounds", bool(self.rounds)),
            ("optimized", any(profile.graphs or profile.graphs_missing for profile in self.profiles)),
            ("metrics", bool(self.profiles)),
            ("time", layered),
            ("timeline", any(profile.timelines for profile in self.profiles)),
            ("layers", layered),
            ("stacks", not self.leads_with_stacks and any(profile.stacks for profile in self.profiles)),
            ("graph", layered),
            ("conditions", not self.forbids),
            ("settings", bool(self.profiles)),
        )
        titles = {"stacks": "Side by side"}
        return tuple((name, titles.get(name, name.capitalize())) for name, there in present if there)


def collect_comparison(
    comparison: Comparison, profiles: Sequence[Sequence[Profile]], notes: Sequence[str] = ()
) -> ComparisonPage:
    """Convert records to page data; `profiles[i][j]` is the profile of subject j of `comparison.profiles[i]`."""
    comparison = with_values_of_verdicts(comparison)
    decisions, scale = collect_decisions(comparison)
    for profile, own in zip(comparison.profiles, profiles, strict=True):
        check_rows(profile, own)
    subjects = collect_subjects(comparison.subjects)
    ranked = rank_subjects(comparison, subjects, profiles)
    ratio = comparison.geometric_mean_ratio
    labels = [subject.label for subject in subjects[1:]]
    others = joined(labels) if len(labels) <= 3 else f"{len(labels)} others"
    return ComparisonPage(
        title=f"{others} against {subjects[0].label}",
        comparison=comparison,
        subjects=subjects,
        ranked=ranked,
        fastest=name_fastest(ranked, short_name(comparison.profiles[0].decided_by, 60) if comparison.profiles else ""),
        decisions=decisions,
        rounds=collect_rounds(comparison),
        ticks=scale.ticks(),
        geometric_mean="" if ratio is None else f"{ratio_text(ratio)} ({change(1, ratio)})",
        gates=collect_gates(comparison),
        differences=collect_differences(comparison),
        left_out=tuple(short_name(sentence, 400) for sentence in (*comparison.left_out, *notes)),
        profiles=tuple(
            _view(profile, own, subjects) for profile, own in zip(comparison.profiles, profiles, strict=True)
        ),
        data=comparison_data(comparison, subjects, profiles),
    )


def _view(comparison: ProfileComparison, profiles: Sequence[Profile], subjects: Sequence[SubjectView]) -> ProfileView:
    labels = [f"{subjects[place].letter} {subjects[place].label}" for place in comparison.subjects]
    return ProfileView(
        name=short_name(comparison.name, 80),
        subjects=comparison.subjects,
        steps=tuple(map(short_name, comparison.steps)),
        metrics=collect_metrics(comparison),
        largest=largest_changes(comparison, profiles),
        row_count=len(comparison.rows),
        coverage=tuple((index, coverage) for index, coverage in enumerate(comparison.coverage) if coverage is not None),
        settings=collect_settings(profiles),
        timelines=sum(bool(profile.timeline) for profile in profiles),
        graphs=None if comparison.graphs is None else collect_change(comparison.graphs),
        graphs_missing=short_name(comparison.graphs_missing, 400),
        stacks=collect_stacks(list(zip(labels, profiles, strict=True))),
    )


COMPARISON_PAGE = PageParts("comparison", "charts tables profile views graph diff compare")


def draw_comparison(
    comparison: Comparison, profiles: Sequence[Sequence[Profile]], path: Path, notes: Sequence[str] = ()
) -> Path:
    """Write the page of a comparison, with notes on files that are missing, atomically and return its path.

    `profiles[i][j]` is the profile that `comparison.profiles[i]` has at position j of its subjects. Raises a
    `ValueError` if their numbers differ, and an `OutputsError` if the page cannot be written.
    """
    text = page_with_notes(
        "The page of the comparison", lambda: render(COMPARISON_PAGE, collect_comparison(comparison, profiles, notes))
    )
    return write_page(path, text, "ndld-flow compare")
