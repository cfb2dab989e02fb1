"""A table is declared once; its columns format its values."""

from __future__ import annotations

import pytest

from ndld_flow.base.quantities import milliseconds
from ndld_flow.report.render import environment
from ndld_flow.report.tables import Column, Table
from tests.support.run_fixtures import HOSTILE_NAMES

COLUMNS = (Column("Name", "name"), Column("Note"), Column("Time", "number", milliseconds), Column("Outcome", "outcome"))
TABLE = Table(COLUMNS, (("conv", "slow", 1.5, "failed"), ("add", "", None, "")), bad=frozenset({(0, 2)}))


def html_of(table: Table) -> str:
    macros = environment().get_template("macros.html.j2").module
    return str(macros.data_table(table))  # type: ignore[attr-defined]


def test_numbers_have_units() -> None:
    assert '<td class="n bad">1.50 ms</td>' in html_of(TABLE)
    assert [[cell.text for cell in row] for row in TABLE.cells()] == [
        ["conv", "slow", "1.50 ms", "failed"],
        ["add", "", "\N{EN DASH}", ""],
    ]


@pytest.mark.parametrize("name", HOSTILE_NAMES)
def test_names_are_text(name: str) -> None:
    table = Table((Column(name, "label"), Column("Name", "name")), ((name, name),))
    assert "<img" not in html_of(table) and "<script" not in html_of(table)


def test_a_row_has_a_value_for_each_column() -> None:
    with pytest.raises(ValueError, match="shorter"):
        list(Table(COLUMNS, (("conv",),)).cells())
