"""Summarise a sweep in a few lines, for a terminal."""

from __future__ import annotations

from collections.abc import Iterator

from ndld_flow.base.quantities import seconds
from ndld_flow.records.sweep import SweepRecord
from ndld_flow.report.sweep.collect_outcomes import collect_failures
from ndld_flow.report.sweep.verdict_words import counts_words, sweep_verdict

_MOST_REASONS = 3


def summarize_sweep(record: SweepRecord) -> Iterator[str]:
    """Yield the result, the work done, and the reasons of failures."""
    yield sweep_verdict(record).said
    counted = f"{len(record.points)} points: {counts_words(record)}" if record.points else "no points"
    steps = f"{record.steps_done} steps done, {record.steps_shared} shared, {record.steps_reused} reused"
    yield f"{counted}; {record.stopped_because}; {steps}; {seconds(record.wall_s)}"
    yield from _reasons(record)


def _reasons(record: SweepRecord) -> Iterator[str]:
    """Yield the most frequent reasons, ignoring their numbers, with the numbers of a few points."""
    undecided = record.inconclusive
    groups = [one for one in collect_failures(record) if one.outcome == "failed" or undecided]
    for one in groups[:_MOST_REASONS]:
        numbers = one.points
        shown = ", ".join(map(str, numbers[:5])) + (f" and {len(numbers) - 5} more" if len(numbers) > 5 else "")
        yield f"{one.outcome}: {shown}: {one.reason}{'' if one.alike else ' (other points differ in numbers)'}"
    if len(groups) > _MOST_REASONS:
        yield f"failed for {len(groups) - _MOST_REASONS} more reasons; see the report"
