"""The page of a history: its first screen, its data, and what mouse and keyboard do in Chromium."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect

from ndld_flow import api
from ndld_flow.report.history_page import collect_history, draw_history
from tests.support.metric_runs import Course, changed, courses, write_runs
from tests.support.report_browser import SharedPages
from tests.support.simulated_series import simulate

LATENCY = "speed.latency.median"


def write(root: Path) -> None:
    noise = simulate("normal 1 %", 60, 3)
    runs = courses([value * (1.1 if index >= 48 else 1.0) for index, value in enumerate(noise)])
    runs = changed(runs, 48, libraries={"onnxruntime": "onnxruntime 1.32.0"}, nodes=118)
    write_runs(root, [*runs[:20], Course(14.0, concurrent=("<b>other</b>",)), *runs[20:]])


@pytest.fixture(scope="module")
def page_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("history")
    write(root / "outputs")
    return draw_history(api.history(every=True, outputs=root / "outputs"), root / "report.html")


def test_the_first_screen_has_what_changed_when_by_how_much_and_why(tmp_path: Path) -> None:
    write(tmp_path)
    page = collect_history(api.history(every=True, outputs=tmp_path))
    assert (page.tone, page.word) == ("failed", "Regressed")
    assert re.match(r"speed\.latency\.median \+\d+(\.\d)? % \(\d.* → .*\) on \d+ Jan 2026", page.sentence)
    assert "library onnxruntime 1.31.0 → 1.32.0" in page.why
    assert page.meta.endswith("3 metrics")
    assert "1 of 3 metrics" in collect_history(api.history(outputs=tmp_path)).meta
    assert page.series[0].record.metric == LATENCY
    api.accept("nightly", LATENCY, "larger input", outputs=tmp_path)
    api.accept("nightly", "speed.throughput.median", "larger input", outputs=tmp_path)
    accepted = collect_history(api.history(every=True, outputs=tmp_path))
    assert (accepted.tone, accepted.word) == ("passed", "Accepted")
    assert "larger input" in {
        change.step.accepted.note for group in accepted.changes for change in group if change.step.accepted
    }


@pytest.mark.parametrize(("count", "word"), [(5, "Undecided"), (40, "No change")])
def test_a_page_without_changes_has_the_reason(tmp_path: Path, count: int, word: str) -> None:
    write_runs(tmp_path, courses(simulate("normal 1 %", count, 5)))
    assert collect_history(api.history(every=True, outputs=tmp_path)).word == word


@pytest.fixture(scope="module")
def pages(browser: Browser) -> Iterator[SharedPages]:
    shared = SharedPages(browser)
    yield shared
    shared.close_others()
    shared.watch.check()


def chart(page: Page) -> str:
    return page.locator("#chart svg").get_attribute("aria-label") or ""


@pytest.mark.browser
def test_tables_and_the_selector_choose_the_series(pages: SharedPages, page_file: Path) -> None:
    page = pages.show(page_file)
    assert chart(page).startswith(f"{LATENCY}: 61 measurements")
    expect(page.locator("#chart .history-step.regressed")).to_have_count(1)
    expect(page.locator("#chart .history-doubt")).to_have_count(1)
    page.get_by_label("Metric", exact=True).select_option("half.nodes")
    assert chart(page).startswith("half.nodes: 2 measurements")
    page.locator("#changes").get_by_role("button", name=LATENCY).click()
    assert chart(page).startswith(LATENCY)
    expect(page.locator("#chart .history-step.is-chosen")).to_have_count(1)


@pytest.mark.browser
def test_the_keyboard_reads_the_points(pages: SharedPages, page_file: Path) -> None:
    page = pages.show(page_file)
    page.locator("#chart svg").focus()
    page.keyboard.press("ArrowRight")
    expect(page.locator(".tooltip")).to_contain_text(" ms")
    for _ in range(40):
        page.keyboard.press("ArrowLeft")
    expect(page.locator(".tooltip")).to_contain_text("no baseline: measured beside <b>other</b>")


@pytest.mark.browser
def test_without_scripts_the_tables_remain(pages: SharedPages, page_file: Path) -> None:
    page = pages.show(page_file, java_script_enabled=False)
    expect(page.locator(".no-script")).to_be_visible()
    expect(page.locator("#changes tbody").first).to_contain_text("regressed")
    expect(page.locator("#metrics tbody tr").first).to_contain_text(LATENCY)


@pytest.mark.browser
@pytest.mark.parametrize("width", [390, 1400])
def test_the_answer_is_on_the_first_screen(pages: SharedPages, page_file: Path, width: int) -> None:
    page = pages.show(page_file, viewport={"width": width, "height": 844})
    for part in (".headline", ".history-why", "#chart .history-level"):
        box = page.locator(part).bounding_box()
        assert box is not None
        assert box["y"] < 800, part
    assert not page.evaluate("document.documentElement.scrollWidth > innerWidth")
