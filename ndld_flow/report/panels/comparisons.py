"""Comparing steps: verdicts, gates, rounds and differing conditions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ndld_flow.base.text import short_name
from ndld_flow.records.comparison import Comparison, ComparisonGate
from ndld_flow.report.comparison.subjects import (
    DifferenceView,
    RoundsView,
    SubjectView,
    collect_differences,
    collect_rounds,
    collect_subjects,
)
from ndld_flow.report.comparison.verdicts import Decision, collect_decisions, collect_gates
from ndld_flow.report.diff_rows import ChangeView, collect_change
from ndld_flow.report.panel import Panel


@dataclass(frozen=True)
class ComparisonSection:
    """The result of one comparing step."""

    step: str
    comparison: Comparison
    subjects: tuple[SubjectView, ...]
    decisions: tuple[Decision, ...]
    rounds: tuple[RoundsView, ...]
    ticks: tuple[tuple[float, str], ...]
    """(position in percent, text) of the ticks of their axis."""
    gates: tuple[tuple[ComparisonGate, int], ...]
    """Each with the position of its candidate among the subjects."""
    differences: tuple[DifferenceView, ...]
    graphs: ChangeView | None
    """The graphs that ran, after optimization."""
    graphs_missing: str
    """The reason why they are not known; empty if nobody asked."""


def collect_comparisons(comparisons: Mapping[str, Comparison]) -> tuple[ComparisonSection, ...]:
    """Return all comparing steps, in recipe order."""
    return tuple(_section(step, comparison) for step, comparison in comparisons.items())


def _section(step: str, comparison: Comparison) -> ComparisonSection:
    decisions, scale = collect_decisions(comparison)
    return ComparisonSection(
        step=short_name(step),
        comparison=comparison,
        subjects=collect_subjects(comparison.subjects),
        decisions=decisions,
        rounds=collect_rounds(comparison),
        ticks=scale.ticks(),
        gates=collect_gates(comparison),
        differences=collect_differences(comparison),
        graphs=next((collect_change(each.graphs) for each in comparison.profiles if each.graphs), None),
        graphs_missing=next((short_name(each.graphs_missing, 400) for each in comparison.profiles), ""),
    )


PANEL = Panel("Comparisons", lambda documents: collect_comparisons(documents.of(Comparison)), after="activations")
