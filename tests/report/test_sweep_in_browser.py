"""The page of a sweep in Chromium: table, brushes, front and curves show the same points."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Locator, Page, expect

from ndld_flow.records.measurement import Metric
from ndld_flow.records.sweep import SweepObjective, SweepRecord
from ndld_flow.report.sweep.page import draw_sweep
from tests.support import sweep_samples as sweeps
from tests.support.report_browser import SharedPages, rows_of
from tests.support.run_fixtures import MIB

pytestmark = pytest.mark.browser

Open = Callable[..., Page]
KINDS: dict[str, Callable[[], SweepRecord]] = {
    "session": sweeps.session,
    "builds": sweeps.builds,
    "batches": sweeps.batches,
    "variants": sweeps.variants,
    "single": sweeps.single,
    "none": sweeps.none_tried,
    "failed": sweeps.failed_only,
    "look": sweeps.no_objective,
    "hostile": sweeps.hostile,
    "counted": lambda: bare(1.0, 1.0),
    "costly": lambda: bare(1.0, 2.0),
    "near": lambda: bare(12.9 * MIB, 12.94 * MIB, "bytes"),
    "large": lambda: sweeps.large(2000, 12),
}


def bare(first: float, last: float, unit: str = "") -> SweepRecord:
    """One metric over two axes of numbers, one of which is said to be logarithmic though its values are texts."""
    axes = (sweeps.axis("a.x", 1, 2, 3), sweeps.axis("a.y", 1, 2), sweeps.axis("a.z", "p", "q", log=True))
    goal = (SweepObjective(text="a.cost", direction="minimize", unit=unit),)

    def measure(values: sweeps.Values) -> sweeps.Measured:
        part = (int(str(values["a.x"])) - 1) / 2
        return sweeps.Measured({"a.cost": Metric(value=first + part * (last - first), unit=unit)})

    return sweeps.record(sweeps.Sketch("bare", axes, goal, sweeps.grid(*axes), measure, winners=0))


class Pages:
    """Pages that are drawn when they are first asked for, each opened once for all tests that do not change it."""

    def __init__(self, browser: Browser, folder: Path) -> None:
        self.shared = SharedPages(browser)
        self.folder = folder

    def draw(self, kind: str) -> Path:
        folder = self.folder / kind
        if not folder.exists():
            folder.mkdir()
            draw_sweep(KINDS[kind](), folder)
        return folder / "report.html"

    def show(self, kind: str, **options: Any) -> Page:
        """A page as it is when it was just opened."""
        return self.shared.show(self.draw(kind), **options)


@pytest.fixture(scope="module")
def pages(browser: Browser, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pages]:
    """At the end, nothing may have been asked for and nothing complained about."""
    held = Pages(browser, tmp_path_factory.mktemp("sweeps"))
    yield held
    held.shared.close_others()


def numbers(page: Page) -> list[str]:
    """The points on screen, from the top."""
    return page.locator("#points .grid-row > div:first-child").all_inner_texts()


def head(page: Page, name: str) -> Locator:
    exactly = re.compile(rf"^{re.escape(name)}( [↑↓])?$")
    return page.locator("#points").get_by_role("columnheader", name=exactly).get_by_role("button")


def axis(page: Page, name: str) -> Locator:
    page.locator("#parallel").scroll_into_view_if_needed()
    return page.get_by_role("slider", name=name, exact=True)


def rows(page: Page) -> Locator:
    return page.locator("#points .tools output")


# --- the table ---


def test_the_best_come_first_and_columns_sort(pages: Pages) -> None:
    page = pages.show("session")
    assert numbers(page)[:3] == ["21", "22", "17"]
    head(page, "latency.min first").click()
    assert numbers(page)[0] == "21"
    head(page, "latency.min first").click()
    slowest = max(
        (point for point in sweeps.session().points if point.rank), key=lambda point: point.objectives[0] or 0
    )
    assert numbers(page)[0] == str(slowest.number), "what is not known comes last, whichever way"
    assert page.locator("#points [aria-sort=descending]").inner_text() == "latency.min first"
    head(page, "Rank").click()
    page.locator("#points .grid-box").press("End")
    assert numbers(page)[-1] == "4"
    link = page.locator("#points .grid-row a").first
    expect(link).to_have_attribute("href", re.compile(r"^\./points/\d{4}/report\.html$"))


def test_rows_are_filtered_by_text_and_exported_as_csv(pages: Pages) -> None:
    page = pages.show("session")
    page.get_by_label("Filter points").fill("extended sequential")
    expect(rows(page)).to_have_text("4 of 24 rows")
    with page.expect_download() as waiting:
        page.locator("#points").get_by_role("button", name="CSV of 4 rows").click()
    table = rows_of(Path(waiting.value.path()).read_bytes())
    assert waiting.value.suggested_filename == "ppocr_det_session-points.csv"
    assert len(table) == 5
    assert {"speed.threads", "speed.latency.min ms", "speed.latency.min again ms", "speed.latency.p99 ms"} <= set(
        table[0]
    )


@pytest.mark.thorough
def test_a_metric_is_shown_when_it_is_chosen(pages: Pages) -> None:
    page = pages.show("session")
    assert head(page, "latency.p99 first").count() == 0
    page.locator("#points .chooser summary").click()
    page.locator("#points .chooser").get_by_label("speed.latency.p99").check()
    expect(head(page, "latency.p99 first")).to_be_visible()


def test_one_point_is_shown_in_full_and_two_give_the_command_to_compare_them(pages: Pages) -> None:
    page = pages.show("session")
    page.locator("#points .grid-row").nth(0).click(position={"x": 200, "y": 10})
    detail = page.locator("#points .detail")
    expect(detail).to_contain_text("Point 21 passed rank 1 of 23")
    expect(detail.locator("pre").first).to_contain_text("threads: 2")
    expect(detail).to_contain_text("point 1 did it")
    page.locator("#points .grid-row").nth(2).click(position={"x": 200, "y": 10}, modifiers=["Control"])
    expect(detail.locator("pre")).to_have_text(
        "ndld-flow compare 20261121T093000Z-5a1f3c#21 20261121T093000Z-5a1f3c#17"
    )
    expect(detail.get_by_role("row", name="speed.optimization")).to_contain_text("extended")
    page.locator("#points .grid-row").nth(3).click(position={"x": 200, "y": 10}, modifiers=["Shift"])
    expect(detail).to_contain_text("Compare point")


@pytest.mark.thorough
def test_the_table_works_by_keyboard_alone(pages: Pages) -> None:
    page = pages.show("session")
    page.locator("#points").scroll_into_view_if_needed()
    page.keyboard.press("/")
    expect(page.get_by_label("Filter points")).to_be_focused()
    page.keyboard.type("parallel")
    page.keyboard.press("Enter")
    page.keyboard.press("ArrowDown")
    page.keyboard.press("Shift+ArrowDown")
    expect(page.locator("#points .detail pre")).to_contain_text("ndld-flow compare")
    page.keyboard.press("Escape")
    expect(page.locator("#points .detail")).to_contain_text("Select a point")


# --- lines that are copied ---


@pytest.mark.thorough
def test_the_lines_of_the_best_are_copied(pages: Pages, browser: Browser) -> None:
    page = pages.show("session", permissions=["clipboard-read", "clipboard-write"])
    button = page.locator("[data-copy=best-lines]")
    button.click()
    expect(button).to_have_text("Copied")
    lines = page.evaluate("navigator.clipboard.readText()")
    assert (
        lines == "steps:\n  speed:\n    threads: 2\n    optimization: all\n    execution: sequential\n    arena: true"
    )
    page.locator("#winners summary").nth(1).click()
    page.locator("#winners [data-copy=winner-22]").click()
    assert "arena: false" in page.evaluate("navigator.clipboard.readText()")
    page.context.close()


# --- brushes ---


def test_a_brush_by_keyboard_filters_the_table(pages: Pages) -> None:
    page = pages.show("session")
    threads = axis(page, "speed.threads")
    threads.focus()
    expect(threads).to_have_attribute("aria-valuetext", "every value")
    for _ in range(10):
        threads.press("ArrowDown")
    expect(rows(page)).to_have_text("12 of 24 rows")
    assert numbers(page)[0] == "9"
    optimization = axis(page, "speed.optimization")
    optimization.press("Shift+ArrowUp")
    optimization.press("Shift+ArrowUp")
    expect(optimization).to_have_attribute("aria-valuetext", "all")
    expect(rows(page)).to_have_text("4 of 24 rows")
    expect(page.locator("#parallel output")).to_have_text("threads: 1 to 1.5; optimization: all")
    threads.press("Escape")
    expect(rows(page)).to_have_text("8 of 24 rows")
    page.get_by_role("button", name="Clear brushes").click()
    expect(rows(page)).to_have_text("24 rows")


@pytest.mark.thorough
def test_a_brush_is_dragged_along_an_axis(pages: Pages) -> None:
    page = pages.show("builds")
    hit = axis(page, "engine.optimization_level").locator(".brush-hit")
    box = hit.bounding_box()
    assert box
    x = box["x"] + box["width"] / 2
    page.mouse.move(x, box["y"] + 2)
    page.mouse.down()
    page.mouse.move(x, box["y"] + box["height"] * 0.3, steps=4)
    page.mouse.up()
    expect(rows(page)).to_have_text("24 of 72 rows")
    with page.expect_download() as waiting:
        page.locator("#points").get_by_role("button", name="CSV of 24 rows").click()
    table = rows_of(Path(waiting.value.path()).read_bytes())
    levels = {row[table[0].index("engine.optimization_level")] for row in table[1:]}
    assert levels == {"4", "5"}
    # Points that failed have no latency: a brush on it leaves them out.
    axis(page, "engine.optimization_level").press("Escape")
    latency = axis(page, "speed.latency.median")
    for _ in range(2):
        latency.press("ArrowDown")
    text = rows(page).inner_text()
    assert 0 < int(text.split()[0]) < 68
    hit.dblclick()


@pytest.mark.thorough
def test_points_hidden_in_the_table_are_dimmed_in_the_charts(pages: Pages) -> None:
    page = pages.show("builds")
    page.locator("#trade svg[role=application]").wait_for()
    assert page.locator("#trade .mark.dim").count() == 0
    page.get_by_label("Filter points").fill("full")
    expect(page.locator("#trade .mark.dim").first).to_be_attached()


@pytest.mark.thorough
def test_axes_are_chosen(pages: Pages) -> None:
    page = pages.show("session")
    page.locator("#parallel").scroll_into_view_if_needed()
    assert page.get_by_role("slider").count() == 7
    page.locator("#parallel .chooser summary").click()
    page.locator("#parallel .chooser").get_by_label("speed.latency.p99").check()
    page.locator("#parallel .chooser").get_by_label("speed.arena").uncheck()
    names = page.get_by_role("slider").evaluate_all("all => all.map(one => one.getAttribute('aria-label'))")
    assert "speed.latency.p99" in names
    assert "speed.arena" not in names


# --- trade-off ---


def front(page: Page) -> list[int]:
    label = page.locator("#trade svg[role=application]").get_attribute("aria-label") or ""
    found = re.search(r"on the front: ([\d, ]*)\.", label)
    return sorted(int(item) for item in found[1].split(", ")) if found and found[1] else []


def test_the_front_consists_of_undominated_points(pages: Pages) -> None:
    page = pages.show("builds")
    page.locator("#trade svg[role=application]").wait_for()
    values = {
        point.number: (point.metrics["engine.engine_bytes"].value, point.metrics["agree.cosine"].value)
        for point in sweeps.builds().points
        if point.outcome == "passed"
    }
    page.get_by_label("Across: quantity").select_option(label="engine.engine_bytes")
    page.get_by_label("Up: quantity").select_option(label="agree.cosine")
    expect(page.get_by_label("Up: which way is better")).to_have_value("-1")

    def beaten(position: tuple[float, float], signs: tuple[int, int]) -> bool:
        return any(
            all(s * o <= s * v for s, o, v in zip(signs, other, position, strict=True)) and other != position
            for other in values.values()
        )

    # The page rounds to five digits, as people read them.
    values = {number: (float(f"{a:.5g}"), float(f"{b:.5g}")) for number, (a, b) in values.items()}
    assert front(page) == sorted(number for number, value in values.items() if not beaten(value, (1, -1)))[:12]
    page.get_by_label("Across: which way is better").select_option("more is better")
    assert front(page) == sorted(number for number, value in values.items() if not beaten(value, (-1, -1)))[:12]


def test_a_point_is_selected_by_mouse_and_keyboard(pages: Pages) -> None:
    page = pages.show("session")
    picture = page.locator("#trade svg[role=application]")
    picture.wait_for()
    expect(page.get_by_label("Up: quantity")).to_have_value("objective_0")
    picture.focus()
    page.keyboard.press("ArrowRight")
    text = page.locator(".tooltip").inner_text()
    page.keyboard.press("Enter")
    number = re.search(r"point (\d+)", text)
    assert number
    expect(page.locator("#points .detail")).to_contain_text(f"Point {number[1]} passed")
    page.keyboard.press("ArrowRight")
    page.keyboard.press("Shift+Enter")
    expect(page.locator("#points .detail pre")).to_contain_text(f"#{number[1]} ")
    assert page.locator("#trade .chosen").count() == 2
    page.locator("#trade .scatter .mark-best").hover(force=True)
    expect(page.locator(".tooltip")).to_contain_text("best")


@pytest.mark.thorough
def test_axes_alone_have_no_trade_off_chart(pages: Pages) -> None:
    """They are chosen by whoever swept: of two axes nothing is the front."""
    page = pages.show("counted")
    expect(page.locator("#trade")).to_contain_text("No measured quantity differs.")
    page = pages.show("costly")
    expect(page.get_by_label("Up: quantity")).to_have_value("objective_0")
    expect(page.get_by_label("Across: quantity")).to_have_value("axis_0")


@pytest.mark.thorough
def test_the_legend_lists_only_kinds_that_occur(pages: Pages) -> None:
    page = pages.show("builds")
    expect(page.locator("#trade .mark-keys")).to_have_text("besttie: within the noiseon the frontpassedrefusedfailed")
    page = pages.show("look")
    expect(page.locator("#trade .mark-keys")).to_have_text("on the frontpassed")


@pytest.mark.thorough
def test_second_measurements_are_next_to_the_first(pages: Pages) -> None:
    page = pages.show("session")
    page.locator("#trade .scatter .mark-best").hover(force=True)
    expect(page.locator(".tooltip")).to_contain_text(
        re.compile(r"latency\.min 8\.60 ms[\s\S]*first measurement: latency\.min ")
    )
    assert page.locator("#trade .first-line").count() == page.locator("#trade .first-mark").count() > 1


@pytest.mark.thorough
def test_similar_sizes_keep_their_unit(pages: Pages) -> None:
    page = pages.show("near")
    texts = page.locator("#trade svg[role=application] text").all_text_contents()
    assert {"12.91 MiB", "12.92 MiB"} <= set(texts), texts
    assert not [text for text in texts if text.endswith(" B")]


# --- curves ---


@pytest.mark.thorough
def test_a_curve_marks_saturation_and_selects(pages: Pages) -> None:
    page = pages.show("batches")
    page.locator("#curves").scroll_into_view_if_needed()
    picture = page.locator("#curves svg[role=application]")
    expect(picture.locator(".saturated-text")).to_have_text("saturated at 8")
    expect(picture).to_have_attribute(
        "aria-label", re.compile("threads 2: .*, saturated at 8. threads 1: .*, not saturated")
    )
    picture.focus()
    page.keyboard.press("ArrowRight")
    page.keyboard.press("Enter")
    expect(page.locator("#points .detail")).to_contain_text("Point 6 passed")


def test_reasons_link_to_their_points(pages: Pages) -> None:
    page = pages.show("builds")
    page.locator("#failures").get_by_role("button", name="4 points").click()
    expect(page.locator("#points .detail")).to_contain_text("4 of 72 rows")


# --- every kind, every place ---


@pytest.mark.parametrize(
    "kind",
    [
        "variants",
        pytest.param("single", marks=pytest.mark.thorough),
        "none",
        pytest.param("failed", marks=pytest.mark.thorough),
        "look",
        "hostile",
    ],
)
def test_every_kind_of_sweep_opens_and_fits(pages: Pages, kind: str) -> None:
    page = pages.show(kind)
    for section in page.locator("main > section").all():
        section.scroll_into_view_if_needed()
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")


@pytest.mark.thorough
def test_two_thousand_points_are_brushed_and_sorted(pages: Pages) -> None:
    page = pages.show("large")
    expect(rows(page)).to_have_text("2,000 rows")
    threads = axis(page, "speed.threads")
    threads.press("ArrowDown")
    assert 1400 < int(rows(page).inner_text().split()[0].replace(",", "")) < 1600
    head(page, "memory.peak_bytes").click()
    assert len(numbers(page)) < 60, "only rows in sight exist"


@pytest.mark.parametrize(
    "kind",
    [
        pytest.param("session", marks=pytest.mark.thorough),
        pytest.param("builds", marks=pytest.mark.thorough),
        "hostile",
    ],
)
def test_a_narrow_page_does_not_scroll_sideways(pages: Pages, kind: str) -> None:
    page = pages.show(kind, viewport={"width": 400, "height": 800}, color_scheme="dark")
    for section in page.locator("main > section").all():
        section.scroll_into_view_if_needed()
    assert page.evaluate("document.documentElement.scrollWidth") == 400
    page.context.close()


@pytest.mark.thorough
def test_dark_and_light_themes_have_their_colours(pages: Pages) -> None:
    page = pages.show("session")
    page.locator("#parallel").scroll_into_view_if_needed()
    canvas = page.locator("#parallel canvas")
    canvas.wait_for()
    light = canvas.evaluate("one => one.toDataURL()")
    page.locator("#theme").click()
    page.wait_for_function("before => document.querySelector('#parallel canvas').toDataURL() !== before", arg=light)
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(21, 23, 26)"
    page.locator("#theme").click()


@pytest.mark.thorough
def test_print_shows_everything(pages: Pages) -> None:
    page = pages.show("session")
    page.emulate_media(media="print")
    page.evaluate("dispatchEvent(new Event('beforeprint'))")
    expect(page.locator("#points .static tbody tr")).to_have_count(24)
    expect(page.locator("#points .static tbody tr").first).to_be_visible()
    expect(page.locator("#points [role=grid]")).to_be_hidden()
    page.locator("#trade svg[role=application]").wait_for()
    page.locator("#parallel canvas").wait_for()
    page.evaluate("dispatchEvent(new Event('afterprint'))")
    page.emulate_media(media="screen")


def test_without_scripts_the_text_is_shown(pages: Pages) -> None:
    page = pages.show("batches", java_script_enabled=False)
    expect(page.locator(".headline")).to_contain_text("Point 11 is best")
    expect(page.locator("#points .static tbody tr")).to_have_count(11)
    expect(page.locator("#curves .no-script")).to_contain_text("threads 2: saturated at 8")
    expect(page.locator("#effects .level").first).to_be_visible()
    page.context.close()
