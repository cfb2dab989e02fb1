"""Sections of a page fold at their heading; a link, the address, a search of the page and paper open them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect

from ndld_flow.report.run_page import draw_report
from tests.support.report_browser import Watch
from tests.support.run_fixtures import write_quickstart

pytestmark = pytest.mark.browser


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return draw_report(write_quickstart(tmp_path_factory.mktemp("sections") / "quickstart"))


@pytest.fixture
def page(browser: Browser, report: Path) -> Iterator[Page]:
    watch = Watch()
    opened = watch.open(browser, report, viewport={"width": 1400, "height": 900})
    yield opened
    opened.context.close()
    watch.check()


def test_a_heading_folds_its_section(page: Page) -> None:
    heading = page.get_by_role("button", name="Steps", exact=False).first
    expect(page.locator("#steps-body")).to_be_visible()
    heading.click()
    expect(page.locator("#steps-body")).to_be_hidden()
    expect(heading).to_have_attribute("aria-expanded", "false")
    heading.press("Enter")
    expect(page.locator("#steps-body")).to_be_visible()


def test_what_few_readers_need_opens_by_the_contents_and_on_paper(page: Page) -> None:
    expect(page.locator("#repeat-body")).to_be_hidden()
    page.get_by_role("navigation").get_by_role("link", name="Repeat").click()
    expect(page.locator("#repeat-body")).to_be_visible()
    expect(page.locator("#files-body")).to_be_hidden()
    page.evaluate("dispatchEvent(new Event('beforeprint'))")
    expect(page.locator("#files-body")).to_be_visible()
    page.evaluate("dispatchEvent(new Event('afterprint'))")
    expect(page.locator("#files-body")).to_be_hidden()
    expect(page.locator("#repeat-body")).to_be_visible()


@pytest.mark.thorough
def test_an_address_opens_the_section_that_it_names(browser: Browser, report: Path) -> None:
    watch = Watch()
    page = browser.new_page()
    page.goto(report.as_uri() + "#recipe")
    page.wait_for_selector("html[data-ready]", state="attached")
    expect(page.locator("#recipe")).to_be_visible()
    page.close()
    watch.check()


@pytest.mark.thorough
def test_the_contents_are_a_rail_beside_the_page_and_mark_what_is_read(page: Page) -> None:
    rail = page.get_by_role("navigation").bounding_box()
    main = page.locator("main").bounding_box()
    assert rail is not None and main is not None
    assert rail["x"] + rail["width"] <= main["x"] + 28, "nothing of the page is below the rail"
    page.locator("#layers").evaluate("section => section.scrollIntoView()")
    expect(page.locator('nav [aria-current="location"]')).to_have_text("Layers")
    page.set_viewport_size({"width": 1000, "height": 900})
    narrow = page.get_by_role("navigation").bounding_box()
    assert narrow is not None and narrow["y"] < 48, "a narrow window has the contents in the bar"


def test_without_scripts_every_section_is_open(browser: Browser, report: Path) -> None:
    context = browser.new_context(java_script_enabled=False)
    page = context.new_page()
    page.goto(report.as_uri())
    expect(page.locator("#recipe")).to_be_visible()
    context.close()
