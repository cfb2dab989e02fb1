"""Convert the rows of a diff to columns with a shared table of texts."""

from __future__ import annotations

from operator import attrgetter

from ndld_flow.report.diff.collect_diff import DiffLine, DiffView
from ndld_flow.report.page_data import DiffPayload
from ndld_flow.report.texts import Texts


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
