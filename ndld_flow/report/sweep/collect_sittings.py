"""Collect measurement sessions: points measured in turns, their device, time and concurrent load."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from ndld_flow.base.quantities import seconds
from ndld_flow.base.text import short_name
from ndld_flow.records.sweep import MeasurementSession, SweepRecord
from ndld_flow.report.sweep.point_words import points_words


@dataclass(frozen=True)
class SittingView:
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


def collect_sittings(record: SweepRecord) -> tuple[SittingView, ...]:
    """Return all sessions, in order."""
    return tuple(map(_view, record.sittings))


def _view(sitting: MeasurementSession) -> SittingView:
    said = [text for text, there in (("second measurement", sitting.again), ("reused", sitting.reused)) if there]
    return SittingView(
        number=sitting.number,
        points=points_words(sitting.points) if sitting.points else "",
        steps=", ".join(short_name(name, 60) for name in sitting.steps),
        device=short_name(sitting.device, 80) + (f" on {short_name(sitting.machine, 200)}" if sitting.machine else ""),
        started_at=sitting.started_at,
        took=seconds((sitting.ended_at - sitting.started_at).total_seconds()),
        why=", ".join(said),
        beside="; ".join(short_name(one, 200) for one in sitting.beside[:10]),
    )
