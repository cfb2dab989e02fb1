"""Collect points that did not pass, grouped by reason."""

from __future__ import annotations

import re
from collections import defaultdict
from dataclasses import dataclass

from ndld_flow.base.text import short_name
from ndld_flow.records.sweep import PointOutcome, SweepPoint, SweepRecord

_NUMBER = re.compile(r"\d+(?:[.,]\d+)*(?:e[+-]?\d+)?")
_SHOWN = 60


@dataclass(frozen=True)
class TroubleView:
    """Points with one outcome, step and reason, ignoring numbers in the reason."""

    outcome: PointOutcome
    step: str
    reason: str
    """Reason of the first point."""
    alike: bool
    """True if all have exactly this reason."""
    points: tuple[int, ...]
    rows: tuple[int, ...]
    """Their positions among the points."""


def collect_troubles(record: SweepRecord) -> tuple[TroubleView, ...]:
    """Return the groups, those with most points first."""
    groups: dict[tuple[PointOutcome, str, str], list[tuple[int, SweepPoint]]] = defaultdict(list)
    for place, point in enumerate(record.points):
        if point.outcome != "passed":
            groups[point.outcome, point.failed_step, _NUMBER.sub("#", point.reason)].append((place, point))
    views = [_view(members) for members in groups.values()]
    return tuple(sorted(views, key=lambda one: -len(one.points)))[:_SHOWN]


def _view(members: list[tuple[int, SweepPoint]]) -> TroubleView:
    first = members[0][1]
    return TroubleView(
        outcome=first.outcome,
        step=short_name(first.failed_step, 80),
        reason=short_name(first.reason, 600) or "no reason was recorded",
        alike=len({point.reason for _, point in members}) == 1,
        points=tuple(point.number for _, point in members),
        rows=tuple(place for place, _ in members),
    )
