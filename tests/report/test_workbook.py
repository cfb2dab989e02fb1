"""Workbooks for Excel: every text is a string, whatever it begins with, and every number a number."""

from __future__ import annotations

import io
import re
import zipfile
from pathlib import Path
from xml.etree import ElementTree

import pytest

from ndld_flow import api
from ndld_flow.records.profile import Layer
from ndld_flow.report.exports.spreadsheets import LAYER_COLUMNS, comparison_workbook, layers_workbook, workbook
from tests.support.a100_exports import a100_exports
from tests.support.compare_samples import profile_of
from tests.support.comparison_fixtures import three
from tests.support.message_files import CheckMessage

MAIN = "{http://schemas.openxmlformats.org/spreadsheetml/2006/main}"
FORMULAS = ("=1+1", "+1", "-1", "@SUM(A1)", "\t=1", '=HYPERLINK("http://x")', "{=1}", "http://x", "mailto:a@b", "12")


def parts(data: bytes) -> dict[str, str]:
    """Return the files of a workbook."""
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        return {name: archive.read(name).decode() for name in archive.namelist() if name.endswith((".xml", ".rels"))}


def cells(data: bytes, sheet: int = 1) -> list[list[str]]:
    """Return the texts of a sheet's cells as a program reads them."""
    files = parts(data)
    shared = ["".join(text.itertext()) for text in ElementTree.fromstring(files["xl/sharedStrings.xml"])]  # noqa: S314
    rows = ElementTree.fromstring(files[f"xl/worksheets/sheet{sheet}.xml"]).iter(f"{MAIN}row")  # noqa: S314
    return [
        [
            shared[int(cell.findtext(f"{MAIN}v", ""))] if cell.get("t") == "s" else cell.findtext(f"{MAIN}v", "")
            for cell in row
        ]
        for row in rows
    ]


def test_text_that_looks_like_a_formula_is_a_string() -> None:
    layers = [
        Layer(index=index, name=name, type="=cmd|' /C calc'!A0", samples_ms=(1.0,))
        for index, name in enumerate(FORMULAS)
    ]
    data = layers_workbook([("=evil", profile_of([[1.0]], layers))])
    for name, text in parts(data).items():
        assert "<f>" not in text, name
        assert "<hyperlink" not in text, name
        assert 'Target="http' not in text, name
    names = [row[1] for row in cells(data, 2)[1:]]
    assert [name.replace("␉", "\t") for name in names] == list(FORMULAS)


def test_numbers_are_numbers_and_what_is_not_finite_is_empty() -> None:
    data = workbook(
        [("a", ("one", "two", "three", "four"), [[1.5, float("nan"), None, float("inf")], [10**17, "x", 0, ""]])]
    )
    assert cells(data) == [["one", "two", "three", "four"], ["1.5"], ["1E+17", "x", "0"]]


def test_sheets_have_allowed_and_distinct_names() -> None:
    labels = ["a/b:[c]?", "History", "x" * 40, "x" * 41, "'quoted'", "", "A-B--C--"]
    data = workbook([(label, ("one",), []) for label in labels])
    names = re.findall(r'<sheet name="([^"]*)"', parts(data)["xl/workbook.xml"])
    assert len({name.lower() for name in names}) == len(labels)
    assert all(0 < len(name) <= 31 and not set(name) & set("[]:*?/\\") for name in names)
    assert "history" not in {name.lower() for name in names}, "Excel reserves it"


def test_an_import_is_written_as_a_workbook_and_as_csv(tmp_path: Path) -> None:
    written = api.report(str(a100_exports() / "fp16"), to=tmp_path / "fp16.xlsx")
    table = cells(written.read_bytes(), 2)
    assert tuple(table[0]) == LAYER_COLUMNS
    assert [row[1] for row in table[1:3]] == [
        "Reformatting CopyNode for Input Tensor 0 to Conv_0 + Relu_1",
        "Conv_0 + Relu_1",
    ]
    assert (
        api.report(str(a100_exports() / "fp16"), to=tmp_path / "fp16.csv")
        .read_text("utf-8")
        .startswith("profile,index,")
    )


def test_a_comparison_has_a_workbook() -> None:
    compared = three()
    table = cells(comparison_workbook(compared.comparison, compared.profiles))
    assert table[0][:3] == ["profile", "base", "candidate"]
    assert len(table) > 10


def test_without_the_library_the_extra_is_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, check_message: CheckMessage
) -> None:
    monkeypatch.setattr("ndld_flow.base.extras.find_spec", lambda _: None)
    with pytest.raises(api.BackendError) as caught:
        api.report(str(a100_exports() / "fp16"), to=tmp_path / "fp16.xlsx")
    check_message(caught.value)
