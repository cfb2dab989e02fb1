"""The conclusion of `optimize` in a real Chromium."""

from __future__ import annotations

from pathlib import Path

import pytest
from playwright.sync_api import Browser, expect

from ndld_flow.report.run_page import draw_report
from tests.support.optimization_samples import RACE, optimization, variant, write_optimized
from tests.support.report_browser import Watch
from tests.support.run_fixtures import HOSTILE_NAMES, TAG_BREAKER

pytestmark = pytest.mark.browser


@pytest.mark.parametrize("width", [1280, pytest.param(380, marks=pytest.mark.thorough)])
def test_the_page_opens_with_the_conclusion_and_fits_the_window(width: int, browser: Browser, tmp_path: Path) -> None:
    watch = Watch()
    page = watch.open(browser, draw_report(write_optimized(tmp_path)), viewport={"width": width, "height": 900})
    lead = page.locator("#optimization > h2")
    expect(lead).to_have_text(RACE.conclude()[1])
    expect(lead).to_be_in_viewport()
    expect(page.locator("#optimization tbody tr").first).to_contain_text("delivered")
    delivered, slower = (page.locator("#optimization .interval").nth(value) for value in (0, 3))
    ends = [bar.evaluate("plot => [...plot.children].map((part) => part.getBoundingClientRect().left)")
            for bar in (delivered, slower)]  # fmt: skip
    assert ends[0][3] > ends[0][1], "the mark of what is faster is right of the source's line"
    assert ends[1][3] < ends[1][1]
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    page.context.close()
    watch.check()


def test_hostile_names_do_nothing(browser: Browser, tmp_path: Path) -> None:
    rows = (variant(name, "failed", 0.5, 0.4, 0.6, runtime=name, why=name) for name in HOSTILE_NAMES)
    found = optimization(*rows, exported=(TAG_BREAKER,), command=TAG_BREAKER, not_tried=HOSTILE_NAMES)
    watch = Watch()
    page = watch.open(browser, draw_report(write_optimized(tmp_path, found)))
    expect(page.locator("#optimization tbody tr")).to_have_count(len(HOSTILE_NAMES))
    assert page.locator("#optimization img, #optimization svg").count() == 0
    page.context.close()
    watch.check()
