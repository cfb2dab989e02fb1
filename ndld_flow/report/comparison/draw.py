"""Draw the page of a comparison."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ndld_flow.records.comparison import Comparison
from ndld_flow.records.profile import Profile
from ndld_flow.report.comparison.page import collect_comparison
from ndld_flow.report.garbage_collection import paused_garbage_collection
from ndld_flow.report.render import PageParts, render, write_page

COMPARISON_PAGE = PageParts(
    template="comparison.html.j2",
    styles=(
        "tokens.css",
        "page.css",
        "charts.css",
        "tables.css",
        "profile.css",
        "graph.css",
        "compare.css",
        "print.css",
    ),
    entry="static/comparison/page.js",
)


def draw_comparison(comparison: Comparison, profiles: Sequence[Sequence[Profile]], path: Path) -> Path:
    """Write the page of a comparison atomically and return its path.

    `profiles[i][j]` is the profile that `comparison.profiles[i]` has at position j of its subjects. Raises a
    `ValueError` if their numbers differ, and an `OutputsError` if the page cannot be written.
    """
    with paused_garbage_collection():
        text = render(COMPARISON_PAGE, collect_comparison(comparison, profiles))
    return write_page(path, text, "ndld-flow compare")
