"""Three questions that people have, answered in Chromium without scrolling and with at most two clicks: which layer is
slowest, why B is slower than A, and when it became slower.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Locator, Page, expect

from ndld_flow import api
from ndld_flow.report.comparison.page import draw_comparison
from ndld_flow.report.run_page import draw_profile
from tests.support import comparison_fixtures as comparisons
from tests.support.metric_runs import changed, courses, write_runs
from tests.support.report_browser import Watch
from tests.support.run_fixtures import profile
from tests.support.simulated_series import simulate

pytestmark = pytest.mark.browser


class Task:
    """A page in a window of a laptop, whose user clicks at most twice and does not scroll."""

    def __init__(self, browser: Browser) -> None:
        self._browser, self._watch = browser, Watch()
        self._clicks = 0

    def open(self, path: Path) -> Page:
        self._page = self._watch.open(self._browser, path, viewport={"width": 1400, "height": 900})
        return self._page

    def click(self, place: Locator) -> None:
        """Click what is in sight; the page may scroll to what was asked for."""
        expect(place).to_be_in_viewport(ratio=1)
        self._clicks += 1
        place.click()

    def finish(self) -> None:
        assert self._clicks <= 2
        self._page.context.close()
        self._watch.check()


@pytest.fixture
def task(browser: Browser) -> Iterator[Task]:
    opened = Task(browser)
    yield opened
    opened.finish()


def test_find_the_slowest_layer(task: Task, tmp_path: Path) -> None:
    measured = profile("half", 10, 1, 72)
    slowest = measured.layers[max(range(len(measured.layers)), key=measured.layer_times.ms.__getitem__)]
    page = task.open(draw_profile(measured, "half", tmp_path / "report.html"))
    row = page.locator(".slowest tbody tr").first
    expect(row).to_contain_text(slowest.name)
    task.click(row.get_by_role("button"))
    expect(page.locator("#layers .detail")).to_contain_text(slowest.name)
    expect(page.locator('#layers [role="row"][aria-selected="true"]')).to_be_in_viewport(ratio=0.9)


def test_find_why_b_is_slower_than_a(task: Task, tmp_path: Path) -> None:
    pair = comparisons.pair()
    page = task.open(draw_comparison(pair.comparison, pair.profiles, tmp_path / "report.html"))
    task.click(page.locator(".bar").get_by_role("radiogroup", name="Base").get_by_role("radio", name="B"))
    expect(page.locator(".headline")).to_contain_text("Shown against B half")
    largest = page.locator("#where [data-live=largest]")
    expect(largest).to_be_in_viewport()
    expect(largest.locator("tbody tr").first).to_be_in_viewport(ratio=0.9)
    row = largest.locator("tbody tr").first
    name = (row.get_by_role("button").text_content() or "").strip()
    task.click(row.get_by_role("button"))
    expect(page.locator("#layers .detail")).to_contain_text(name)


def test_find_when_it_became_slower(task: Task, tmp_path: Path) -> None:
    noise = simulate("normal 1 %", 60, 3)
    runs = courses([value * (1.1 if index >= 48 else 1.0) for index, value in enumerate(noise)])
    write_runs(tmp_path / "outputs", changed(runs, 48, libraries={"onnxruntime": "onnxruntime 1.32.0"}))
    api.history("nightly", outputs=tmp_path / "outputs", page=tmp_path / "report.html")
    page = task.open(tmp_path / "report.html")
    headline = page.locator(".headline")
    expect(headline).to_be_in_viewport(ratio=1)
    expect(headline).to_contain_text("Regressed")
    expect(headline).to_contain_text("Jan 2026")
    expect(page.locator(".history-why")).to_contain_text("onnxruntime 1.31.0 → 1.32.0")
    expect(page.locator(".history-why")).to_be_in_viewport(ratio=1)
