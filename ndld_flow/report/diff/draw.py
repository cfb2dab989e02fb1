"""Draw the page of a diff."""

from __future__ import annotations

from pathlib import Path

from ndld_flow.records.model_diff import ModelDiff
from ndld_flow.report.diff.page import collect_page
from ndld_flow.report.render import PageParts, render
from ndld_flow.report.write_page import write_page

DIFF_PAGE = PageParts(
    template="diff.html.j2",
    styles=("tokens.css", "page.css", "charts.css", "tables.css", "diff.css", "print.css"),
    entry="diff/page.js",
)


def draw_diff(diff: ModelDiff, names: tuple[str, str], path: Path) -> Path:
    """Write the page of a diff atomically and return its path.

    `names` are those of the models before and after. Raises an `OutputsError` when it cannot be written.
    """
    return write_page(path, render(DIFF_PAGE, collect_page(diff, names)), "ndld-flow diff")
