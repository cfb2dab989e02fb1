"""Tables of reports on a terminal, and the consoles that print them."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import rich.table
from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderResult
from rich.text import Text

from ndld_flow.cli.guarded_output import ReaderGoneError
from ndld_flow.cli.terminal import width_of
from ndld_flow.report.tables import Cell, Column, Table

SIGNS = {
    "improved": ("✓", "green"),
    "regressed": ("✗", "red"),
    "unchanged": ("=", "default"),
    "inconclusive": ("?", "yellow"),
    "incomparable": ("≠", "magenta"),
    "passed": ("✓", "green"),
    "failed": ("✗", "red"),
}
"""Sign and colour of each verdict or outcome, which are printed with its word."""
_NARROWEST = 6
_LEAST = 20
"""Columns to which texts and names may be narrowed before columns are left out; in the end, `_NARROWEST`."""
_GAPS = (2, 1)


def wide_console() -> Console:
    """Return a console for standard output: COLUMNS wide, else as the terminal, or 120 columns in a pipe or a log."""
    console = _Console(highlight=False)
    return console if console.is_terminal else _Console(highlight=False, width=width_of(console.file))


class _Console(Console):
    """A console that raises ReaderGoneError if the reader goes away (`| head`); rich would exit with code 1."""

    def on_broken_pipe(self) -> None:
        raise ReaderGoneError


class TerminalTable:
    """A table as rich prints it: texts and names are wrapped, and numbers and verdicts are never cut.

    Where even that is too wide, the columns of `optional` are left out, the first one first.
    """

    def __init__(self, table: Table, optional: Sequence[str] = (), bold_rows: Collection[int] = ()) -> None:
        self._table, self._optional, self._bold = table, optional, frozenset(bold_rows)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        rows = list(self._table.cells())
        widths, gap = self._fitting(rows, options.max_width)
        drawn = rich.table.Table(box=None, pad_edge=False, padding=(0, gap, 0, 0), header_style="dim")
        for index, width in widths.items():
            column = self._table.columns[index]
            drawn.add_column(
                Text(column.title),
                justify="right" if column.kind == "number" else "left",
                no_wrap=_is_fixed(column),
                overflow="fold",
                min_width=width,
            )
        drawn.show_header = any(self._table.columns[index].title for index in widths)
        for number, row in enumerate(rows):
            drawn.add_row(*(_cell(row[index]) for index in widths), style="bold" if number in self._bold else None)
        yield drawn

    def _fitting(self, rows: Sequence[Sequence[Cell]], width: int) -> tuple[dict[int, int], int]:
        """Return the least widths of the columns to print, by position, and the gap between columns."""
        columns = self._table.columns
        widths = {}
        for index, column in enumerate(columns):
            full = max((cell_len(column.title), *(_cell(row[index]).cell_len for row in rows)))
            widths[index] = full if _is_fixed(column) else min(_LEAST, full)
        for title in (None, *self._optional):
            widths = {index: taken for index, taken in widths.items() if title is None or columns[index].title != title}
            for gap in _GAPS:
                if sum(widths.values()) + gap * (len(widths) - 1) <= width:
                    return widths, gap
        return {
            index: taken if _is_fixed(columns[index]) else min(taken, _NARROWEST) for index, taken in widths.items()
        }, 1


def _is_fixed(column: Column) -> bool:
    return column.kind in ("number", "outcome", "label")


def _cell(cell: Cell) -> Text:
    if cell.column.kind != "outcome":
        return Text(cell.text, style="red" if cell.is_bad else "")
    sign, colour = SIGNS.get(cell.text, ("", "default"))
    return Text(f"{sign} {cell.text}".strip(), style=colour)
