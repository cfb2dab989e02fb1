"""Draw the page of activations."""

from __future__ import annotations

from pathlib import Path

from ndld_flow.records.run_folder import STORED
from ndld_flow.report.activations.pack_maps import pack_maps
from ndld_flow.report.activations.page import collect_page
from ndld_flow.report.activations.read import ACTIVATIONS_RECORD, read_activations
from ndld_flow.report.garbage_collection import paused_garbage_collection
from ndld_flow.report.render import PageParts, render, write_page

PAGE = "activations.html"
"""File name of the page in its step's folder."""

ACTIVATIONS_PAGE = PageParts(
    template="activations.html.j2",
    styles=("tokens.css", "page.css", "charts.css", "tables.css", "activations.css", "print.css"),
    entry="static/activations/page.js",
)


def draw_activations(folder: Path, kept: Path | None = None) -> Path:
    """Write `activations.html` into a step's folder atomically and return its path.

    `kept` is the folder of the document and its files; by default the folder itself or the store behind its link.
    Raises a `RequestError` if there is no readable document, and an `OutputsError` when the page cannot be
    written.
    """
    here = (folder / ACTIVATIONS_RECORD).is_file()
    source = kept or (folder if here else folder / STORED)
    record = read_activations(source)
    with paused_garbage_collection():
        page = collect_page(record, pack_maps(record, source), "" if here else f"{STORED}/")
        text = render(ACTIVATIONS_PAGE, page)
    return write_page(folder / PAGE, text, "ndld-flow report")
