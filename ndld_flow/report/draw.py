"""Draw the report of a run from its folder."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from ndld_flow.records.run_folder import COMPARISON_PAGE, RunDocuments, read_run
from ndld_flow.records.run_record import RunOutcome
from ndld_flow.report import verdict
from ndld_flow.report.activations.draw import draw_activations
from ndld_flow.report.garbage_collection import paused_garbage_collection
from ndld_flow.report.page import collect_page
from ndld_flow.report.render import RUN_REPORT, render, write_page


def draw_report(run_folder: Path, outcome: RunOutcome | None = None) -> Path:
    """Write `report.html` into a run's folder, and the pages of activations into their steps', each whole or not at
    all; return its path. `outcome` is the outcome of the run if its record does not have it.

    Raises a `RequestError` when the folder holds no readable run, and an `OutputsError` when the
    report cannot be written.
    """
    with paused_garbage_collection():
        documents = read_run(run_folder)
        if outcome is not None:
            documents = replace(documents, run=documents.run.model_copy(update={"outcome": outcome}))
        path = draw_documents(documents, run_folder)
        for step in documents.activations:
            draw_activations(run_folder / step)
    return path


def draw_documents(documents: RunDocuments, run_folder: Path) -> Path:
    """Write the report of a run from its documents; it links to existing pages of comparisons.

    Raises an `OutputsError` when it cannot be written.
    """
    drawn = [step for step in documents.comparisons if (run_folder / step / COMPARISON_PAGE).is_file()]
    with paused_garbage_collection():
        text = render(RUN_REPORT, collect_page(documents, drawn), verdict=verdict)
    return write_page(run_folder / "report.html", text, "ndld-flow report")
