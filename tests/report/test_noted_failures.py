"""Sections, pictures and tables that fail leave notes in the page of a run, a comparison or a sweep."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from ndld_flow.records.accuracy import noise_of
from ndld_flow.report import panel
from ndld_flow.report.encoding import rounded
from ndld_flow.report.exports import pictures, spreadsheets
from ndld_flow.report.exports.spreadsheets import write_sweep_exports
from ndld_flow.report.noted_failures import ReportWarning, page_with_notes
from ndld_flow.report.run_page import draw_report
from ndld_flow.report.sweep.page import draw_sweep
from ndld_flow.runner.run_folder import write_comparison
from tests.support import comparison_fixtures, sweep_samples
from tests.support.run_fixtures import write_quickstart


def fail(*_: object, **__: object) -> Any:
    raise ZeroDivisionError("division by zero")


def test_an_interrupt_that_compiled_code_turned_into_an_error_is_no_bug() -> None:
    def draw() -> str:
        try:
            raise KeyboardInterrupt
        except KeyboardInterrupt as interrupt:
            raise SystemError("returned a result with an exception set") from interrupt

    with pytest.raises(KeyboardInterrupt):
        page_with_notes("the picture", draw)


def title_in(page: Path, name: str) -> bool:
    return f'id="{name}"' in page.read_text("utf-8")


@pytest.mark.parametrize("part", ["collect", "data"])
def test_a_section_that_fails_is_a_note(part: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_quickstart(tmp_path)
    panels = panel.find_panels()
    latency = panels["latency"]
    broken = replace(latency, collect=fail) if part == "collect" else replace(latency, data=fail)
    changed = {**panels, "latency": broken}
    monkeypatch.setattr(panel, "find_panels", lambda: changed)
    with pytest.warns(ReportWarning):
        page = draw_report(tmp_path)
    text = page.read_text("utf-8")
    assert "ZeroDivisionError" in text
    assert title_in(page, "accuracy")
    assert not title_in(page, "latency")


def test_a_section_whose_template_fails_is_a_note(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_quickstart(tmp_path)
    template_of = panel._template_of
    monkeypatch.setattr(
        panel, "_template_of", lambda name: "panels/latency.html.j2" if name == "accuracy" else template_of(name)
    )
    with pytest.warns(ReportWarning):
        page = draw_report(tmp_path)
    assert title_in(page, "latency")
    assert not title_in(page, "accuracy")


def test_a_page_that_fails_as_a_whole_is_a_note(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_quickstart(tmp_path)
    monkeypatch.setattr("ndld_flow.report.run_page.collect_summary", fail)
    with pytest.warns(ReportWarning):
        page = draw_report(tmp_path)
    assert "ZeroDivisionError" in page.read_text("utf-8")


def test_a_disk_that_is_full_is_no_note(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_quickstart(tmp_path)

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("ndld_flow.report.run_page.collect_summary", full)
    with pytest.raises(OSError, match="No space"):
        draw_report(tmp_path)


@pytest.mark.parametrize(
    ("module", "function", "file"),
    [(pictures, "comparison_picture", "comparison.png"), (spreadsheets, "comparison_csv", "layers.csv")],
    ids=["picture", "table"],
)
def test_a_file_of_a_comparison_that_fails_is_a_note(
    module: ModuleType, function: str, file: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pair = comparison_fixtures.pair()
    monkeypatch.setattr(module, function, fail)
    with pytest.warns(ReportWarning):
        write_comparison(pair.comparison, pair.profiles, tmp_path)
    assert not (tmp_path / file).exists()
    assert file in (tmp_path / "comparison.html").read_text("utf-8")
    assert (tmp_path / "comparison.md").is_file()


def test_a_picture_of_a_sweep_that_fails_is_a_note(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pictures, "sweep_picture", fail)
    record = sweep_samples.builds()
    with pytest.warns(ReportWarning):
        notes = write_sweep_exports(record, tmp_path)
    assert "sweep.png" in draw_sweep(record, tmp_path, notes=notes).read_text("utf-8")
    assert {path.name for path in tmp_path.iterdir()} == {"points.csv", "summary.md", "report.html"}


@pytest.mark.parametrize("value", [sys.float_info.max, -sys.float_info.max, 1e-320])
def test_the_largest_number_does_not_round_to_infinity(value: float) -> None:
    assert json.dumps(rounded(value, 3), allow_nan=False)


def test_noise_beyond_all_numbers_is_finite() -> None:
    assert noise_of(-1e6) == 1e300
    assert noise_of(40) == pytest.approx(0.01)
