"""Steps that captured activations: their results, and a link to the page of each."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import quote

from ndld_flow.base.text import short_name
from ndld_flow.records.activations import Activations
from ndld_flow.report.activations.page import PAGE, Verdict, figures, result_of, title_of, verdict_of
from ndld_flow.report.measured import Figure
from ndld_flow.report.panel import Panel


@dataclass(frozen=True)
class ActivationsCard:
    """The result of one step that captured activations."""

    step: str
    page: str
    """Path of its page from the report."""
    title: str
    verdict: Verdict
    result: str
    figures: tuple[Figure, ...]
    """Figures; their links are relative to the page."""


def collect_activations(documents: Mapping[str, Activations]) -> tuple[ActivationsCard, ...]:
    """Return all steps that captured activations, in recipe order."""
    return tuple(
        ActivationsCard(
            step=short_name(step),
            page=f"./{quote(step)}/{PAGE}",
            title=title_of(record),
            verdict=verdict_of(record),
            result=result_of(record),
            figures=figures(record),
        )
        for step, record in documents.items()
    )


PANEL = Panel("Activations", lambda documents: collect_activations(documents.of(Activations)), after="accuracy")
