"""What a diagnosis says of each profile, ready to be read and linked to its layers."""

from __future__ import annotations

from dataclasses import dataclass

from ndld_flow.diagnosis.bound import bound_by
from ndld_flow.diagnosis.diagnose import diagnose
from ndld_flow.diagnosis.insight import Insight
from ndld_flow.records.profile import Profile
from ndld_flow.report.plain_text import visible_text

# A link selects rows; beyond this nobody looks at them one by one, and pages would grow.
_LAYERS_LINKED = 500


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
    evidence: str
    next_step: str
    layers: tuple[int, ...]
    """Positions to select, the longest first."""
    layer_count: int
    """How many there are, those not linked included."""


def collect_bound(profile: Profile) -> BoundView:
    """What takes the most of a profile's latency."""
    bound = bound_by(profile)
    return BoundView(bound.word, visible_text(bound.evidence))


def collect_insights(profile: Profile) -> tuple[InsightView, ...]:
    """What may save most first."""
    return tuple(map(_view, diagnose(profile)))


def _view(insight: Insight) -> InsightView:
    return InsightView(
        score=insight.score,
        title=visible_text(insight.title),
        evidence=visible_text(insight.evidence),
        next_step=visible_text(insight.next_step),
        layers=insight.layers[:_LAYERS_LINKED],
        layer_count=len(insight.layers),
    )
