"""Tables of a report: columns and rows, declared once and drawn as HTML or terminal text.

`data_table` in `macros.html.j2` and `TerminalTable` draw them. Rows hold values; their columns format them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

from ndld_flow.base.quantities import ABSENT

Value: TypeAlias = str | int | float | None


@dataclass(frozen=True)
class Column:
    """One column."""

    title: str
    kind: Literal["text", "label", "name", "number", "outcome"] = "text"
    """`label`: a text of one line. `name`: a name in a model or a file. `number`: right-aligned. `outcome`: a word with
    a sign and a colour.
    """
    text: Callable[[float], str] | None = None
    """Text of a number, with its unit; without it, a number is displayed as it is."""


@dataclass(frozen=True)
class Cell:
    """A displayed value."""

    column: Column
    value: Value
    is_bad: bool = False
    """True for a value outside its bound."""

    @property
    def text(self) -> str:
        """Displayed text."""
        if self.value is None or self.value == "":
            return ABSENT if self.column.kind == "number" else ""
        if isinstance(self.value, str) or self.column.text is None:
            return str(self.value)
        return self.column.text(self.value)


@dataclass(frozen=True)
class Table:
    """Columns, and rows with one value for each."""

    columns: tuple[Column, ...]
    rows: tuple[tuple[Value, ...], ...]
    bad: frozenset[tuple[int, int]] = frozenset()
    """(row, column) of the values outside their bounds."""

    def cells(self) -> Iterator[tuple[Cell, ...]]:
        """Yield the rows as cells. Raises a `ValueError` for a row whose length is not that of the columns."""
        for number, row in enumerate(self.rows):
            yield tuple(
                Cell(column, value, (number, index) in self.bad)
                for index, (column, value) in enumerate(zip(self.columns, row, strict=True))
            )


def without_empty_columns(columns: Sequence[Column], rows: Sequence[tuple[Value, ...]]) -> Table:
    """Return a table without the columns in which all values are unknown."""
    kept = [index for index in range(len(columns)) if any(row[index] not in (None, "") for row in rows)]
    return Table(tuple(columns[place] for place in kept), tuple(tuple(row[place] for place in kept) for row in rows))
