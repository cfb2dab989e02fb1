"""What a diagnosis says of each profile, ready to be read and linked to its layers."""

from __future__ import annotations

from dataclasses import dataclass

from ndld_flow.base.text import visible_text
from ndld_flow.profiles.diagnose.bound import bound_of
from ndld_flow.profiles.diagnose.diagnose import insights_of
from ndld_flow.profiles.diagnose.insight import Insight
from ndld_flow.profiles.diagnose.subject import Subject

# A link selects rows; beyond this nobody looks at them one by one, and pages would grow.
_LAYERS_LINKED = 500


Passage = tuple[str, bool]
"""A piece of text, and whether it is code."""


@dataclass(frozen=True)
class BoundView:
    """What a profile is bound by."""

    word: str
    """`unknown` where its data do not tell."""
    evidence: str


@dataclass(frozen=True)
class InsightView:
    """One thing that a profile shows."""

    score: float
    """Share of the latency that acting on it may save, 0 to 1."""
    title: str
    evidence: tuple[Passage, ...]
    next_step: tuple[Passage, ...]
    layers: tuple[int, ...]
    """Positions to select, the longest first."""
    layer_count: int
    """How many there are, those not linked included."""


def collect_diagnosis(subject: Subject) -> tuple[BoundView, tuple[InsightView, ...]]:
    """What takes the most of a profile's latency, and what to do about it: what may save most first."""
    bound = bound_of(subject)
    return BoundView(bound.word, visible_text(bound.evidence)), tuple(map(insight_view, insights_of(subject)))


def insight_view(insight: Insight) -> InsightView:
    """Return an insight, visible and in bounds."""
    return InsightView(
        score=insight.score,
        title=visible_text(insight.title),
        evidence=passages(insight.evidence),
        next_step=passages(insight.next_step),
        layers=insight.layers[:_LAYERS_LINKED],
        layer_count=len(insight.layers),
    )


def passages(text: str) -> tuple[Passage, ...]:
    """``Run `sanitize` first`` -> `Run `, code `sanitize`, ` first`; a backtick without its partner stays."""
    pieces = visible_text(text).split("`")
    if len(pieces) % 2 == 0:
        pieces[-2:] = ["`".join(pieces[-2:])]
    return tuple((piece, place % 2 == 1) for place, piece in enumerate(pieces) if piece)
