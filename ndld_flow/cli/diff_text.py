"""The differences between two models or engines on a terminal: the most important first, a one-line summary last."""

from __future__ import annotations

from collections.abc import Iterator

import click
from rich.text import Text

from ndld_flow.base.quantities import counted, size
from ndld_flow.base.text import short_name
from ndld_flow.cli.tables import wide_console
from ndld_flow.cli.terminal import hanging
from ndld_flow.records.engine_lock import EngineComparison, EngineVerdict
from ndld_flow.records.model_diff import ModelDiff
from ndld_flow.report.diff_rows import DiffLine, DiffPart, DiffRow, collect_diff

_MOST_ROWS = 40
_MOST_ASIDE = 5
"""Rows shown of nodes that were only renamed; their count is more important."""
_COLOURS = {"+": "green", "-": "red", "~": "yellow"}


def print_diff(diff: ModelDiff, before: str, after: str, show_all: bool) -> None:
    """Print the differences in the style of a unified diff."""
    console = wide_console()
    view = collect_diff(diff)
    if not diff.is_empty:
        console.print(Text(f"A  {short_name(before)}\nB  {short_name(after)}", style="dim"))
    for part in view.parts:
        console.print(Text(f"\n{part.title}: {part.words}", style="bold cyan"), soft_wrap=True)
        for line in _lines(part, show_all):
            console.print(line, soft_wrap=True)  # a line that is broken cannot be found by a search
    end = Text(f"{'' if diff.is_empty else chr(10)}{view.one_line}", style="bold")
    console.print(end, soft_wrap=True)
    if not view.values_compared and not diff.is_empty:
        console.print(Text("the values of weights were not compared", style="dim"))


def _lines(part: DiffPart, show_all: bool) -> Iterator[Text]:
    matters = [row for row in part.rows if not row.is_aside]
    aside = [row for row in part.rows if row.is_aside]
    most = (len(matters), len(aside)) if show_all else (_MOST_ROWS, _MOST_ASIDE)
    shown = [*matters[: most[0]], *aside[: most[1]]]
    for row in shown:
        yield from _row(row)
    more = len(part.rows) - len(shown)
    if more:
        yield Text(f"  … {more:,} more; --all shows them, --html lets you search them", style="dim")
    if part.left_out:
        yield Text(f"  … {part.left_out:,} more were counted but not recorded", style="dim")


def _row(row: DiffRow) -> Iterator[Text]:
    """Return one line if one property changed, else a heading and one line for each."""
    style = "dim" if row.is_aside else _COLOURS[row.sign]
    head = Text.assemble((f"{row.sign} ", _COLOURS[row.sign]))
    names = f"{row.was} -> {row.name}" if row.was else row.name
    words = (row.kind, names) if row.part == "nodes" else (names, row.kind)
    head.append(" ".join(word for word in words if word), style=style)
    if row.scope:
        head.append(f"  in {row.scope}", style="dim")
    if row.detail:
        head.append(f"  {row.detail}", style="dim" if row.sign != "~" else "")
    if len(row.lines) == 1:
        yield head.append("  ").append_text(_line(row.lines[0]))
        return
    yield head
    for line in row.lines:
        yield Text("      ").append_text(_line(line))


def _line(line: DiffLine) -> Text:
    """Format one change: `axis: 1 -> 0`."""
    text = Text(style="dim" if line.is_consequence else "")
    if line.label:
        text.append(f"{line.label}: ")
    text.append("none" if line.before is None else line.before, style="" if line.is_consequence else "red")
    text.append(" -> ")
    text.append("none" if line.after is None else line.after, style="" if line.is_consequence else "green")
    return text.append(" (as a consequence)") if line.is_consequence else text


_VERDICT_COLOURS: dict[EngineVerdict, str] = {
    "identical": "green",
    "equal": "green",
    "undecided": "yellow",
    "different": "red",
}


def print_engines(title: str, compared: EngineComparison, page: str = "") -> None:
    """Print the verdict on two engines with its differences and their causes, and where the page is."""
    verdict = click.style(compared.verdict, fg=_VERDICT_COLOURS[compared.verdict], bold=True)
    about = counted(compared.layer_count, "layer")
    if compared.after_bytes is not None:
        about += f", {size(compared.after_bytes)}"
    click.echo(f"{short_name(title, 200)}: {verdict}, {about}")
    for difference in compared.differences:
        click.echo(hanging("  ", difference))
    for cause in compared.causes:
        click.echo(hanging("  cause: ", cause))
    if page:
        click.echo(page)
