"""Export a sweep: points for spreadsheets, a summary for pull requests, pictures."""

from __future__ import annotations

from pathlib import Path

from ndld_flow.records.sweep import SweepRecord
from ndld_flow.report.exports.sweep_csv import points_csv
from ndld_flow.report.exports.sweep_markdown import sweep_markdown
from ndld_flow.report.write_page import write_page

POINTS, SUMMARY = "points.csv", "summary.md"


def write_sweep_exports(record: SweepRecord, folder: Path) -> list[Path]:
    """Write `points.csv`, `summary.md` and its pictures into a sweep's folder and return their paths.

    Raises an `OutputsError` when they cannot be written.
    """
    # Imported lazily: matplotlib takes half a second.
    from ndld_flow.report.exports.sweep_pictures import sweep_pictures

    again = "ndld-flow report"
    pictures = sweep_pictures(record, folder)
    table = write_page(folder / POINTS, points_csv(record), again)
    summary = write_page(folder / SUMMARY, sweep_markdown(record, [one.name for one in pictures]), again)
    return [table, summary, *pictures]
