"""Comparisons in a run's report.

In the page: `comparisons = collect_comparisons({step: comparison, ...})`; in its template::

    {% from "compare_macros.html.j2" import comparisons_section %}
    {{ comparisons_section(page.comparisons) }}

with `compare.css` among the page's styles. It needs no script; `draw_comparison` writes the full page of each
comparison.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ndld_flow.base.text import short_name
from ndld_flow.records.comparison import Comparison
from ndld_flow.report.comparison.collect_differences import DifferenceView, collect_differences
from ndld_flow.report.comparison.collect_rounds import RoundsView, collect_rounds
from ndld_flow.report.comparison.collect_subjects import SubjectView, collect_subjects
from ndld_flow.report.comparison.collect_verdicts import Decision, GateView, collect_decisions, collect_gates


@dataclass(frozen=True)
class ComparisonSection:
    """The result of one comparing step."""

    step: str
    page: str
    """Path of the full page from the report; empty if there is none."""
    verdict: str
    why: str
    noise: str
    subjects: tuple[SubjectView, ...]
    several: bool
    """True if it has more than one profile."""
    decisions: tuple[Decision, ...]
    rounds: tuple[RoundsView, ...]
    ticks: tuple[tuple[float, str], ...]
    """(position in percent, text) of the ticks of their axis."""
    gates: tuple[GateView, ...]
    differences: tuple[DifferenceView, ...]


def collect_comparisons(
    comparisons: Mapping[str, Comparison], pages: Mapping[str, str] | None = None
) -> tuple[ComparisonSection, ...]:
    """Return all comparing steps, in recipe order. `pages` maps a step to the path of its own page from the report."""
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
