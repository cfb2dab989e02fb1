"""Draw the report of a sweep."""

from __future__ import annotations

from pathlib import Path

from ndld_flow.records.sweep import SweepRecord
from ndld_flow.report.garbage_collection import paused_garbage_collection
from ndld_flow.report.render import PageParts, render, write_page
from ndld_flow.report.sweep.collect_churn import Objects, collect_churn
from ndld_flow.report.sweep.page import collect_page

SWEEP_PAGE = PageParts(
    template="sweep.html.j2",
    styles=(
        "tokens.css",
        "page.css",
        "charts.css",
        "tables.css",
        "profile.css",
        "compare.css",
        "sweep.css",
        "sweep_churn.css",
        "print.css",
    ),
    entry="static/sweep/page.js",
)


def draw_sweep(record: SweepRecord, folder: Path, objects: Objects | None = None) -> Path:
    """Write `report.html` into a sweep's folder atomically and return its path.

    `objects` locates artifacts in the store while the folder is at a temporary path with invalid links.
    Raises an `OutputsError` when it cannot be written.
    """
    with paused_garbage_collection():
        text = render(SWEEP_PAGE, collect_page(record, collect_churn(record, folder, objects)))
    return write_page(folder / "report.html", text, "ndld-flow report")
