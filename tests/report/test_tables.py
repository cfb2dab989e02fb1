"""A table is declared once, and has the same columns and texts in HTML and Markdown."""

from __future__ import annotations

import pytest

from ndld_flow.base.quantities import milliseconds
from ndld_flow.report.exports.github_markdown import table_markdown
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
    assert table_markdown(TABLE).splitlines() == [
        "| Name | Note | Time | Outcome |",
        "| :-- | :-- | --: | :-- |",
        "| <code>conv</code> | slow | 1.50 ms | \N{CROSS MARK} failed |",
        "| <code>add</code> |  | \N{EN DASH} |  |",
    ]


@pytest.mark.parametrize("name", HOSTILE_NAMES)
def test_names_are_text_in_every_form(name: str) -> None:
    table = Table((Column(name, "label"), Column("Name", "name")), ((name, name),))
    assert "<img" not in html_of(table) and "<script" not in html_of(table)
    assert "<img" not in table_markdown(table) and len(table_markdown(table).splitlines()) == 3


def test_a_row_has_a_value_for_each_column() -> None:
    with pytest.raises(ValueError, match="shorter"):
        list(Table(COLUMNS, (("conv",),)).cells())
