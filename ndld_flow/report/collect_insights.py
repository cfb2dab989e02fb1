"""Collect the diagnosis of each profile, with links to its layers."""

from __future__ import annotations

from dataclasses import dataclass

from ndld_flow.base.text import visible_text
from ndld_flow.profiles.diagnose.diagnose import bound_of, insights_of
from ndld_flow.profiles.diagnose.subject import Insight, Subject

# Maximum number of rows that a link selects, to limit the size of pages.
_LAYERS_LINKED = 500


Passage = tuple[str, bool]
"""A piece of text, and whether it is code."""


@dataclass(frozen=True)
class BoundView:
    """The bottleneck of a profile."""

    word: str
    """`unknown` if the data do not show it."""
    evidence: str


@dataclass(frozen=True)
class InsightView:
    """One finding."""

    score: float
    """Estimated saving as a share of the latency, 0 to 1."""
    title: str
    evidence: tuple[Passage, ...]
    next_step: tuple[Passage, ...]
    layers: tuple[int, ...]
    """Positions to select, the longest first."""
    layer_count: int
    """Number of layers, including those without a link."""


def collect_diagnosis(subject: Subject) -> tuple[BoundView, tuple[InsightView, ...]]:
    """Return the bottleneck of a profile and its findings, those that may save most first."""
    bound = bound_of(subject)
    return BoundView(bound.word, visible_text(bound.evidence)), tuple(map(insight_view, insights_of(subject)))


def insight_view(insight: Insight) -> InsightView:
    """Return a finding with shortened texts."""
    return InsightView(
        score=insight.score,
        title=visible_text(insight.title),
        evidence=passages(insight.evidence),
        next_step=passages(insight.next_step),
        layers=insight.layers[:_LAYERS_LINKED],
        layer_count=len(insight.layers),
    )


def passages(text: str) -> tuple[Passage, ...]:
    """Split ``Run `sanitize` first`` into `Run `, code `sanitize`, ` first`; an unpaired backtick stays."""
    pieces = visible_text(text).split("`")
    if len(pieces) % 2 == 0:
        pieces[-2:] = ["`".join(pieces[-2:])]
    return tuple((piece, place % 2 == 1) for place, piece in enumerate(pieces) if piece)
