"""A sweep in a few lines, for the terminal."""

from __future__ import annotations

from collections.abc import Iterator

from ndld_flow.quantities import seconds
from ndld_flow.records.sweep import SweepRecord
from ndld_flow.report.sweep.verdict_words import counts_words, sweep_verdict

_MOST_REASONS = 3


def summarize_sweep(record: SweepRecord) -> Iterator[str]:
    """What was found, what was done, and why points failed."""
    yield sweep_verdict(record).said
    counted = f"{len(record.points)} points: {counts_words(record)}" if record.points else "no points"
    steps = f"{record.steps_done} steps done, {record.steps_shared} shared, {record.steps_reused} reused"
    yield f"{counted}; {record.stopped_because}; {steps}; {seconds(record.wall_s)}"
    yield from _reasons(record)


def _reasons(record: SweepRecord) -> Iterator[str]:
    """The reasons that most points share, with the numbers of a few."""
    points: dict[str, list[int]] = {}
    for point in record.points:
        if point.outcome == "failed":
            points.setdefault(point.reason, []).append(point.number)
    by_count = sorted(points.items(), key=lambda item: -len(item[1]))
    for reason, numbers in by_count[:_MOST_REASONS]:
        shown = ", ".join(map(str, numbers[:5])) + (f" and {len(numbers) - 5} more" if len(numbers) > 5 else "")
        yield f"failed: {shown}: {reason}"
    if len(by_count) > _MOST_REASONS:
        yield f"failed for {len(by_count) - _MOST_REASONS} more reasons; the report tells"
