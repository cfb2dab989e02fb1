"""The report in Chromium: every interactive part, by mouse and by keyboard, without network requests."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Locator, Page, expect

from ndld_flow.base.quantities import TIMES
from ndld_flow.base.text import visible_name
from ndld_flow.records.profile import ProfileRun
from ndld_flow.report.run_page import draw_report
from tests.support.report_browser import SharedPages, click_rows, rows_of
from tests.support.run_fixtures import (
    HOSTILE_NAMES,
    StepSketch,
    profile,
    run_record,
    write_big,
    write_failed,
    write_hostile,
    write_quickstart,
    write_run,
)

pytestmark = pytest.mark.browser

Open = Callable[..., Page]


@pytest.fixture(scope="session")
def reports(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """One report of each kind, drawn once."""
    folder = tmp_path_factory.mktemp("reports")
    return {
        "quickstart": draw_report(write_quickstart(folder / "quickstart")),
        "failed": draw_report(write_failed(folder / "failed")),
        "hostile": draw_report(write_hostile(folder / "hostile")),
    }


@pytest.fixture(scope="module")
def shared(browser: Browser) -> SharedPages:
    return SharedPages(browser)


@pytest.fixture
def open_report(shared: SharedPages) -> Iterator[Open]:
    """Open a report; at the end, nothing may have been asked for and nothing complained about."""
    yield shared.show
    shared.close_others()


def table(page: Page, label: str = "layers") -> Locator:
    return page.locator(f'[role="grid"][aria-label="{label}"]:visible')


def cells(page: Page, column: int, label: str = "layers") -> list[str]:
    return table(page, label).locator(f".grid-row > :nth-child({column})").all_inner_texts()


def download(page: Page, label: str = "layers") -> bytes:
    tools = page.locator(".tools:visible").filter(has=page.get_by_label(f"Filter {label}"))
    with page.expect_download() as waiting:
        tools.get_by_role("button", name=re.compile("^CSV")).click()
    return Path(waiting.value.path()).read_bytes()


def told(page: Page) -> Locator:
    """How many rows the table says it shows."""
    return page.locator('[data-live="layers"]:visible .tools output')


def theme(page: Page) -> str:
    color = page.evaluate("getComputedStyle(document.body).backgroundColor")
    return "light" if color == "rgb(255, 255, 255)" else "dark"


# --- tables ---


def test_a_click_on_a_column_sorts_and_another_reverses(open_report: Open, reports: dict[str, Path]) -> None:
    page = open_report(reports["quickstart"])
    head = table(page).get_by_role("columnheader", name="Median")
    expect(head).to_have_attribute("aria-sort", "descending")
    titles, *slowest = rows_of(download(page))
    median = titles.index("median ms")
    times = [float(row[median]) for row in slowest]
    assert times == sorted(times, reverse=True)
    assert cells(page, 2)[0] == slowest[0][1]
    head.get_by_role("button").click()
    expect(head).to_have_attribute("aria-sort", "ascending")
    assert [float(row[median]) for row in rows_of(download(page))[1:]] == times[::-1]


@pytest.mark.thorough
def test_names_sort_in_natural_order(open_report: Open, reports: dict[str, Path]) -> None:
    page = open_report(reports["quickstart"])
    table(page).get_by_role("columnheader", name="Name").get_by_role("button").click()
    adds = [row[1] for row in rows_of(download(page))[1:4]]
    assert adds == ["p2o.Add.4", "p2o.Add.14", "p2o.Add.24"]


@pytest.mark.thorough
def test_a_filter_ignores_case_and_supports_several_words_and_columns(
    open_report: Open, reports: dict[str, Path]
) -> None:
    page = open_report(reports["quickstart"])
    field = page.get_by_label("Filter layers").locator("visible=true")
    field.fill("CONV.1")
    assert set(cells(page, 3)) == {"Conv"}
    field.fill(f"conv 20{TIMES}20")
    assert {text.rsplit(TIMES, 2)[1] for text in cells(page, 4)} == {"20"}
    field.fill("type:clip")
    assert set(cells(page, 3)) == {"Clip"}
    # A fused batch norm is in the ONNX nodes of every third layer, and in no layer's type.
    field.fill("batchnormalization")
    expect(told(page)).to_have_text("113 of 337 rows")
    field.fill("type:batchnormalization")
    expect(table(page)).to_contain_text("No row matches.")
    field.press("Escape")
    expect(told(page)).to_have_text("337 rows")


@pytest.mark.thorough
def test_a_selection_is_added_up(open_report: Open, reports: dict[str, Path]) -> None:
    page = open_report(reports["quickstart"])
    table(page).get_by_role("columnheader", name="#").get_by_role("button").click()
    lines = table(page).locator(".grid-row")
    lines.nth(2).click()
    detail = page.locator("#layers-0 .detail")
    expect(detail).to_contain_text("p2o.Conv.2")
    expect(detail).to_contain_text("of the layer sum")
    lines.nth(4).click(modifiers=["Shift"])
    lines.nth(7).click(modifiers=["ControlOrMeta"])
    expect(detail).to_contain_text("4 of 337 rows")
    titles, *chosen = rows_of(download(page))
    assert [row[0] for row in chosen] == ["2", "3", "4", "7"]
    times = [float(row[titles.index("median ms")]) * 1000 for row in chosen]
    shown = detail.get_by_role("row", name="Median time").locator("td").all_inner_texts()
    expected = (min(times), max(times), sum(times), sum(times) / 4)
    assert [float(text.removesuffix(" µs")) for text in shown] == pytest.approx(expected, rel=0.01)
    expect(detail).to_contain_text("TypeConv\u00a0(1), Mul\u00a0(1), Add\u00a0(1), Relu\u00a0(1)")


def test_the_table_works_by_keyboard_alone(open_report: Open, reports: dict[str, Path]) -> None:
    page = open_report(reports["quickstart"])
    page.locator("#layers").scroll_into_view_if_needed()
    page.locator("#layers-0 .grid-box").scroll_into_view_if_needed()
    page.keyboard.press("/")
    expect(page.get_by_label("Filter layers").locator("visible=true")).to_be_focused()
    page.keyboard.type("mul")
    page.keyboard.press("Enter")
    expect(table(page)).to_be_focused()
    page.keyboard.press("7")  # sorts by the seventh column, the median: it was sorted so, now it is turned round
    page.keyboard.press("ArrowDown")
    page.keyboard.press("Shift+ArrowDown")
    page.keyboard.press("Shift+ArrowDown")
    titles, *chosen = rows_of(download(page))
    assert [row[2] for row in chosen] == ["Mul"] * 3
    times = [float(row[titles.index("median ms")]) for row in chosen]
    assert times == sorted(times)
    table(page).focus()
    page.keyboard.press("End")
    active = table(page).get_attribute("aria-activedescendant")
    expect(page.locator(f"#{active}")).to_be_in_viewport()
    page.keyboard.press("Home")
    page.keyboard.press("Control+a")
    expect(page.locator("#layers-0 .detail")).to_contain_text("33 of 337 rows")
    page.keyboard.press("Escape")
    expect(page.locator("#layers-0 .detail")).to_contain_text("Select layers")


def test_tabs_change_the_profile_by_click_and_arrow(open_report: Open, reports: dict[str, Path]) -> None:
    page = open_report(reports["quickstart"])
    expect(page.locator("#layers-1")).to_be_hidden()
    page.get_by_role("tab", name="source").click()
    expect(page.locator("#layers-1")).to_be_visible()
    assert set(cells(page, 5)) == {"float32"}
    page.keyboard.press("ArrowLeft")
    expect(page.get_by_role("tab", name="half")).to_be_focused()
    assert set(cells(page, 5)) == {"float16"}


@pytest.mark.thorough
def test_a_bar_filters_by_its_type(open_report: Open, reports: dict[str, Path]) -> None:
    page = open_report(reports["quickstart"])
    bar = page.locator("#layers-0").get_by_role("button", name="Resize", exact=True)
    bar.click()
    assert set(cells(page, 3)) == {"Resize"}
    bar.click()
    expect(told(page)).to_have_text("337 rows")


@pytest.mark.thorough
def test_findings_sort_and_filter(open_report: Open, reports: dict[str, Path]) -> None:
    page = open_report(reports["quickstart"])
    page.get_by_label("Filter findings").fill("warning unused")
    assert cells(page, 2, "findings") == ["unused_node", "onnxruntime"]
    table(page, "findings").get_by_role("columnheader", name="Check").get_by_role("button").click()
    assert cells(page, 2, "findings") == ["onnxruntime", "unused_node"]
    table(page, "findings").locator(".grid-row").first.click()
    expect(page.locator("#findings .detail")).to_contain_text("batch_norm_3.w_1")
    assert rows_of(download(page, "findings"))[0][0] == "Severity"


def test_csv_is_rfc_4180_and_no_spreadsheet_runs_it(open_report: Open, reports: dict[str, Path]) -> None:
    page = open_report(reports["hostile"])
    table(page).get_by_role("columnheader", name="#").get_by_role("button").click()
    data = download(page)
    assert data.endswith(b"\r\n")
    assert b"\n" not in data.replace(b"\r\n", b"")
    rows = rows_of(data)
    assert rows[0][:3] == ["#", "Name", "Type"]
    assert len(rows) == 1 + len(HOSTILE_NAMES)
    for row, name in zip(rows[1:], HOSTILE_NAMES, strict=True):
        guarded = f"'{name}" if name[:1] in ("=", "+", "-", "@") and name else visible_name(name)
        assert row[1] == guarded
    assert b'"comma, quote "" and' in data


# --- pictures ---


@pytest.mark.thorough
def test_pointing_at_a_pass_names_it(open_report: Open, reports: dict[str, Path]) -> None:
    page = open_report(reports["quickstart"])
    ring = page.locator('[data-live="passes"] .series-0 .ring[cx]').first
    ring.scroll_into_view_if_needed()
    ring.hover(force=True)
    tip = page.locator(".tooltip")
    expect(tip).to_contain_text("half, run")
    expect(tip).to_contain_text("the median pass")
    page.mouse.move(5, 5)
    expect(tip).to_be_hidden()


@pytest.mark.thorough
def test_passes_are_stepped_through_by_keyboard(open_report: Open, reports: dict[str, Path]) -> None:
    page = open_report(reports["quickstart"])
    page.locator('[data-live="passes"] svg').focus()
    tip = page.locator(".tooltip")
    page.keyboard.press("ArrowRight")
    expect(tip).to_contain_text("the median pass")
    first = tip.inner_text()
    page.keyboard.press("ArrowRight")
    expect(tip).not_to_have_text(first)
    page.keyboard.press("ArrowDown")
    expect(tip).to_contain_text("source, run")


@pytest.mark.thorough
def test_a_series_can_be_hidden(open_report: Open, reports: dict[str, Path]) -> None:
    page = open_report(reports["quickstart"])
    plot = page.locator('[data-live="passes"]')
    expect(plot.locator(".dots")).to_have_count(2)
    plot.get_by_role("button", name="half").click()
    expect(plot.locator(".dots")).to_have_count(1)
    expect(plot.get_by_role("button", name="half")).to_have_attribute("aria-pressed", "false")


@pytest.mark.thorough
def test_every_pass_is_drawn_once(open_report: Open, reports: dict[str, Path]) -> None:
    page = open_report(reports["quickstart"])
    page.wait_for_selector('[data-live="passes"] .dots', state="attached")  # drawn after the page is ready
    drawn = page.eval_on_selector_all(
        '[data-live="passes"] :is(.dots, .outliers, .beyond)',
        "paths => paths.map(path => path.getAttribute('d').split('M').length - 1).reduce((a, b) => a + b)",
    )
    assert drawn == 800


@pytest.mark.thorough
def test_densities_share_one_scale(open_report: Open, tmp_path: Path) -> None:
    """As many passes cover as much of the picture, be they close together or, with an outlier, far apart."""
    narrow, wide = (
        profile(label, 10, 1, 0).model_copy(update={"runs": (ProfileRun(latency_ms=tuple(samples)),)})
        for label, samples in (
            ("half", [10 + 0.02 * (pass_ % 11) for pass_ in range(400)]),
            ("source", [*(12 + 0.3 * (pass_ % 11) for pass_ in range(199)), 400.0]),
        )
    )
    steps = [StepSketch(name, "profile", "profile") for name in ("speed", "base")]
    run = write_run(tmp_path, run_record(steps), {"speed/profile.json": narrow, "base/profile.json": wide})
    page = open_report(draw_report(run))
    areas, heights = zip(
        *map(area_and_height, page.eval_on_selector_all(AREAS, "all => all.map(one => one.getAttribute('d'))")),
        strict=True,
    )
    assert areas[0] == pytest.approx(areas[1], rel=0.03)
    assert heights[0] > 5 * heights[1]


AREAS = '[data-live="distribution"] path.area'


def area_and_height(path: str) -> tuple[float, float]:
    """Of a polygon that an SVG path draws."""
    points = [tuple(map(float, point.split())) for point in re.findall(r"[\d.]+ [\d.]+", path)]
    pairs = zip(points, [*points[1:], points[0]], strict=True)
    heights = [y for _, y in points]
    return abs(sum(x0 * y1 - x1 * y0 for (x0, y0), (x1, y1) in pairs)) / 2, max(heights) - min(heights)


def test_the_spread_shows_the_number_of_passes_below(open_report: Open, reports: dict[str, Path]) -> None:
    page = open_report(reports["quickstart"])
    picture = page.locator('[data-live="distribution"] svg')
    picture.scroll_into_view_if_needed()
    box = picture.bounding_box()
    assert box is not None
    page.mouse.move(box["x"] + box["width"] - 3, box["y"] + 40)
    expect(page.locator(".tooltip")).to_contain_text("half: 98.5 % of passes")


# --- the page ---


@pytest.mark.thorough
def test_the_theme_follows_the_system_until_it_is_chosen(open_report: Open, reports: dict[str, Path]) -> None:
    page = open_report(reports["quickstart"], color_scheme="dark")
    assert theme(page) == "dark"
    page.locator("#theme").click()
    assert theme(page) == "light"
    page.reload()
    page.wait_for_selector("html[data-ready]", state="attached")
    assert theme(page) == "light"
    page.emulate_media(media="print")
    assert theme(page) == "light"


@pytest.mark.thorough
def test_a_step_opens_by_key_and_by_link(open_report: Open, reports: dict[str, Path]) -> None:
    page = open_report(reports["quickstart"])
    sanitize = page.locator("#step-2 > details")
    sanitize.locator("> summary").focus()
    page.keyboard.press("Enter")
    expect(sanitize).to_have_attribute("open", "")
    expect(sanitize.get_by_text("Nodes by type")).to_be_visible()
    page.evaluate("location.hash = 'step-3'")
    expect(page.locator("#step-3 > details")).to_have_attribute("open", "")


def test_without_scripts_verdict_steps_and_slowest_layers_are_shown(
    open_report: Open, reports: dict[str, Path]
) -> None:
    page = open_report(reports["failed"], java_script_enabled=False)
    expect(page.locator(".head")).to_contain_text("agree: cosine 0.0312 is below 0.999")
    expect(page.locator("#gates")).to_contain_text("0.0312")
    expect(page.locator("#accuracy")).to_contain_text("cosine 0.0312 is below 0.999")
    expect(page.locator("#findings .static")).to_be_visible()
    page.locator("#step-3 summary").first.click()
    expect(page.locator("#step-3")).to_contain_text("3 BatchNormalization nodes stay in fp32")
    layers = open_report(reports["quickstart"], java_script_enabled=False)
    expect(layers.locator("#layers-0 .static .scroll tbody tr")).to_have_count(20)
    expect(layers.locator("#layers-1")).to_be_visible()


@pytest.mark.thorough
def test_print_shows_sections_that_are_folded_on_screen(open_report: Open, reports: dict[str, Path]) -> None:
    page = open_report(reports["quickstart"])
    page.evaluate("dispatchEvent(new Event('beforeprint'))")
    page.emulate_media(media="print")
    expect(page.locator("#layers-1 > .static .scroll")).to_be_visible()
    expect(page.get_by_text("blocked: p2o.BatchNormalization.0")).to_be_visible()
    expect(page.get_by_label("Filter layers").first).to_be_hidden()
    page.evaluate("dispatchEvent(new Event('afterprint'))")
    assert page.locator("details[open]").count() == 0


@pytest.mark.parametrize(
    "kind",
    [
        "quickstart",
        pytest.param("failed", marks=pytest.mark.thorough),
        pytest.param("hostile", marks=pytest.mark.thorough),
    ],
)
def test_a_phone_does_not_scroll_sideways(open_report: Open, reports: dict[str, Path], kind: str) -> None:
    page = open_report(reports[kind], viewport={"width": 360, "height": 740})
    page.evaluate("document.querySelectorAll('details').forEach(one => one.open = true)")
    assert page.evaluate("document.documentElement.scrollWidth") == 360


@pytest.mark.parametrize("kind", ["quickstart", "failed"])
def test_the_layout_does_not_shift_after_painting(open_report: Open, reports: dict[str, Path], kind: str) -> None:
    page = open_report(reports[kind], viewport={"width": 1280, "height": 900})
    moved = page.evaluate(
        """() => new Promise(done => {
            let sum = 0;
            new PerformanceObserver(list => {
                for (const entry of list.getEntries()) sum += entry.value;
            }).observe({type: "layout-shift", buffered: true});
            setTimeout(() => done(sum), 300);
        })"""
    )
    assert moved < 0.01


def test_hostile_names_stay_text_in_every_section(open_report: Open, reports: dict[str, Path]) -> None:
    page = open_report(reports["hostile"])
    page.evaluate("document.querySelectorAll('details').forEach(one => one.open = true)")
    for tab in page.get_by_role("tab").all()[::-1]:
        tab.click()
    click_rows(page, "layers")
    table(page).locator(".grid-row").last.click()
    page.keyboard.press("Control+a")
    bars = page.locator("#layers-0 tr.pick")
    for index in range(bars.count()):
        bars.nth(index).dispatch_event("click")
        bars.nth(index).dispatch_event("click")
    click_rows(page, "findings")
    assert page.locator("img, iframe, object, embed").count() == 0
    assert page.evaluate("document.scripts.length") == 3
    expect(page.locator("#layers-0 .detail, #layers-1 .detail").first).to_be_visible()


@pytest.mark.slow
def test_fifty_thousand_layers_are_responsive(
    open_report: Open, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    report = draw_report(write_big(tmp_path, layer_count=5000, profiles=10))
    assert report.stat().st_size < 3_000_000
    page = open_report(report)
    ready = page.evaluate("document.documentElement.dataset.ready")
    record_property("ready_ms", ready)
    print(f"{report.stat().st_size / 1e6:.2f} MB, ready after {ready} ms")
    page.get_by_role("tab", name="speed9").click()
    assert table(page).get_attribute("aria-rowcount") == "5001"
    assert table(page).locator(".grid-row").count() < 60
    table(page).get_by_role("columnheader", name="Dims").get_by_role("button").click()
    table(page).focus()
    page.keyboard.press("End")
    assert table(page).locator(".grid-row").count() < 60
    lowest = table(page).locator(".grid-row.active")
    expect(lowest).to_be_in_viewport()
    assert lowest.get_attribute("aria-rowindex") == "5001"
