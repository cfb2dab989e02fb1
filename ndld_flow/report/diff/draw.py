"""Write the page of a diff between two models."""

from __future__ import annotations

from dataclasses import dataclass
from operator import attrgetter
from pathlib import Path

from ndld_flow.base.text import short_name
from ndld_flow.records.model_diff import ModelDiff
from ndld_flow.report.diff.collect_diff import DiffLine, DiffView, collect_diff
from ndld_flow.report.encoding import Texts, packed
from ndld_flow.report.page_data import DiffPagePayload, DiffPayload
from ndld_flow.report.render import PageParts, render, write_page


def diff_payload(view: DiffView, texts: Texts) -> DiffPayload:
    """Return the rows of a diff as columns of positions in `texts`."""

    def column(name: str) -> list[int]:
        return texts.places(map(attrgetter(name), view.rows))

    return {
        "part": column("part"),
        "sign": column("sign"),
        "name": column("name"),
        "was": column("was"),
        "kind": column("kind"),
        "scope": column("scope"),
        "said": column("said"),
        "lines": [[_line(line, texts) for line in row.lines] for row in view.rows],
        "aside": [int(row.is_aside) for row in view.rows],
    }


def _line(line: DiffLine, texts: Texts) -> tuple[int, int, int, int]:
    """Return label, before, after and whether it is a consequence; -1 for a value that is absent."""
    (label,) = texts.places([line.label])
    before, after = (-1 if text is None else texts.places([text])[0] for text in (line.before, line.after))
    return label, before, after, int(line.is_consequence)


@dataclass(frozen=True)
class DiffPage:
    """The page of one diff."""

    before: str
    after: str
    view: DiffView
    payload: str

    @property
    def sections(self) -> tuple[tuple[str, str], ...]:
        """(anchor, title) of sections; a page with one table has none."""
        return ()


def collect_page(diff: ModelDiff, names: tuple[str, str]) -> DiffPage:
    """Convert a record to page data."""
    view, texts = collect_diff(diff), Texts()
    data: DiffPagePayload = {"diffs": [diff_payload(view, texts)], "texts": texts.as_list()}
    before, after = map(short_name, names)
    return DiffPage(before, after, view, packed(data))


DIFF_PAGE = PageParts(
    template="diff.html.j2",
    styles=("tokens.css", "page.css", "charts.css", "tables.css", "diff.css", "print.css"),
    entry="static/diff/page.js",
)


def draw_diff(diff: ModelDiff, names: tuple[str, str], path: Path) -> Path:
    """Write the page of a diff atomically and return its path.

    `names` are those of the models before and after. Raises an `OutputsError` when it cannot be written.
    """
    return write_page(path, render(DIFF_PAGE, collect_page(diff, names)), "ndld-flow diff")
