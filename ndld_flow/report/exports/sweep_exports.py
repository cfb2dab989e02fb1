"""What leaves a sweep's report: the points for spreadsheets, a summary for pull requests, its pictures."""

from __future__ import annotations

from pathlib import Path

from ndld_flow.records.sweep import SweepRecord
from ndld_flow.report.exports.sweep_csv import points_csv
from ndld_flow.report.exports.sweep_markdown import sweep_markdown
from ndld_flow.report.write_page import write_page

POINTS, SUMMARY = "points.csv", "summary.md"


def write_sweep_exports(record: SweepRecord, folder: Path) -> list[Path]:
    """Write `points.csv`, `summary.md` and the pictures it shows into a sweep's folder; all that was written.

    Raises an `OutputsError` when they cannot be written.
    """
    # Imported here: matplotlib is half a second that nobody else who imports this module should pay.
    from ndld_flow.report.exports.sweep_pictures import sweep_pictures

    again = "ndld-flow report"
    pictures = sweep_pictures(record, folder)
    table = write_page(folder / POINTS, points_csv(record), again)
    summary = write_page(folder / SUMMARY, sweep_markdown(record, [one.name for one in pictures]), again)
    return [table, summary, *pictures]
