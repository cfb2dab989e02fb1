"""Comparisons as a part of a run's report, where its recipe compares profiles.

In the page: `comparisons = collect_comparisons({step: comparison, ...})`; in its template::

    {% from "compare_macros.html.j2" import comparisons_section %}
    {{ comparisons_section(page.comparisons) }}

with `compare.css` among the page's styles. It needs no script; the whole page of each comparison is what
`draw_comparison` draws.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ndld_flow.base.text import short_name
from ndld_flow.records.comparison import Comparison
from ndld_flow.report.comparison.collect_differences import DifferenceView, collect_differences
from ndld_flow.report.comparison.collect_gates import GateView, collect_gates
from ndld_flow.report.comparison.collect_rounds import RoundsView, collect_rounds
from ndld_flow.report.comparison.collect_subjects import SubjectView, collect_subjects
from ndld_flow.report.comparison.collect_verdicts import Decision, collect_decisions


@dataclass(frozen=True)
class ComparisonSection:
    """What one comparing step found."""

    step: str
    page: str
    """Where the whole page is, from the report; empty where there is none."""
    verdict: str
    why: str
    noise: str
    subjects: tuple[SubjectView, ...]
    several: bool
    """It has more than one profile."""
    decisions: tuple[Decision, ...]
    rounds: tuple[RoundsView, ...]
    ticks: tuple[tuple[float, str], ...]
    """(place in percent, text) on their axis."""
    gates: tuple[GateView, ...]
    differences: tuple[DifferenceView, ...]


def collect_comparisons(
    comparisons: Mapping[str, Comparison], pages: Mapping[str, str] | None = None
) -> tuple[ComparisonSection, ...]:
    """Return every comparing step, in recipe order. `pages`: step -> its own page, as a path from the report."""
    places = pages or {}
    return tuple(_section(step, one, places.get(step, "")) for step, one in comparisons.items())


def _section(step: str, comparison: Comparison, page: str) -> ComparisonSection:
    decisions, scale = collect_decisions(comparison)
    return ComparisonSection(
        step=short_name(step),
        page=page,
        verdict=comparison.verdict,
        why=short_name(comparison.why, 600),
        noise=short_name(comparison.noise, 400),
        subjects=collect_subjects(comparison.subjects),
        several=len(comparison.profiles) > 1,
        decisions=decisions,
        rounds=collect_rounds(comparison),
        ticks=scale.ticks(),
        gates=collect_gates(comparison),
        differences=collect_differences(comparison),
    )
