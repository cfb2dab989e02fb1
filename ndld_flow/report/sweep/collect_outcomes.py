"""Collect the measurement sessions of a sweep, and its points that did not pass, grouped by reason."""

from __future__ import annotations

import re
from collections import defaultdict
from dataclasses import dataclass
from datetime import datetime

from ndld_flow.base.quantities import seconds
from ndld_flow.base.text import short_name
from ndld_flow.records.sweep import MeasurementSession, PointOutcome, SweepPoint, SweepRecord
from ndld_flow.report.sweep.point_words import points_words


@dataclass(frozen=True)
class SessionView:
    """One measurement session."""

    number: int
    points: str
    steps: str
    device: str
    started_at: datetime
    took: str
    why: str
    """`second measurement` for winners, `reused` for earlier measurements."""
    beside: str


def collect_sessions(record: SweepRecord) -> tuple[SessionView, ...]:
    """Return all sessions, in order."""
    return tuple(map(_session_view, record.sittings))


def _session_view(sitting: MeasurementSession) -> SessionView:
    said = [text for text, there in (("second measurement", sitting.again), ("reused", sitting.reused)) if there]
    return SessionView(
        number=sitting.number,
        points=points_words(sitting.points) if sitting.points else "",
        steps=", ".join(short_name(name, 60) for name in sitting.steps),
        device=short_name(sitting.device, 80) + (f" on {short_name(sitting.machine, 200)}" if sitting.machine else ""),
        started_at=sitting.started_at,
        took=seconds((sitting.ended_at - sitting.started_at).total_seconds()),
        why=", ".join(said),
        beside="; ".join(short_name(one, 200) for one in sitting.beside[:10]),
    )


_NUMBER = re.compile(r"\d+(?:[.,]\d+)*(?:e[+-]?\d+)?")
_SHOWN = 60


@dataclass(frozen=True)
class FailureGroup:
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


def collect_failures(record: SweepRecord) -> tuple[FailureGroup, ...]:
    """Return the groups, those with most points first."""
    groups: dict[tuple[PointOutcome, str, str], list[tuple[int, SweepPoint]]] = defaultdict(list)
    for place, point in enumerate(record.points):
        if point.outcome != "passed":
            groups[point.outcome, point.failed_step, _NUMBER.sub("#", point.reason)].append((place, point))
    views = [_failure_view(members) for members in groups.values()]
    return tuple(sorted(views, key=lambda one: -len(one.points)))[:_SHOWN]


def _failure_view(members: list[tuple[int, SweepPoint]]) -> FailureGroup:
    first = members[0][1]
    return FailureGroup(
        outcome=first.outcome,
        step=short_name(first.failed_step, 80),
        reason=short_name(first.reason, 600) or "no reason was recorded",
        alike=len({point.reason for _, point in members}) == 1,
        points=tuple(point.number for _, point in members),
        rows=tuple(place for place, _ in members),
    )
