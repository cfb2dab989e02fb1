"""Collect the timeline of one pass, with a description."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ndld_flow.base.text import short_name
from ndld_flow.records.profile import Profile, Span


@dataclass(frozen=True)
class LaneView:
    """Description of one lane."""

    name: str
    spans: int
    busy_ms: float
    """Total time of its outermost spans."""
    overhead_ms: float
    longest: str
    longest_ms: float


@dataclass(frozen=True)
class TimelineView:
    """One pass of one profile."""

    basis: str
    length_ms: float
    lanes: tuple[LaneView, ...]
    """In order of their first span."""
    rows: int
    """Number of rows of the picture: one per depth of each lane."""


def collect_timeline(profile: Profile) -> TimelineView | None:
    """Return the timeline; None if the profile has none."""
    if not profile.timeline:
        return None
    lanes: dict[str, list[Span]] = {}
    for span in profile.timeline:
        lanes.setdefault(span.lane, []).append(span)
    return TimelineView(
        basis=short_name(profile.timeline_basis, 400),
        length_ms=max(span.start_ms + span.duration_ms for span in profile.timeline),
        rows=len({(span.lane, span.depth) for span in profile.timeline}),
        lanes=tuple(_lane(name, spans) for name, spans in lanes.items()),
    )


def _lane(name: str, spans: Sequence[Span]) -> LaneView:
    work = [span for span in spans if span.kind != "pass"] or spans
    longest = max(work, key=lambda span: span.duration_ms)
    top = min(span.depth for span in work)
    return LaneView(
        name=short_name(name),
        spans=len(spans),
        busy_ms=sum(span.duration_ms for span in work if span.depth == top),
        overhead_ms=sum(span.duration_ms for span in work if span.kind == "overhead"),
        longest=short_name(longest.name, 80),
        longest_ms=longest.duration_ms,
    )
