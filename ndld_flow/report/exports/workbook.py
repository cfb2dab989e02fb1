"""Write tables as an Excel workbook (.xlsx, ECMA-376), by XlsxWriter.

Names in models are untrusted, and a cell that begins with `=` is a formula in most programs. Every text is written as a
string cell, which no program evaluates, and is not turned into a number or a link either.
"""

from __future__ import annotations

import io
import math
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from ndld_flow.base.extras import require
from ndld_flow.base.text import visible_name
from ndld_flow.records.comparison import Comparison
from ndld_flow.records.profile import Profile
from ndld_flow.report.exports.csv_tables import COMPARISON_COLUMNS, LAYER_COLUMNS, comparison_rows, layer_rows
from ndld_flow.report.tables import Value

if TYPE_CHECKING:
    import xlsxwriter

_MOST_ROWS = 1_048_575
"""Rows of a sheet below its heading."""
_LONGEST_TEXT = 32_767
_LONGEST_NAME = 31
_NOT_IN_NAMES = re.compile(r"[\[\]:*?/\\]")
_WIDEST = 60
_SAFE = {
    "in_memory": True,
    "strings_to_formulas": False,
    "strings_to_urls": False,
    "strings_to_numbers": False,
    "nan_inf_to_errors": False,
}

Sheet = tuple[str, Sequence[str], Iterable[Sequence[Value]]]
"""Name, heading and rows."""


def layers_workbook(profiles: Sequence[tuple[str, Profile]]) -> bytes:
    """Return a workbook with a sheet of each labelled profile's layers, and one with their latencies.

    Raises BackendError if XlsxWriter is not installed.
    """
    sheets: list[Sheet] = [(label, LAYER_COLUMNS, layer_rows(profile)) for label, profile in profiles]
    return workbook([("profiles", _ABOUT, map(_about, profiles)), *sheets])


def comparison_workbook(comparison: Comparison, profiles: Sequence[Sequence[Profile]]) -> bytes:
    """Return a workbook with the rows of a comparison's layer tables. Raises as `layers_workbook` does."""
    return workbook([("comparison", COMPARISON_COLUMNS, comparison_rows(comparison, profiles))])


_ABOUT = ("profile", "backend", "device", "latency_median_ms", "latency_min_ms", "layers", "layers_sum_ms")


def _about(labelled: tuple[str, Profile]) -> list[Value]:
    label, profile = labelled
    latency = profile.latency if profile.latency_ms else None
    device = ", ".join(dict.fromkeys(profile.machine.gpus)) if profile.runtime.on_gpu else profile.machine.cpu
    return [
        label,
        profile.backend,
        device,
        latency.median_ms if latency is not None else None,
        latency.min_ms if latency is not None else None,
        len(profile.layers),
        profile.layers_sum_ms if profile.layers else None,
    ]


def workbook(sheets: Sequence[Sheet]) -> bytes:
    """Return a workbook with a fixed heading and filters in each sheet. Equal data give equal cells."""
    require("excel", "an Excel workbook")
    import xlsxwriter

    stream = io.BytesIO()
    names = _sheet_names([name for name, _, _ in sheets])
    with xlsxwriter.Workbook(stream, _SAFE) as book:
        bold = book.add_format({"bold": True})
        for name, (_, heading, rows) in zip(names, sheets, strict=True):
            sheet = book.add_worksheet(name)
            widths = [len(title) for title in heading]
            last = 0
            for index, title in enumerate(heading):
                sheet.write_string(0, index, title, bold)
            for number, row in zip(range(1, _MOST_ROWS + 1), rows, strict=False):
                last = number
                for index, cell in enumerate(row):
                    widths[index] = max(widths[index], _write_cell(sheet, number, index, cell))
            sheet.freeze_panes(1, 0)
            sheet.autofilter(0, 0, last, len(heading) - 1)
            for index, width in enumerate(widths):
                sheet.set_column(index, index, min(width, _WIDEST) + 2)
    return stream.getvalue()


def _write_cell(sheet: xlsxwriter.worksheet.Worksheet, row: int, column: int, cell: Value) -> int:
    """Write a value and return the width of its text; a number that is not finite, and none, leave the cell empty."""
    if isinstance(cell, str):
        shown = visible_name(cell)[:_LONGEST_TEXT]
        if shown:
            sheet.write_string(row, column, shown)
        return len(shown)
    if cell is None or not math.isfinite(cell):
        return 0
    sheet.write_number(row, column, cell)
    return len(f"{cell:g}")


def _sheet_names(wanted: Sequence[str]) -> Iterator[str]:
    """Yield names that are allowed, distinct regardless of case, and not reserved."""
    used = {"history", ""}  # Excel reserves one
    for name in wanted:
        plain = _NOT_IN_NAMES.sub("-", visible_name(name)).strip("' ")[:_LONGEST_NAME] or "sheet"
        number, unique = 1, plain
        while unique.lower() in used:
            number += 1
            unique = f"{plain[: _LONGEST_NAME - len(str(number)) - 1]} {number}"
        used.add(unique.lower())
        yield unique
