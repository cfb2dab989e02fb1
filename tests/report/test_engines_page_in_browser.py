"""The page of two engines without times, in Chromium: the first screen, the table of layers, a phone, no script."""

from __future__ import annotations

from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect

from ndld_flow import api
from tests.support.a100_exports import a100_exports
from tests.support.report_browser import Watch

pytestmark = [pytest.mark.browser, pytest.mark.thorough]

GRAPH = "resnet.onnx.engine.graph.json"


@pytest.fixture(scope="module")
def page_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    page = tmp_path_factory.mktemp("engines") / "report.html"
    api.diff_engines(a100_exports() / "fp32" / GRAPH, a100_exports() / "fp16" / GRAPH, page=page)
    return page


def rows(page: Page) -> list[str]:
    texts: list[str] = page.locator(".grid-row").all_inner_texts()
    return [text.replace("\n", " | ") for text in texts]


def test_the_page_answers_and_its_table_has_every_layer(browser: Browser, page_file: Path) -> None:
    watch = Watch()
    page = watch.open(browser, page_file, viewport={"width": 1400, "height": 900})
    for text in ("Different", "26 of 26 matched layers differ", "6 layers only in A", "build_options.Precision"):
        expect(page.get_by_text(text).first).to_be_in_viewport()
    assert len(rows(page)) >= 10
    page.get_by_role("checkbox", name="only the 42 that differ").uncheck()
    field = page.get_by_placeholder("Filter layers")
    field.fill('name="conv_3 + relu_4"')
    expect(page.locator(".grid-row")).to_have_count(1)
    assert "changed" in rows(page)[0]
    page.locator(".grid-row").click()
    details = page.locator(".detail")
    expect(details).to_contain_text("float32")
    expect(details).to_contain_text("names")
    field.fill("change:type match:structure")
    expect(page.locator(".grid-row")).to_have_count(1)
    watch.check()


def test_a_phone_and_a_reader_without_a_script_see_it(browser: Browser, page_file: Path) -> None:
    watch = Watch()
    phone = watch.open(browser, page_file, viewport={"width": 390, "height": 844})
    assert phone.evaluate("document.documentElement.scrollWidth") == 390
    expect(phone.get_by_text("26 of 26 matched layers differ")).to_be_in_viewport()
    plain = watch.open(browser, page_file, java_script_enabled=False)
    expect(plain.locator(".diff-rows > li")).to_have_count(42)
    expect(plain.locator(".diff-rows")).to_contain_text("TiledPooling")
    watch.check()
