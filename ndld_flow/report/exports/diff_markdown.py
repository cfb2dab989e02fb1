"""Write the differences between two models for a pull request: the summary first, with parts folded."""

from __future__ import annotations

from ndld_flow.records.model_diff import ModelDiff
from ndld_flow.report.diff_rows import DiffLine, DiffPart, DiffRow, collect_diff
from ndld_flow.report.exports.github_markdown import code, details, prose, table

_ROWS = 60
_ASIDE = 10
"""Maximum rows if few are relevant; further renames are only counted."""
_SHORT = 6
"""Maximum number of rows of a part that is not folded."""
_LONGEST = 60_000
"""Maximum number of characters: GitHub rejects comments of more than 65,536."""


def diff_markdown(diff: ModelDiff, before: str, after: str) -> str:
    """Return Markdown for a pull request's comment or a job's summary."""
    view = collect_diff(diff)
    head = f"### {prose(view.one_line)}\n\n{code(before, 100)} → {code(after, 100)}\n"
    if not view.values_compared and view.parts:
        head += "\nThe values of weights were not compared.\n"
    left = _LONGEST - len(head)
    parts = [head]
    for part in view.parts:
        text = _part(part)
        if len(text) + 1 > left:
            parts.append("The page of `ndld-flow diff --html` has more: the maximum length of a comment is reached.\n")
            break
        left -= len(text) + 1
        parts.append(text)
    return "\n".join(parts)


def _part(part: DiffPart) -> str:
    # Renames come last, and a few of them are enough.
    matters = [row for row in part.rows if not row.is_aside]
    rows = [*matters[:_ROWS], *(row for row in part.rows if row.is_aside)][: max(_ASIDE, min(len(matters), _ROWS))]
    body = table(["", part.title.capitalize(), "", "What"], [_cells(row) for row in rows])
    more = len(part.rows) + part.left_out - len(rows)
    if more:
        body += f"\n… {more:,} more\n"
    summary = f"{part.title}: {prose(part.words)}"
    return f"**{summary}**\n\n{body}" if len(part.rows) <= _SHORT else details(summary, body)


def _cells(row: DiffRow) -> list[str]:
    name = f"{code(row.was)} → {code(row.name)}" if row.was else code(row.name)
    scope = f" in {code(row.scope)}" if row.scope else ""
    descriptions = [*([prose(row.detail)] if row.detail else []), *map(_line, row.lines)]
    return [f"`{row.sign}`", name + scope, code(row.kind), "<br>".join(descriptions)]


def _line(line: DiffLine) -> str:
    before, after = ("none" if text is None else code(text, 100) or "empty" for text in (line.before, line.after))
    label = f"{prose(line.label)}: " if line.label else ""
    return f"{label}{before} → {after}{' (as a consequence)' if line.is_consequence else ''}"
