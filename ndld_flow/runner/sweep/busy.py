"""How long steps were at work."""

from __future__ import annotations

from collections.abc import Iterable

from ndld_flow.records.step_record import StepRecord


def busy_seconds(records: Iterable[StepRecord]) -> float:
    """Seconds in which at least one of these steps was at work: what ran side by side counts once."""
    spans = sorted((record.started_at, record.ended_at) for record in records if record.ended_at is not None)
    busy_s, until = 0.0, None
    for began, ended in spans:
        if until is None or began > until:
            busy_s += (ended - began).total_seconds()
        elif ended > until:
            busy_s += (ended - until).total_seconds()
        until = ended if until is None else max(until, ended)
    return busy_s
