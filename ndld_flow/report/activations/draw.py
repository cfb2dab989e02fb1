"""Draw the page of activations."""

from __future__ import annotations

from pathlib import Path

from ndld_flow.records.run_folder import STORED
from ndld_flow.report.activations.pack_maps import pack_maps
from ndld_flow.report.activations.page import collect_page
from ndld_flow.report.activations.read import ACTIVATIONS_RECORD, read_activations
from ndld_flow.report.collector_at_rest import collector_at_rest
from ndld_flow.report.render import PageParts, render
from ndld_flow.report.write_page import write_page

PAGE = "activations.html"
"""The page, in the folder of its step."""

ACTIVATIONS_PAGE = PageParts(
    template="activations.html.j2",
    styles=("tokens.css", "page.css", "charts.css", "tables.css", "activations.css", "print.css"),
    entry="activations/page.js",
)


def draw_activations(folder: Path, kept: Path | None = None) -> Path:
    """Write `activations.html` into a step's folder, whole or not at all, and return its path.

    `kept` is where the document and its files lie; left out, that is the folder itself or the store behind its link.
    Raises a `RequestError` where there is no document that can be read, and an `OutputsError` when the page cannot be
    written.
    """
    here = (folder / ACTIVATIONS_RECORD).is_file()
    source = kept or (folder if here else folder / STORED)
    record = read_activations(source)
    with collector_at_rest():
        page = collect_page(record, pack_maps(record, source), "" if here else f"{STORED}/")
        text = render(ACTIVATIONS_PAGE, page)
    return write_page(folder / PAGE, text, "ndld-flow report")
