"""The rows of a diff as columns, each text once."""

from __future__ import annotations

from operator import attrgetter

from ndld_flow.report.diff.collect_diff import DiffLine, DiffView
from ndld_flow.report.json_values import Json
from ndld_flow.report.texts import Texts

_COLUMNS = ("part", "sign", "name", "was", "kind", "scope", "said")


def diff_payload(view: DiffView, texts: Texts) -> dict[str, Json]:
    """Columns of positions in `texts`; what changed as [label, before, after, in consequence?], -1 for what is not."""
    columns: dict[str, Json] = {name: texts.places(map(attrgetter(name), view.rows)) for name in _COLUMNS}
    lines: list[Json] = [[_line(line, texts) for line in row.lines] for row in view.rows]
    return columns | {"lines": lines, "aside": [int(row.is_aside) for row in view.rows]}


def _line(line: DiffLine, texts: Texts) -> list[Json]:
    (label,) = texts.places([line.label])
    before, after = (-1 if text is None else texts.places([text])[0] for text in (line.before, line.after))
    return [label, before, after, int(line.is_consequence)]
