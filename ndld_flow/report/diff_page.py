"""The page of the differences between two models."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from ndld_flow.base.text import short_name
from ndld_flow.drawing.draw import compose
from ndld_flow.drawing.graph import DrawnGraph, Look
from ndld_flow.drawing.picture import Colours, svg_text
from ndld_flow.records.model_diff import GraphChange
from ndld_flow.report.diff_rows import ChangeView, DiffRow, collect_change
from ndld_flow.report.render import PageParts, render, write_page

DIFF_PAGE = PageParts("diff", "charts tables diff")


@dataclass(frozen=True)
class DiffPage:
    """The page of one diff."""

    before: str
    after: str
    where: str
    """The run of both, or the paths of two files; empty if the names of both have it."""
    change: ChangeView
    region: str
    """A drawing of the nodes that changed and their neighbours, as SVG; empty if no node changed."""
    region_words: str
    data: list[tuple[DiffRow, ...]]

    @property
    def sections(self) -> tuple[tuple[str, str], ...]:
        """(anchor, title) of sections; a page with one table has none."""
        return ()


def draw_diff(change: GraphChange, names: tuple[str, str], path: Path, region: DrawnGraph | None = None) -> Path:
    """Write the page of a change, which has a diff, atomically and return its path.

    `names` are those of the models before and after, `region` the nodes that changed and their neighbours. Raises an
    `OutputsError` if it cannot be written.
    """
    view = collect_change(change)
    assert view.diff is not None
    (run, before), (of_run, after) = (_step_of_run(name) for name in names)
    where = f"run {run}"
    if run != of_run or not run:
        before, after = (Path(name).name for name in names)
        where = " → ".join(names)
        if before == after or names == (before, after):
            where, before, after = "", *names
    page = DiffPage(
        short_name(before),
        short_name(after),
        short_name(where),
        view,
        svg_text(compose(replace(region, subtitle=""), Look(legend=False), _COLOURS, aspect=2.4)) if region else "",
        region.subtitle if region else "",
        [view.diff.rows],
    )
    return write_page(path, render(DIFF_PAGE, page), "ndld-flow diff")


def _step_of_run(name: str) -> tuple[str, str]:
    """Return the run and the step of `RUN:STEP`; the run is empty for a path."""
    run, _, step = name.rpartition(":")
    return ("", name) if "/" in name or "\\" in name else (run, step)


class _ChangeColours(Colours):
    def family(self, name: str) -> str:
        """Return the fill of a kind of change, which takes the place of an operator's family."""
        return f"var(--node-{name})"


_COLOURS = _ChangeColours(
    background=None,
    ink="var(--ink)",
    quiet="var(--quiet)",
    edge="var(--quiet)",
    grid="",
    border="var(--strong-line)",
    paper="var(--paper)",
    families=(),
    on_family="var(--ink)",
)
"""Colours of the page, so that the drawing follows its theme."""
