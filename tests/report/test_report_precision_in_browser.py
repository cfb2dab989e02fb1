"""Searches and layers of a report in a real Chromium: read, zoomed and chosen by mouse and by keyboard."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Locator, Page, expect

from ndld_flow.base.quantities import MINUS
from ndld_flow.report.run_page import draw_report
from tests.support.precision_samples import (
    RECIPE,
    deep_accuracy,
    failed_search,
    hostile_accuracy,
    hostile_search,
    search_documents,
    search_steps,
)
from tests.support.report_browser import Watch, rows_of
from tests.support.run_fixtures import run_record, write_run

pytestmark = pytest.mark.browser


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    documents = search_documents(failed_search()) | {"agree/accuracy.json": deep_accuracy()}
    run = run_record(search_steps(passed=False), recipe=RECIPE)
    return draw_report(write_run(tmp_path_factory.mktemp("precision"), run, documents))


@pytest.fixture(scope="module")
def opened(browser: Browser, report: Path) -> Iterator[Page]:
    """One page for all tests; at the end, nothing may have been asked for and nothing complained about."""
    watch = Watch()
    page = watch.open(browser, report)
    yield page
    page.context.close()
    watch.check()


@pytest.fixture
def page(opened: Page) -> Page:
    """The page with the whole depth in sight, and nothing pointed at."""
    chart(opened).scroll_into_view_if_needed()
    chart(opened).focus()
    opened.keyboard.press("Escape")
    opened.mouse.move(2, 2)
    return opened


def chart(page: Page) -> Locator:
    return page.locator("#precision .depth svg")


def tooltip(page: Page) -> Locator:
    return page.locator(".tooltip")


def across(page: Page, fraction: float) -> tuple[float, float]:
    """A point of the chart, within its axes."""
    chart(page).scroll_into_view_if_needed()
    box = chart(page).bounding_box()
    assert box is not None
    return box["x"] + 74 + fraction * (box["width"] - 88), box["y"] + 120


def test_the_layer_under_the_pointer_is_read(page: Page) -> None:
    page.mouse.move(*across(page, 100.5 / 320))
    expect(tooltip(page)).to_contain_text("#100 Conv p2o.Conv.100")
    expect(tooltip(page)).to_contain_text("all in fp16: 900 NaN or infinite")
    expect(tooltip(page)).to_contain_text("kept at higher precision")
    page.mouse.move(*across(page, 40.5 / 320))
    expect(tooltip(page)).to_contain_text("19.0 % beyond fp16's largest")
    expect(tooltip(page)).to_contain_text("divergence starts here")


def test_arrows_begin_where_divergence_starts_and_zoom_keeps_the_focus(page: Page) -> None:
    page.keyboard.press("ArrowRight")
    expect(tooltip(page)).to_contain_text("#40 BatchNormalization")
    page.keyboard.press("ArrowRight")
    expect(tooltip(page)).to_contain_text("#41 ")
    page.keyboard.press("+")
    expect(page.locator("#precision .depth-tools output")).to_have_text(re.compile(r"layers \d+ to \d+"))
    page.keyboard.press("End")
    expect(tooltip(page)).to_be_visible()
    page.keyboard.press("Escape")
    expect(page.locator("#precision .depth-tools output")).to_have_text("")


@pytest.mark.thorough
def test_a_drag_shows_a_part_of_the_depth(page: Page) -> None:
    page.mouse.move(*across(page, 30.5 / 320))
    page.mouse.down()
    page.mouse.move(*across(page, 60.5 / 320), steps=3)
    expect(page.locator("#precision .depth-tools output")).to_have_text("31 layers")
    page.mouse.up()
    expect(page.locator("#precision .depth-tools output")).to_have_text("layers 30 to 60")
    page.get_by_role("button", name="Whole depth").first.click()
    expect(page.locator("#precision .depth-tools output")).to_have_text("")


def test_errors_are_shown_as_a_person_chooses(page: Page) -> None:
    part = page.locator("#precision")
    part.get_by_role("button", name="SNR").click()
    expect(chart(page)).to_contain_text("60 dB")
    page.mouse.move(*across(page, 10.5 / 320))
    expect(tooltip(page)).to_contain_text(re.compile(r"all in fp16: \d\d\.\d dB"))
    part.get_by_role("button", name=f"1 {MINUS} cosine").click()
    expect(chart(page)).to_contain_text(f"1 {MINUS} cosine")
    part.get_by_role("button", name="relative error").click()


def test_values_that_are_no_numbers_lie_above_all_numbers(page: Page) -> None:
    crosses = page.locator("#precision .broken path")
    assert crosses.count() == 1
    drawn = crosses.get_attribute("d")
    assert drawn is not None
    assert drawn.count("M") == 255
    line = page.locator("#precision .depth-curve .drift").first.get_attribute("d")
    assert line is not None
    highest = min(float(y) for y in re.findall(r"[ML][\d.]+ ([\d.]+)", line))
    assert highest > max(float(y) for y in re.findall(r"M[\d.]+ ([\d.]+)", drawn))


def test_a_click_finds_the_layer_in_the_table_and_its_file_holds_all(page: Page) -> None:
    page.mouse.click(*across(page, 40.5 / 320))
    table = page.locator('#precision [role="grid"][aria-label="layers by divergence"]')
    chosen = table.locator('[aria-selected="true"]')
    expect(chosen).to_contain_text("ion.40")
    expect(chosen).to_contain_text("starts here, kept")
    expect(page.locator("#precision .depth-marked")).to_have_attribute("d", re.compile("^M"))
    table.focus()
    page.keyboard.press("Escape")
    tools = page.locator("#precision .depth-table .tools")
    with page.expect_download() as waiting:
        tools.get_by_role("button", name=re.compile("^CSV")).click()
    rows = rows_of(Path(waiting.value.path()).read_bytes())
    assert len(rows) == 321
    assert rows[51][rows[0].index("all in fp16 relative_error")] == "not finite"


def test_a_kept_node_leads_to_the_chart_and_to_its_layer(page: Page) -> None:
    row = page.locator("table.kept tbody tr").nth(2)
    row.get_by_role("button", name="p2o.BatchNormalization.80").click()
    grid = page.locator('#precision [role="grid"][aria-label="layers by divergence"]')
    expect(grid.locator('[aria-selected="true"]')).to_contain_text("ion.80")
    row.get_by_role("button", name="layer, graph").click()
    layers = page.locator('[role="grid"][aria-label="layers"]:visible')
    expect(layers.locator('[aria-selected="true"]')).to_contain_text("BatchNormalization.80")


def test_trials_are_read_and_chosen_in_their_plot(page: Page) -> None:
    plot = page.locator(".trials svg")
    plot.scroll_into_view_if_needed()
    plot.focus()
    page.keyboard.press("ArrowRight")
    expect(tooltip(page)).to_contain_text("trial 1, whole: failed")
    expect(tooltip(page)).to_contain_text("cosine 0.7712")
    page.keyboard.press("ArrowRight")
    page.keyboard.press("Enter")
    trials = page.locator(".trials-room")
    expect(trials.locator('[aria-selected="true"]')).to_contain_text("with 9 suspects")
    expect(trials.locator(".detail")).to_contain_text("40 to 48")


def test_a_comparison_has_a_chart_of_its_own(page: Page) -> None:
    own = page.locator("#accuracy .depth svg")
    own.scroll_into_view_if_needed()
    expect(own).to_contain_text("starts here: BatchNormalization p2o.BatchNormalization.200")
    expect(own).to_contain_text("bound: cosine 0.999")
    expect(page.locator("#accuracy tr.worst")).to_contain_text("receipt-3.png")


@pytest.mark.thorough
def test_without_scripts_and_on_paper_the_tables_say_it(browser: Browser, report: Path) -> None:
    watch = Watch()
    plain = watch.open(browser, report, java_script_enabled=False)
    expect(plain.locator("#precision .static").first).to_contain_text("900 NaN or infinite")
    expect(plain.locator("#precision .static").nth(1)).to_contain_text("with 9 suspects")
    expect(plain.locator("#precision .story")).to_contain_text("13 nodes stay in fp32")
    plain.context.close()
    paper = watch.open(browser, report)
    paper.emulate_media(media="print")
    paper.evaluate("dispatchEvent(new Event('beforeprint'))")
    expect(paper.locator("#precision .static").first).to_be_visible()
    expect(paper.locator("#precision .depth svg path.kept-mark")).to_be_visible()
    expect(paper.locator("#precision .grid-box:visible")).to_have_count(0)
    paper.context.close()
    watch.check()


@pytest.mark.parametrize("scheme", ["light", pytest.param("dark", marks=pytest.mark.thorough)])
def test_a_narrow_page_does_not_scroll_sideways(browser: Browser, report: Path, scheme: str) -> None:
    watch = Watch()
    page = watch.open(browser, report, viewport={"width": 400, "height": 800}, color_scheme=scheme)
    chart(page).scroll_into_view_if_needed()
    expect(chart(page)).to_be_visible()
    assert page.evaluate("document.documentElement.scrollWidth") <= 400
    page.context.close()
    watch.check()


def test_hostile_names_do_nothing(browser: Browser, tmp_path: Path) -> None:
    documents = search_documents(hostile_search()) | {"agree/accuracy.json": hostile_accuracy()}
    folder = write_run(tmp_path / "run", run_record(search_steps(), recipe=RECIPE), documents)
    watch = Watch()
    page = watch.open(browser, draw_report(folder))
    chart(page).scroll_into_view_if_needed()
    page.mouse.move(*across(page, 0.02))
    expect(tooltip(page)).to_contain_text("</script><img src=x onerror=alert(1)>")
    page.mouse.click(*across(page, 0.02))
    assert page.locator("img").count() == 0
    page.context.close()
    watch.check()
