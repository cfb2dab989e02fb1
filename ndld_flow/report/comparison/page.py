"""The page of a comparison."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ndld_flow.base.garbage_collection import paused_garbage_collection
from ndld_flow.base.quantities import change
from ndld_flow.base.text import joined, short_name
from ndld_flow.records.comparison import Comparison, Coverage, ProfileComparison
from ndld_flow.records.profile import Profile
from ndld_flow.report.collect_stacks import StacksView, collect_stacks
from ndld_flow.report.comparison.data import ComparisonData, comparison_data
from ndld_flow.report.comparison.layers import AlignedRow, check_rows, largest_changes
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
    Decision,
    GateView,
    MetricRow,
    collect_decisions,
    collect_gates,
    collect_metrics,
    ratio_text,
    with_values_of_verdicts,
)
from ndld_flow.report.diff_rows import ChangeView, collect_change
from ndld_flow.report.noted_failures import page_with_notes
from ndld_flow.report.render import PageParts, render, write_page


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
    gates: tuple[GateView, ...]
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


def _view(
    comparison: ProfileComparison,
    profiles: Sequence[Profile],
    subjects: Sequence[SubjectView],
) -> ProfileView:
    labels = [f"{subjects[place].letter} {subjects[place].label}" for place in comparison.subjects]
    return ProfileView(
        name=short_name(comparison.name, 80),
        subjects=comparison.subjects,
        steps=tuple(map(short_name, comparison.steps)),
        metrics=collect_metrics(comparison),
        largest=largest_changes(comparison, profiles),
        row_count=len(comparison.rows),
        coverage=tuple((place, coverage) for place, coverage in enumerate(comparison.coverage) if coverage is not None),
        settings=collect_settings(profiles),
        timelines=sum(bool(profile.timeline) for profile in profiles),
        graphs=None if comparison.graphs is None else collect_change(comparison.graphs),
        graphs_missing=short_name(comparison.graphs_missing, 400),
        stacks=collect_stacks(list(zip(labels, profiles, strict=True))),
    )


COMPARISON_PAGE = PageParts(
    template="comparison.html.j2",
    styles=(
        "tokens.css",
        "page.css",
        "charts.css",
        "tables.css",
        "profile.css",
        "views.css",
        "graph.css",
        "diff.css",
        "compare.css",
        "print.css",
    ),
    entry="static/comparison/page.js",
)


def draw_comparison(
    comparison: Comparison, profiles: Sequence[Sequence[Profile]], path: Path, notes: Sequence[str] = ()
) -> Path:
    """Write the page of a comparison, with notes on files that are missing, atomically and return its path.

    `profiles[i][j]` is the profile that `comparison.profiles[i]` has at position j of its subjects. Raises a
    `ValueError` if their numbers differ, and an `OutputsError` if the page cannot be written.
    """
    with paused_garbage_collection():
        text = page_with_notes(
            "The page of the comparison",
            lambda: render(COMPARISON_PAGE, collect_comparison(comparison, profiles, notes)),
        )
    return write_page(path, text, "ndld-flow compare")
