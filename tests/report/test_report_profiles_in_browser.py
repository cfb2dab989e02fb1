"""One profile's part of the report in a real Chromium: timeline, charts, table, roll-ups, and the ways between them."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Locator, Page, expect

from ndld_flow.records.profile import Profile, Span
from ndld_flow.records.run_folder import read_run
from ndld_flow.report.run_page import collect_page, draw_profile, draw_report
from tests.support.report_browser import Watch, rows_of
from tests.support.run_fixtures import (
    StepSketch,
    profile,
    run_record,
    timeline,
    write_hostile,
    write_quickstart,
    write_run,
)
from tests.support.worker_toys import wait_until

pytestmark = pytest.mark.browser

GUTTER = 92
"""Pixels left of a timeline, where its lanes are named."""


@pytest.fixture(scope="module")
def quickstart(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_quickstart(tmp_path_factory.mktemp("quickstart"))


@pytest.fixture(scope="module")
def half(quickstart: Path) -> Profile:
    return Profile.model_validate_json((quickstart / "speed" / "profile.json").read_bytes())


@pytest.fixture(scope="module")
def opened(browser: Browser, quickstart: Path) -> Iterator[Page]:
    """One page for all tests; at the end, nothing may have been asked for and nothing complained about."""
    watch = Watch()
    page = watch.open(browser, draw_report(quickstart))
    yield page
    page.context.close()
    watch.check()


@pytest.fixture
def page(opened: Page) -> Page:
    """The page as it was when it opened, the first profile in sight."""
    part = Part(opened)
    part.field.fill("")
    part.grid.focus()
    opened.keyboard.press("Escape")
    part.grid.evaluate("grid => { grid.scrollTop = 0; }")
    part.canvas.focus()
    for key in ("Escape", *["ArrowUp"] * 4, "0", "Escape"):
        opened.keyboard.press(key)
    opened.mouse.move(2, 300)
    return opened


@dataclass(frozen=True)
class Part:
    """The places of one profile's part of the page."""

    page: Page
    place: int = 0

    @property
    def section(self) -> Locator:
        return self.page.locator(f"#layers-{self.place}")

    @property
    def field(self) -> Locator:
        return self.section.get_by_label("Filter layers")

    @property
    def grid(self) -> Locator:
        return self.section.get_by_role("grid")

    @property
    def canvas(self) -> Locator:
        return self.live("timeline").locator("canvas")

    @property
    def told(self) -> Locator:
        """What the timeline says of itself."""
        return self.live("timeline").locator("output")

    @property
    def detail(self) -> Locator:
        return self.section.locator(".detail")

    @property
    def tip(self) -> Locator:
        return self.page.locator(".tooltip")

    def live(self, name: str) -> Locator:
        return self.section.locator(f'[data-live="{name}"]')

    def button(self, name: str, within: str = "") -> Locator:
        place = self.live(within) if within else self.section
        return place.get_by_role("button", name=name, exact=True)

    def expect_selected(self, *names: str) -> None:
        """Wait until the selected rows in sight have these names."""
        expect(self.grid.locator('[aria-selected="true"] > :nth-child(2)')).to_have_text(list(names))

    def x(self, time_ms: float, total_ms: float) -> float:
        """Where a time is on a canvas that shows the whole pass."""
        box = self.canvas.bounding_box()
        assert box is not None
        return GUTTER + time_ms / total_ms * (box["width"] - GUTTER)

    def saved(self, press: Callable[[], None]) -> str:
        with self.page.expect_download() as waiting:
            press()
        return Path(waiting.value.path()).read_bytes().decode("utf-8")


def milliseconds(text: str) -> float:
    """`686 µs` -> 0.686"""
    value, unit = text.split()
    return float(value) * {"µs": 0.001, "ms": 1.0}[unit]


def total_ms(measured: Profile) -> float:
    return max(span.start_ms + span.duration_ms for span in measured.timeline)


def longest_span(measured: Profile) -> Span:
    return max((span for span in measured.timeline if span.layer is not None), key=lambda span: span.duration_ms)


# --- timeline ---


@pytest.mark.thorough
def test_dragging_measures_and_escape_clears(page: Page, half: Profile) -> None:
    part = Part(page)
    part.canvas.scroll_into_view_if_needed()
    whole = total_ms(half)
    box = part.canvas.bounding_box()
    assert box is not None
    page.mouse.move(box["x"] + part.x(4, whole), box["y"] + 90)
    page.mouse.down()
    page.mouse.move(box["x"] + part.x(9, whole), box["y"] + 90, steps=3)
    page.mouse.up()
    low, high, between = (milliseconds(part_) for part_ in re.split(" to |: ", part.told.inner_text()))
    assert (low, high, between) == pytest.approx((4, 9, 5), abs=0.06)
    part.expect_selected()
    page.keyboard.press("Escape")
    expect(part.told).to_have_text(re.compile("in all$"))


@pytest.mark.thorough
def test_a_click_on_a_span_selects_its_row_even_behind_a_filter(page: Page, half: Profile) -> None:
    part = Part(page)
    part.field.fill("type:clip")
    span = longest_span(half)
    middle = span.start_ms + span.duration_ms / 2
    part.canvas.click(position={"x": part.x(middle, total_ms(half)), "y": 26 + 24 + 12})
    part.expect_selected(span.name)
    assert part.field.input_value() == ""
    expect(part.grid.locator('[aria-selected="true"]')).to_be_in_viewport()
    expect(part.told).to_have_text(re.compile("in all$"))  # what was clicked is in sight already


@pytest.mark.thorough
def test_a_selected_row_brings_its_span_into_sight(page: Page, half: Profile) -> None:
    part = Part(page)
    span = min((item for item in half.timeline if item.layer is not None), key=lambda item: item.duration_ms)
    part.field.fill(f"name={span.name}")
    part.grid.locator(".grid-row").first.click()

    def in_sight() -> bool:
        shown = re.match(rf"(.* .s) to (.* .s) of {total_ms(half):.1f} ms$", part.told.inner_text())
        if shown is None:
            return False
        low, high = milliseconds(shown[1]), milliseconds(shown[2])
        ends = low <= span.start_ms + 0.01 and high >= span.start_ms + span.duration_ms - 0.01
        return ends and high - low < total_ms(half) / 20

    wait_until(in_sight)


@pytest.mark.thorough
def test_the_wheel_zooms_only_when_it_is_meant(page: Page) -> None:
    part = Part(page)
    page.locator("#layers h2").scroll_into_view_if_needed()
    part.grid.focus()
    part.canvas.hover(position={"x": 500, "y": 60})
    page.mouse.wheel(0, -120)
    expect(part.told).to_have_text(re.compile("in all$"))
    part.canvas.hover(position={"x": 500, "y": 60})
    page.keyboard.down("Control")
    page.mouse.wheel(0, -300)
    page.keyboard.up("Control")
    expect(part.told).to_have_text(re.compile(" to .* of "))
    zoomed = part.told.inner_text()
    part.canvas.focus()
    page.mouse.wheel(0, -120)
    expect(part.told).not_to_have_text(zoomed)
    part.button("Show the whole pass").click()
    expect(part.told).to_have_text(re.compile("in all$"))


@pytest.mark.thorough
def test_buttons_zoom_and_shift_dragging_moves(page: Page, half: Profile) -> None:
    part = Part(page)
    part.button("Zoom in", "timeline").click()
    whole = total_ms(half)
    low, high = re.findall(r"[\d.]+ .s", part.told.inner_text())[:2]
    assert (milliseconds(low), milliseconds(high)) == pytest.approx((whole / 4, 3 * whole / 4), abs=0.06)
    box = part.canvas.bounding_box()
    assert box is not None
    page.keyboard.down("Shift")
    page.mouse.move(box["x"] + 600, box["y"] + 60)
    page.mouse.down()
    page.mouse.move(box["x"] + 500, box["y"] + 60, steps=2)
    page.mouse.up()
    page.keyboard.up("Shift")
    moved = milliseconds(re.findall(r"[\d.]+ .s", part.told.inner_text())[0])
    assert moved == pytest.approx(whole / 4 + 100 / (box["width"] - GUTTER) * whole / 2, abs=0.06)


def test_the_timeline_works_by_keyboard_alone(page: Page, half: Profile) -> None:
    part = Part(page)
    part.canvas.focus()
    page.keyboard.press("Home")  # the transfer of the inputs
    page.keyboard.press("ArrowDown")
    page.keyboard.press("ArrowRight")
    second = half.layers[1]
    expect(part.tip).to_contain_text(second.name)
    expect(part.tip).to_contain_text("layer, CPU")
    page.keyboard.press("m")
    page.keyboard.press("ArrowRight")
    page.keyboard.press("m")
    measured = milliseconds(part.told.inner_text().split(": ")[1])
    took = second.samples_ms[0] + half.layers[2].samples_ms[0]
    assert measured == pytest.approx(took, rel=0.01)
    page.keyboard.press("Enter")
    part.expect_selected(half.layers[2].name)
    part.canvas.focus()
    page.keyboard.press("+")
    expect(part.told).not_to_have_text(re.compile("in all$"))
    page.keyboard.press("Escape")
    page.keyboard.press("0")
    expect(part.told).to_have_text(re.compile("in all$"))


def test_a_timeline_has_a_description_and_words_instead_of_a_picture(page: Page) -> None:
    part = Part(page)
    description = part.canvas.get_attribute("aria-describedby")
    expect(page.locator(f"#{description}")).to_contain_text("M measures from here")
    assert "404 spans" not in (part.canvas.get_attribute("aria-label") or "")
    expect(part.section).to_contain_text("CPU: busy")
    expect(part.section).to_contain_text("H2D: busy 80.0 µs of")


def pixels(page: Page, part: Part) -> set[str]:
    """Colours of a row of pixels across the lane of layers."""
    found: list[str] = part.canvas.evaluate(
        """canvas => {
            const copy = new OffscreenCanvas(canvas.width, 1).getContext("2d", {willReadFrequently: true});
            copy.drawImage(canvas, 0, -62);
            const row = copy.getImageData(0, 0, canvas.width, 1).data;
            return Array.from({length: canvas.width}, (_, at) => Array.from(row.slice(4 * at, 4 * at + 3)).join());
        }"""
    )
    return set(found)


@pytest.mark.thorough
def test_overhead_and_data_moves_have_their_own_colours_in_either_theme(page: Page) -> None:
    part = Part(page)
    part.canvas.scroll_into_view_if_needed()
    for word in ("layer", "reformat, quantize, cast or copy", "overhead", "transfer"):
        expect(part.live("timeline").locator(".keys")).to_contain_text(word)
    light = pixels(page, part)
    assert {"0,114,178", "185,127,0", "179,183,186"} <= light
    page.locator("#theme").click()
    dark = pixels(page, part)
    page.locator("#theme").click()
    assert {"86,180,233", "230,176,60", "91,98,105"} <= dark
    assert pixels(page, part) == light


# --- table ---


@pytest.mark.thorough
def test_heat_has_scales(page: Page) -> None:
    part = Part(page)
    heats = part.grid.locator(".grid-row > .heat:nth-child(7)")

    def hot() -> list[float]:
        found: list[str] = heats.evaluate_all("cells => cells.map(cell => cell.style.getPropertyValue('--hot'))")
        return [float(item) for item in found]

    linear = hot()
    assert linear[0] == 1
    assert linear == sorted(linear, reverse=True)
    part.button("rank", "layers").click()
    rank = hot()
    assert rank[:3] == pytest.approx([1, 1 - 1 / 336, 1 - 2 / 336], abs=0.001)
    part.button("log", "layers").click()
    assert linear[5] < hot()[5] < 1
    part.button("off", "layers").click()
    assert set(hot()) == {0}
    part.button("linear", "layers").click()
    assert hot() == linear


@pytest.mark.thorough
def test_shares_are_of_the_layer_sum_or_of_the_pass(page: Page, half: Profile) -> None:
    part = Part(page)
    slowest = max(half.layer_times.ms)
    cell = part.grid.locator(".grid-row").first.locator(":nth-child(6)")
    layer_sum = half.layers_sum_ms
    expect(cell).to_have_text(f"{100 * slowest / layer_sum:.1f} %")
    part.button("pass", "layers").click()
    whole = sorted(half.layer_pass_ms)
    expect(cell).to_have_text(f"{100 * slowest / ((whole[4] + whole[5]) / 2):.1f} %")
    saved = rows_of(part.saved(part.live("layers").get_by_role("button", name=re.compile("^CSV")).click).encode())
    assert "percent of pass" in saved[0]
    part.button("layer sum", "layers").click()
    expect(cell).to_have_text(f"{100 * slowest / layer_sum:.1f} %")


def test_columns_are_chosen_and_a_file_holds_them_all(page: Page) -> None:
    part = Part(page)
    heads = part.grid.get_by_role("columnheader")
    before = heads.all_inner_texts()
    assert "Provider" not in before
    part.section.get_by_text("Columns", exact=True).click()
    box = part.section.get_by_label("Provider", exact=True)
    box.check()
    assert heads.all_inner_texts() == [*before[:4], "Provider", *before[4:]]
    assert set(part.grid.locator(".grid-row > :nth-child(5)").all_inner_texts()) == {"CPU"}
    box.uncheck()
    page.keyboard.press("Escape")
    expect(box).to_be_hidden()
    assert heads.all_inner_texts() == before
    saved = rows_of(part.saved(part.live("layers").get_by_role("button", name=re.compile("^CSV")).click).encode())
    assert len(saved[0]) == 25
    assert {"Provider", "Stream", "MACs", "weight bytes", "ONNX nodes"} <= set(saved[0])


def test_a_layer_leads_to_those_before_and_after_it(page: Page) -> None:
    part = Part(page)
    part.field.fill("name=p2o.mul.53")
    part.grid.locator(".grid-row").first.click()
    expect(part.detail).to_contain_text("MACs at")
    expect(part.detail).to_contain_text("of the pass")
    part.detail.get_by_role("button", name="p2o.Add.54").click()
    part.expect_selected("p2o.Add.54")
    part.detail.get_by_role("button", name="p2o.Mul.53").click()
    part.expect_selected("p2o.Mul.53")


# --- charts ---


@pytest.mark.thorough
def test_the_chart_of_types_shows_totals_means_and_shares_and_filters(page: Page, half: Profile) -> None:
    part = Part(page)
    rows = part.live("types").locator("tbody tr")
    times = list(zip(half.layers, half.layer_times.ms, strict=True))
    convs = [ms for layer, ms in times if layer.type == "Conv"]
    expect(rows.first).to_contain_text(f"{sum(convs):.2f} ms")
    part.button("%", "types").click()
    whole = half.layers_sum_ms
    expect(rows.first).to_contain_text(f"{100 * sum(convs) / whole:.1f} %")
    part.button("mean per layer", "types").click()
    means = {kind: [ms for item, ms in times if item.type == kind] for kind in ("Conv", "Add")}
    expect(rows.filter(has_text="Conv")).to_contain_text(f"{100 * sum(convs) / len(convs) / whole:.1f} %")
    part.button("ms", "types").click()
    add = 1000 * sum(means["Add"]) / len(means["Add"])
    expect(rows.filter(has_text="Add")).to_contain_text(f"{add:.1f} µs")
    part.button("total", "types").click()
    assert part.live("types").locator(".axis-row span").all_inner_texts()[:2] == ["0", "2 ms"]
    part.button("Resize", "types").click()
    assert set(part.grid.locator(".grid-row > :nth-child(3)").all_inner_texts()) == {"Resize"}
    part.button("Resize", "types").click()
    assert part.field.input_value() == ""


@pytest.mark.thorough
def test_the_pie_tells_its_parts_and_leads_to_their_layers(page: Page) -> None:
    part = Part(page)
    pie = part.live("pie").locator("svg")
    pie.scroll_into_view_if_needed()
    pie.locator(".slice").first.hover(position={"x": 20, "y": 30})
    expect(part.tip).to_contain_text(re.compile(r"Conv\n99 layers, 5\.\d\d ms, 3\d\.\d %"))
    page.mouse.move(2, 300)
    expect(part.tip).to_be_hidden()
    pie.focus()
    for _ in range(8):  # the other types and their rest, then the first precision around them
        page.keyboard.press("ArrowRight")
    expect(part.tip).to_contain_text("float16")
    page.keyboard.press("Enter")
    assert part.field.input_value() == "type=conv precision=float16"
    expect(part.live("layers").locator(".tools output")).to_have_text("99 of 337 rows")


@pytest.mark.thorough
def test_the_roofline_is_walked_by_keyboard_and_pointed_at(page: Page, half: Profile) -> None:
    part = Part(page)
    roofline = part.live("roofline").locator("svg")
    roofline.scroll_into_view_if_needed()
    expect(roofline).to_contain_text("float16: 0.084 TFLOP/s · 2,000 GB/s")
    roofline.focus()
    page.keyboard.press("ArrowRight")
    times = zip(half.layers, half.layer_times.ms, strict=True)
    slowest, _ = max(((layer, ms) for layer, ms in times if layer.macs), key=lambda timed: timed[1])
    assert slowest.macs is not None
    expect(part.tip).to_contain_text(slowest.name)
    expect(part.tip).to_contain_text("of the roof")
    page.keyboard.press("Enter")
    part.expect_selected(slowest.name)
    drawn = roofline.locator(".dots").evaluate_all(
        "paths => paths.map(path => path.getAttribute('d').split('M').length - 1).reduce((a, b) => a + b)"
    )
    assert drawn == sum(bool(layer.macs) for layer in half.layers)


@pytest.mark.thorough
def test_roll_ups_and_memory_lead_to_their_layers(page: Page, half: Profile) -> None:
    part = Part(page)
    part.button("reformat").click()
    assert part.field.input_value() == "role=reformat"
    assert set(part.grid.locator(".grid-row > :nth-child(3)").all_inner_texts()) == {"Reorder"}
    part.button("nchwc_pointwise").click()
    expect(part.live("layers").locator(".tools output")).to_have_text("33 of 337 rows")
    heaviest = max(half.layers, key=lambda layer: layer.weight_bytes)
    part.section.get_by_role("button", name=heaviest.name).first.click()
    part.expect_selected(heaviest.name)


def test_a_finding_leads_to_its_layers(page: Page) -> None:
    part = Part(page)
    finding = part.section.locator(".insights li").first
    expect(finding.locator(".score")).to_have_text(re.compile(r"^[\d.]+ %$"))
    expect(finding.locator(".try code").first).to_have_text("sanitize")
    button = finding.locator("[data-rows]")
    rows = (button.get_attribute("data-rows") or "").split(",")
    button.click()
    count = rows_of(part.saved(part.live("layers").get_by_role("button", name=re.compile("^CSV")).click).encode())
    assert sorted(row[0] for row in count[1:]) == sorted(rows)


def test_the_graph_and_the_table_share_their_selection(page: Page) -> None:
    part = Part(page)
    graph = part.live("graph").locator(".graph-stage canvas").first
    graph.scroll_into_view_if_needed()
    part.live("graph").get_by_role("button", name="Nodes").click()
    graph.focus()
    page.keyboard.press("ArrowDown")
    page.keyboard.press("Enter")
    expect(part.grid.locator('[aria-selected="true"]')).to_have_count(1)


# --- latency ---


@pytest.mark.thorough
def test_passes_are_laid_out_along_time_where_runs_took_turns(page: Page) -> None:
    plot = page.locator('[data-live="passes"]')
    plot.scroll_into_view_if_needed()
    expect(plot).to_contain_text("half: 6 outliers of 400 passes")
    expect(plot.locator(".border")).to_have_count(8)
    expect(plot.locator("svg")).to_contain_text("run 5")
    plot.get_by_role("button", name="time").click()
    turns = plot.locator(".turn")
    expect(turns).to_have_count(10)
    places = turns.evaluate_all(
        "lines => lines.map(line => [Number(line.getAttribute('x1')), line.closest('.series').classList[1]])"
    )
    assert len({x for x, _ in places}) == 10
    assert [series for _, series in sorted(places)] == ["series-0", "series-1"] * 5
    plot.get_by_role("button", name="passes").click()
    expect(plot.locator(".border")).to_have_count(8)


@pytest.mark.thorough
def test_process_runs_tell_their_medians_and_why_they_stopped(page: Page, half: Profile) -> None:
    row = page.locator("#latency .runs tbody tr").first
    expect(row).to_contain_text("5 runs: 18.4 ms to 18.7 ms")
    expect(row).to_contain_text("stable: ±0.9 % after 5 runs")
    expect(row).to_contain_text("in turns with source")
    expect(row.locator("circle")).to_have_count(len(half.runs))


# --- what leaves the page ---


def test_a_profile_leaves_as_json_markdown_and_trace(page: Page, half: Profile) -> None:
    part = Part(page)
    loaded = json.loads(part.saved(part.button("JSON", "exports").click))
    assert [layer["name"] for layer in loaded["layers"]] == [layer.name for layer in half.layers]
    assert [layer["median_ms"] for layer in loaded["layers"]] == pytest.approx(half.layer_times.ms, abs=1e-6)
    assert [item["start_ms"] for item in loaded["timeline"]] == pytest.approx(
        [item.start_ms for item in half.timeline], abs=1e-6
    )
    trace = json.loads(part.saved(part.button("Chrome trace", "exports").click))
    events = [item for item in trace["traceEvents"] if item["ph"] == "X"]
    assert [event["name"] for event in events] == [span.name for span in half.timeline]
    assert sum(event["dur"] for event in events) == pytest.approx(
        1000 * sum(span.duration_ms for span in half.timeline)
    )
    assert {item["args"]["name"] for item in trace["traceEvents"] if item["ph"] == "M"} == {"half", "H2D", "CPU", "D2H"}
    text = part.saved(part.button("Markdown", "exports").click)
    assert "| Conv | 99 |" in text


@pytest.mark.thorough
def test_paper_is_white_and_holds_every_profile(browser: Browser, quickstart: Path, tmp_path: Path) -> None:
    watch = Watch()
    page = watch.open(browser, draw_report(quickstart), color_scheme="dark")
    page.evaluate("dispatchEvent(new Event('beforeprint'))")
    page.emulate_media(media="print")
    for value in (0, 1):
        part = Part(page, value)
        expect(part.live("roofline").locator("svg")).to_be_visible()
        expect(part.live("pie").locator("svg")).to_be_visible()
        assert "0,114,178" in pixels(page, part)
    expect(Part(page).field).to_be_hidden()
    page.evaluate("dispatchEvent(new Event('afterprint'))")
    page.emulate_media(media="screen", color_scheme="dark")
    assert "86,180,233" in pixels(page, Part(page))
    expect(page.locator("#layers-1")).to_be_hidden()
    page.pdf(path=tmp_path / "report.pdf")
    assert (tmp_path / "report.pdf").stat().st_size > 50_000
    page.context.close()
    watch.check()


# --- profiles that are not as usual ---


@pytest.mark.thorough
def test_bodies_lie_below_what_ran_them(browser: Browser, tmp_path: Path) -> None:
    measured = profile("half", 10, 1, 6)
    spans = list(timeline(measured.layers))
    outer = next(span for span in spans if span.layer == 2)
    within = [
        Span(lane="CPU", name=f"body{depth}", start_ms=outer.start_ms, duration_ms=outer.duration_ms / 2, depth=depth)
        for depth in (1, 2)
    ]
    nested = measured.model_copy(update={"timeline": (*spans, *within)})
    run = run_record([StepSketch("speed", "profile", "profile")])
    watch = Watch()
    page = watch.open(browser, draw_report(write_run(tmp_path, run, {"speed/profile.json": nested})))
    part = Part(page)
    part.canvas.focus()
    page.keyboard.press("ArrowDown")
    page.keyboard.press("ArrowDown")
    page.keyboard.press("ArrowDown")
    expect(part.tip).to_contain_text("body1")
    page.keyboard.press("ArrowDown")
    expect(part.tip).to_contain_text("body2")
    page.context.close()
    watch.check()


@pytest.mark.thorough
def test_hostile_names_stay_text_in_every_chart(browser: Browser, tmp_path: Path) -> None:
    watch = Watch()
    page = watch.open(browser, draw_report(write_hostile(tmp_path)), viewport={"width": 390, "height": 800})
    part = Part(page)
    for name in ("types", "pie"):
        part.live(name).scroll_into_view_if_needed()
    shown = part.live("types").evaluate(
        """types => [...types.querySelectorAll("tbody button")].map(button => {
            button.click();
            const told = types.closest(".layers").querySelector("[data-live=layers] output").textContent;
            button.click();
            return told;
        })"""
    )
    assert len(shown) >= 14
    assert {text.split()[0] for text in shown} == {"1"}
    pie = part.live("pie").locator("svg")
    pie.focus()
    for _ in range(16):
        page.keyboard.press("ArrowRight")
        page.keyboard.press("Enter")
    part.section.locator("[data-pick]").evaluate_all("buttons => buttons.forEach(button => button.click())")
    part.canvas.focus()
    for key in ("ArrowDown", "ArrowRight", "ArrowRight", "m", "End", "Enter"):
        page.keyboard.press(key)
    json.loads(part.saved(part.button("JSON", "exports").click))
    json.loads(part.saved(part.button("Chrome trace", "exports").click))
    markdown = part.saved(part.button("Markdown", "exports").click)
    assert "<img" not in markdown
    assert "](" not in markdown
    assert page.evaluate("document.scripts.length") == 3
    assert page.locator("img, iframe, object, embed").count() == 0
    assert page.evaluate("document.documentElement.scrollWidth") == 390
    page.context.close()
    watch.check()


@pytest.mark.parametrize("width", [1400, pytest.param(1024, marks=pytest.mark.thorough)])
def test_the_first_screen_of_a_profile_names_findings_and_slowest_layers(
    browser: Browser, half: Profile, tmp_path: Path, width: int
) -> None:
    watch = Watch()
    page = watch.open(
        browser, draw_profile(half, "half", tmp_path / "report.html"), viewport={"width": width, "height": 900}
    )
    slowest = page.locator(".slowest tbody tr")
    medians = sorted(half.layer_times.ms, reverse=True)
    expect(slowest).to_have_count(10)
    shown = [milliseconds(text) for text in page.locator(".slowest td:nth-child(4)").all_inner_texts()]
    assert shown == pytest.approx(medians[:10], rel=1e-2)
    expect(slowest.last).to_be_in_viewport(ratio=1)
    finding = page.locator("#where .insights li").first
    expect(finding).to_be_in_viewport(ratio=1)
    layers = finding.get_by_role("button")
    count = int((layers.text_content() or "").split()[0])
    layers.click()
    expect(page.locator("#layers .detail")).to_contain_text(f"{count} of" if count > 1 else "ms")
    slowest.first.get_by_role("button").click()
    expect(page.locator("#layers")).to_be_in_viewport()
    watch.check()


def test_only_a_run_without_a_new_model_begins_with_its_profile(quickstart: Path, tmp_path: Path) -> None:
    assert "where" not in dict(collect_page(read_run(quickstart)).sections)
    run = run_record([StepSketch("speed", "profile", "profile")])
    write_run(tmp_path, run, {"speed/profile.json": profile("cnn", 10, 1, 20)})
    assert collect_page(read_run(tmp_path)).sections[0] == ("where", "Where")
