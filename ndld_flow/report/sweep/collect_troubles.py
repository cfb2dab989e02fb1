"""Points that did not pass, grouped by why."""

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
    """Points of one outcome, one step and one reason, whatever the numbers in it."""

    outcome: PointOutcome
    step: str
    reason: str
    """As the first of them says it."""
    alike: bool
    """Whether all say exactly this."""
    points: tuple[int, ...]
    rows: tuple[int, ...]
    """Their places among the points."""


def collect_troubles(record: SweepRecord) -> tuple[TroubleView, ...]:
    """Return the reason of most points first."""
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
        reason=short_name(first.reason, 600) or "no reason was told",
        alike=len({point.reason for _, point in members}) == 1,
        points=tuple(point.number for _, point in members),
        rows=tuple(place for place, _ in members),
    )
