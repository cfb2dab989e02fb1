"""Collect the compared subjects, each with its letter and colour."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from string import ascii_uppercase

from ndld_flow.base.text import short_name
from ndld_flow.records.comparison import Subject

SERIES = 10
"""Number of series colours in tokens.css; further subjects reuse colours and differ by letter."""


@dataclass(frozen=True)
class SubjectView:
    """One of the compared subjects."""

    letter: str
    series: int
    label: str
    location: str
    kind: str
    run_id: str
    measured_at: datetime | None


def collect_subjects(subjects: Sequence[Subject]) -> tuple[SubjectView, ...]:
    """Return all subjects in their given order; the first is the base."""
    return tuple(_view(place, subject) for place, subject in enumerate(subjects))


def _view(place: int, subject: Subject) -> SubjectView:
    return SubjectView(
        letter=ascii_uppercase[place] if place < len(ascii_uppercase) else str(place + 1),
        series=place % SERIES,
        label=short_name(subject.label, 60) or "(no name)",
        location=short_name(subject.location, 300),
        kind=subject.kind,
        run_id=short_name(subject.run_id),
        measured_at=subject.measured_at,
    )
