"""The page of activations in Chromium: colours for values, two models side by side, keyboard access."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from playwright.sync_api import Browser, Page, ViewportSize, expect

from ndld_flow.records.activations import ActivationMap
from ndld_flow.report.activations.maps import read_activations
from ndld_flow.report.activations.page import draw_activations
from tests.support import activation_samples as captured_maps
from tests.support.report_browser import Watch, rows_of

pytestmark = pytest.mark.browser


def write_single(folder: Path) -> Path:
    """One model, against another format than fp16; of the last tensor there are numbers without maps."""
    record = read_activations(captured_maps.write_single(folder))
    *others, last = record.tensors
    tensors = (*others, last.model_copy(update={"maps": ()}))
    (folder / "activations.json").write_text(
        record.model_copy(update={"tensors": tensors, "range_format": "fp8e4m3"}).to_json(), "utf-8"
    )
    return folder


KINDS: dict[str, Callable[[Path], Path]] = {
    "pair": captured_maps.write_pair,
    "single": write_single,
    "hostile": captured_maps.write_hostile,
}
SCREEN: ViewportSize = {"width": 1300, "height": 1000}
NAN, PLUS, MINUS = (255, 0, 200), (255, 230, 0), (0, 229, 255)
BROKEN = "batch_norm_7.tmp_2"


class Pages:
    """Pages that are drawn when they are first asked for, in one tab each."""

    def __init__(self, browser: Browser, folder: Path) -> None:
        self.browser, self.folder, self.watch = browser, folder, Watch()
        self.opened: dict[str, Page] = {}

    def file(self, kind: str) -> Path:
        """Write the page as `report.html`, the only file that a page may request."""
        folder = self.folder / kind
        page = folder / "report.html"
        if not page.exists():
            draw_activations(KINDS[kind](folder)).rename(page)
        return page

    def show(self, kind: str = "pair", **place: object) -> Page:
        """A page after a link to this place was followed; all else but the colours is as by default."""
        address = "#" + "&".join(f"{name}={value}" for name, value in {"sample": 0, "colours": "red", **place}.items())
        if kind not in self.opened:
            self.opened[kind] = self.watch.open(self.browser, self.file(kind), viewport=SCREEN)
        page = self.opened[kind]
        page.evaluate(
            """address => {
                document.activeElement.blur();
                history.replaceState(null, "", address);
                return inspector.arrive();
            }""",
            address,
        )
        settle(page)
        return page

    def open_again(self, kind: str, address: str) -> Page:
        """A page as a link opens it."""
        page = self.opened[kind]
        page.goto("about:blank")
        page.goto(f"{self.file(kind).as_uri()}{address}")
        page.wait_for_selector("html[data-ready]", state="attached")
        return page


@pytest.fixture(scope="module")
def pages(browser: Browser, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pages]:
    """At the end, nothing may have been asked for and nothing complained about."""
    held = Pages(browser, tmp_path_factory.mktemp("activations"))
    yield held
    for context in browser.contexts:
        context.close()
    held.watch.asked = [
        url for url in held.watch.asked if url != "about:blank" and not url.startswith("data:image/png")
    ]
    held.watch.check()


def pixels(page: Page, channel: int, side: int = 0) -> Any:
    """height x width x 3 of a channel's canvas in the grid."""
    settle(page)
    found = page.evaluate(
        """([channel, side]) => {
            const canvas = document.querySelectorAll(`[aria-label="channel ${channel}"] canvas`)[side];
            const { width, height } = canvas;
            return [height, width, [...canvas.getContext("2d").getImageData(0, 0, width, height).data]];
        }""",
        [channel, side],
    )
    return np.array(found[2]).reshape(found[0], found[1], 4)[:, :, :3]


def wait_for_colours(page: Page, expected: set[tuple[int, int, int]]) -> None:
    """Wait until channel 3 has these colours and no others."""
    for _ in range(400):
        colours = {tuple(map(int, pixel)) for pixel in pixels(page, 3).reshape(-1, 3)}
        if colours == expected:
            return
        page.wait_for_timeout(50)
    assert colours == expected


def settle(page: Page) -> None:
    """Wait for the next frame, which shows the requested view."""
    page.evaluate("() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")


def values(pages: Pages, tensor: str, side: str, sample: int = 0) -> Any:
    """Return the decoded values of a map, channels x height x width."""
    folder = pages.file("pair").parent
    (captured,) = [item for item in read_activations(folder).tensors if item.tensor == tensor]
    (found,) = [item for item in captured.maps if (item.side, item.sample) == (side, sample)]
    return decoded(folder, found)


def decoded(folder: Path, drawn: ActivationMap) -> Any:
    codes = np.frombuffer((folder / drawn.file).read_bytes(), "<u2").reshape(drawn.channels, drawn.height, drawn.width)
    values = drawn.low + codes * (drawn.high - drawn.low) / 65532
    odd = {65535: np.nan, 65534: np.inf, 65533: -np.inf}
    for code, value in odd.items():
        values[codes == code] = value
    return values


def red_green(shown: Any) -> Any:
    """The colours of -1 to 1: negative red, positive green, zero black."""
    part = np.clip(shown, -1, 1)[..., np.newaxis]
    return np.where(part < 0, -part * [255, 30, 30], part * [30, 235, 60])


def look(page: Page) -> dict[str, Any]:
    settle(page)
    found: dict[str, Any] = page.evaluate("inspector.look")
    return found


def state(page: Page) -> dict[str, Any]:
    found: dict[str, Any] = page.evaluate("inspector.state")
    return found


def press(page: Page, *keys: str) -> None:
    for key in keys:
        page.keyboard.press(key)
    settle(page)


# --- colours ---


def test_colours_show_the_values_of_both_sides(pages: Pages) -> None:
    page = pages.show(tensor="conv2d_0.tmp_0")
    reference, candidate = (values(pages, "conv2d_0.tmp_0", side) for side in ("reference", "candidate"))
    scale = 1 / max(abs(reference).max(), abs(candidate).max())
    assert look(page)["scale"] == pytest.approx(scale, rel=1e-3)
    for side, shown in enumerate((reference, candidate)):
        assert np.abs(pixels(page, 3, side) - red_green(shown[3] * scale)).max() <= 1
    shift = page.get_by_label("Shift, exactly")
    shift.fill("0.5")
    shift.press("Enter")
    assert np.abs(pixels(page, 3, 1) - red_green((candidate[3] + 0.5) * scale)).max() <= 1
    for colours, low, high in (("Grey", (0, 0, 0), (255, 255, 255)), ("Blue/orange", (6, 38, 94), (112, 46, 0))):
        page.get_by_role("button", name=colours).click()
        settle(page)  # it writes the scale of these colours into the field
        page.get_by_label("Scale, exactly").fill("1e6")
        page.get_by_label("Scale, exactly").press("Enter")
        wait_for_colours(page, {low, high})
    page.get_by_role("button", name="Reset").click()
    assert (look(page)["shift"], look(page)["scale"]) == (0, 1)


def test_non_finite_values_have_their_own_colours(pages: Pages) -> None:
    page = pages.show(tensor="")
    assert state(page)["tensor"] == 3, "where something is not finite"
    candidate = values(pages, BROKEN, "candidate")
    for channel in (0, 2, 3):
        painted = pixels(page, channel, 1)
        for colour, where in (
            (NAN, np.isnan(candidate[channel])),
            (PLUS, candidate[channel] == np.inf),
            (MINUS, candidate[channel] == -np.inf),
        ):
            assert np.array_equal((painted == colour).all(axis=-1), where)
    assert not (pixels(page, 3, 0) == PLUS).all(axis=-1).any()
    expect(page.locator(".tensor-head")).to_contain_text("2 NaN")


def test_fit_excludes_outliers_on_request(pages: Pages) -> None:
    page = pages.show(tensor="relu_0.tmp_0", mode="candidate")
    whole = look(page)["scale"]
    page.get_by_role("button", name="Fit 99 %").click()
    both = np.concatenate([values(pages, "relu_0.tmp_0", side) for side in ("reference", "candidate")])
    assert look(page)["scale"] == pytest.approx(1 / np.quantile(both, 0.995), rel=1e-3)
    page.keyboard.press("f")
    assert look(page)["scale"] == pytest.approx(whole)


# --- two models ---


def test_split_shows_each_side_and_follows_the_arrow_keys(pages: Pages) -> None:
    left, right = (pixels(pages.show(tensor=BROKEN, mode=side), 3) for side in ("reference", "candidate"))
    assert np.array_equal(
        pixels(pages.show(tensor=BROKEN, mode="split", split=0.7), 3), np.hstack([left[:, :14], right[:, 14:]])
    )
    page = pages.show(tensor="conv2d_0.tmp_0", mode="split")
    page.get_by_role("option", name="channel 5", exact=True).click()
    divider = page.get_by_role("slider", name="Split between reference and candidate")
    divider.focus()
    page.locator(".plane").scroll_into_view_if_needed()
    press(page, "ArrowRight", "ArrowRight", "PageDown")
    assert look(page)["split"] == pytest.approx(0.42)
    expect(divider).to_have_attribute("aria-valuetext", "reference left of 42 %")
    handle, plane = divider.bounding_box(), page.locator(".plane").bounding_box()
    assert handle
    assert plane
    page.mouse.move(handle["x"] + 9, handle["y"] + 40)
    page.mouse.down()
    page.mouse.move(plane["x"] + 0.75 * plane["width"], handle["y"] + 40, steps=3)
    page.mouse.up()
    assert look(page)["split"] == pytest.approx(0.75, abs=0.01)


def test_mix_shows_the_average_of_both_sides(pages: Pages) -> None:
    under, over = (pixels(pages.show(tensor=BROKEN, mode=side), 3) for side in ("reference", "candidate"))
    assert np.abs(over.astype(float) - under).max() > 200
    mixed = pixels(pages.show(tensor=BROKEN, mode="mix", mix=0.25), 3)
    assert np.abs(mixed - (0.75 * under + 0.25 * over)).max() <= 1


def test_differences_are_amplified(pages: Pages) -> None:
    page = pages.show(tensor="conv2d_0.tmp_0", mode="difference")
    reference, candidate = (values(pages, "conv2d_0.tmp_0", side) for side in ("reference", "candidate"))
    now = look(page)
    assert now["gain"] * now["scale"] * abs(candidate - reference).max() == pytest.approx(1, rel=1e-3)
    shown = (candidate - reference)[7] * now["gain"] * now["scale"]
    assert np.abs(pixels(page, 7) - red_green(shown)).max() <= 1
    gain = page.get_by_label("Gain, exactly")
    gain.fill("12")
    gain.press("Enter")
    assert look(page)["gain"] == 12
    assert np.abs(pixels(page, 7) - red_green((candidate - reference)[7] * 12 * now["scale"])).max() <= 1
    expect(page.locator(".maps")).to_contain_text("this page's maps have a resolution of")
    page.get_by_role("button", name="Auto").click()
    assert look(page)["gain"] == pytest.approx(now["gain"])


def test_values_of_only_one_side_have_the_colour_of_that_side(pages: Pages) -> None:
    page = pages.show(tensor=BROKEN, mode="difference")
    candidate = values(pages, BROKEN, "candidate")
    assert np.array_equal((pixels(page, 3) == PLUS).all(axis=-1), candidate[3] == np.inf)


def test_equal_sides_are_labelled_as_equal(pages: Pages) -> None:
    page = pages.show(tensor="shape.flat", mode="difference")
    expect(page.locator(".maps")).to_contain_text("they are equal within the resolution of this page's maps")


# --- one channel, and tensors without ---


def test_a_channel_is_opened_read_and_zoomed(pages: Pages) -> None:
    page = pages.show(tensor="conv2d_0.tmp_0")
    page.get_by_role("listbox", name="Channels").focus()
    press(page, "Home", "ArrowRight", "ArrowRight", "Enter")
    expect(page.locator(".large-view h3")).to_have_text("Channel 2 of 16")
    assert page.locator(".plane").count() == 2
    page.locator(".plane").first.focus()
    press(page, "ArrowRight", "ArrowRight", "Shift+ArrowDown")
    reference, candidate = (values(pages, "conv2d_0.tmp_0", side)[2] for side in ("reference", "candidate"))
    readout = page.locator(".readout").inner_text()
    x, y = map(int, re.findall(r"\d+", readout)[:2])
    assert (x, y) == (1, 10)
    shown = [float(item.replace("−", "-")) for item in re.findall(r"(?:source|half|difference) (\S+)", readout)]  # noqa: RUF001
    expected = (reference[y, x], candidate[y, x], candidate[y, x] - reference[y, x])
    assert shown == pytest.approx(expected, rel=1e-3, abs=1e-9)
    before = page.evaluate("inspector.large.view.across")
    press(page, "+", "+")
    assert page.evaluate("inspector.large.view.across") == pytest.approx(2.25 * before)
    press(page, "0", "Escape")
    assert page.locator(".channel-grid").is_visible()
    expect(page.get_by_role("listbox", name="Channels")).to_be_focused()


def test_the_pointer_shows_values_and_drags(pages: Pages) -> None:
    page = pages.show(tensor="conv2d_0.tmp_0", channel=4, mode="candidate")
    page.locator(".plane").scroll_into_view_if_needed()
    box = page.locator(".plane").bounding_box()
    assert box
    page.mouse.move(box["x"] + box["width"] * 0.51, box["y"] + box["height"] * 0.26)
    expect(page.locator(".readout")).to_contain_text("x 20, y 10")
    page.locator(".large-view").get_by_role("button", name="Larger (+)").click()
    before = page.evaluate("inspector.large.view.x")
    page.mouse.move(box["x"] + 200, box["y"] + 200)
    page.mouse.down()
    page.mouse.move(box["x"] + 140, box["y"] + 200, steps=2)
    page.mouse.up()
    assert page.evaluate("inspector.large.view.x") > before


@pytest.mark.parametrize(
    ("tensor", "title"),
    [("fc.logits", "NC 4×97"), ("tokens", "NLC 1×30×64"), ("shape.flat", "flat 50"), ("pool.tmp_0", "24 channels")],  # noqa: RUF001
)
def test_tensors_without_a_map_are_a_matrix_or_a_strip(pages: Pages, tensor: str, title: str) -> None:
    page = pages.show(tensor=tensor)
    expect(page.locator(".large-view h3")).to_contain_text(title)
    assert page.get_by_role("button", name="All channels").is_hidden()
    box = page.locator(".plane").first.bounding_box()
    assert box
    assert box["height"] >= 60


def test_channels_are_a_table_that_is_exported_as_csv(pages: Pages) -> None:
    page = pages.show(tensor="conv2d_0.tmp_0")
    table = page.locator(".channel-table")
    table.get_by_role("columnheader", name="RMS difference").get_by_role("button").click()
    folder = pages.file("pair").parent
    statistics = read_activations(folder).tensors[0].channels
    worst = max(statistics, key=lambda statistic: statistic.difference_rms or 0)
    first = table.locator(".grid-row").first
    expect(first.locator("div").first).to_have_text(str(worst.channel))
    with page.expect_download() as waiting:
        table.get_by_role("button", name="CSV of 16 rows").click()
    saved = rows_of(Path(waiting.value.path()).read_bytes())
    assert waiting.value.suggested_filename == "conv2d_0.tmp_0-channels.csv"
    assert float(saved[1][1]) == pytest.approx(worst.minimum, rel=1e-5)
    first.click()
    assert state(page)["channel"] == worst.channel
    expect(page.locator(".large-view h3")).to_have_text(f"Channel {worst.channel} of 16")


def test_channels_are_in_the_requested_order(pages: Pages) -> None:
    page = pages.show(tensor="conv2d_0.tmp_0")
    page.get_by_label("Order of channels").select_option("difference")
    statistics = read_activations(pages.file("pair").parent).tensors[0].channels
    wanted = [
        str(statistic.channel)
        for statistic in sorted(statistics, key=lambda statistic: -(statistic.difference_rms or 0))
    ]
    assert page.locator(".channel-grid .channel-name").all_inner_texts() == wanted


# --- the list, the strip, the address ---


def test_tensors_are_searched_sorted_and_stepped_through(pages: Pages) -> None:
    page = pages.show(tensor=BROKEN)
    options = page.get_by_role("listbox", name="Captured tensors").get_by_role("option")
    page.get_by_label("Find tensors").fill("nan batch")
    expect(options).to_have_count(1)
    page.get_by_label("Find tensors").press("Escape")
    expect(options).to_have_count(11)
    page.get_by_label("Order of the list").select_option("noise")
    expect(options.first).to_contain_text("sigmoid_0.tmp_0")
    options.first.click()
    page.get_by_role("listbox", name="Captured tensors").focus()
    press(page, "ArrowDown")
    names = page.locator(".tensor-name").all_inner_texts()
    expect(page.locator(".tensor-head h3")).to_have_text(names[1])
    press(page, "End")
    expect(page.locator(".tensor-head h3")).to_have_text(names[-1])
    press(page, "k")
    expect(page.locator(".tensor-head h3")).to_have_text(names[-2])


def test_the_strip_selects_tensors_and_shows_other_quantities(pages: Pages) -> None:
    page = pages.show(tensor="conv2d_0.tmp_0")
    strip = page.locator(".depth svg")
    strip.focus()
    press(page, "ArrowRight")
    expect(page.locator(".tensor-head h3")).to_have_text("relu_0.tmp_0")
    expect(strip).to_have_attribute("aria-valuetext", re.compile("^relu_0.tmp_0, Relu"))
    assert page.locator(".depth .spot-bad").count() == 1
    page.get_by_role("button", name="Magnitudes").click()
    assert page.locator(".depth .of-candidate.beyond").count() == 1
    expect(page.locator(".depth")).to_contain_text("fp16's largest")


def test_a_link_opens_the_same_view(pages: Pages) -> None:
    page = pages.show(tensor="stage1%2Fconv.tmp_1", sample=1)
    page.get_by_role("button", name="Blue/orange").click()
    page.get_by_role("button", name="Difference", exact=True).click()
    page.get_by_role("option", name="channel 9", exact=True).click()
    gain = page.get_by_label("Gain, exactly")
    gain.fill("250")
    gain.press("Enter")
    wanted, address = state(page), page.evaluate("location.hash")
    assert state(pages.open_again("pair", address)) == wanted


@pytest.mark.slow
def test_tensors_named_in_the_header_are_links(pages: Pages) -> None:
    page = pages.show(tensor="relu_0.tmp_0", mode="split")
    page.evaluate("scrollTo(0, 0)")
    page.locator(".glance").get_by_role("link", name=BROKEN).click()
    expect(page.locator(".tensor-head h3")).to_have_text(BROKEN)
    assert state(page)["mode"] == "split"
    assert page.evaluate("document.getElementById('inspect').getBoundingClientRect().top") < 700
    assert "tensor=" + BROKEN in page.evaluate("location.hash")


def test_back_returns_to_the_previous_view(pages: Pages) -> None:
    page = pages.show(tensor="relu_0.tmp_0")
    press(page, "j")
    expect(page.locator(".tensor-head h3")).to_have_text("stage1/conv.tmp_1")
    page.go_back()
    expect(page.locator(".tensor-head h3")).to_have_text("relu_0.tmp_0")


@pytest.mark.thorough
def test_an_invalid_address_opens_the_page(pages: Pages) -> None:
    pages.show()
    page = pages.open_again("pair", "#%")
    expect(page.locator(".tensor-head h3")).to_have_text(BROKEN)
    for place in (
        {"tensor": "nowhere", "sample": 99, "mode": "evil", "channel": "x", "colours": ""},
        {"tensor": "", "mode": "__proto__", "colours": "constructor", "scale": "NaN"},
        {"tensor": "%", "scale": "1e999", "gain": -1, "colours": "%"},
    ):
        pages.show(**place)
        assert state(page)["mode"] == "side"
        assert (look(page)["colours"], look(page)["scale"] > 0) == ("blue", True)
        expect(page.locator(".tensor-head h3")).to_have_text(BROKEN)


def test_other_samples_show_their_images(pages: Pages) -> None:
    page = pages.show(tensor="conv2d_0.tmp_0")
    picture = page.locator(".fed img")
    first = picture.get_attribute("src")
    press(page, "n")
    expect(picture).not_to_have_attribute("src", first or "")
    expect(picture).to_have_attribute("alt", "Input: receipt_1.png")
    shown = red_green(values(pages, "conv2d_0.tmp_0", "candidate", 1)[0] * look(page)["scale"])
    assert np.abs(pixels(page, 0, 1) - shown).max() <= 1
    assert picture.evaluate("(one) => one.complete && one.naturalWidth") == 160


@pytest.mark.slow
def test_colours_are_kept_for_all_tensors_on_request(pages: Pages) -> None:
    page = pages.show(tensor="conv2d_0.tmp_0")
    page.get_by_label("Scale, exactly").fill("3")
    page.get_by_label("Scale, exactly").press("Enter")
    page.get_by_role("listbox", name="Captured tensors").focus()
    press(page, "j")
    assert look(page)["scale"] != 3
    page.get_by_label("Keep for all tensors").check()
    kept = look(page)["scale"]
    press(page, "j")
    assert look(page)["scale"] == pytest.approx(kept)


# --- other pages, other screens ---


@pytest.mark.thorough
def test_one_model_has_no_comparison_modes(pages: Pages) -> None:
    page = pages.show("single", tensor="conv2d_0.tmp_0")
    assert page.get_by_role("group", name="Show", exact=True).count() == 0
    assert page.locator("[aria-label='channel 0'] canvas").count() == 1
    assert page.locator(".spread-line").count() == 0
    press(page, "m")
    assert state(page)["mode"] == "side"


def test_limits_match_the_format_that_ranges_are_compared_with(pages: Pages) -> None:
    page = pages.show("single", tensor="conv2d_0.tmp_0")
    names = page.locator(".depth .limit-name")
    expect(names).to_have_text(["fp8e4m3's largest", "fp8e4m3's smallest in full", "fp8e4m3's smallest"])
    label = page.locator(".tensor-list .sizes").first.get_attribute("aria-label")
    assert str(label).endswith("fp8e4m3 represents values up to 448")


def test_without_maps_there_are_statistics(pages: Pages) -> None:
    page = pages.show("single", tensor="sigmoid_0.tmp_0")
    expect(page.locator(".maps")).to_contain_text("This page has no map of this tensor.")


def test_hostile_names_stay_text(pages: Pages) -> None:
    page = pages.show("hostile", tensor="")
    assert page.locator("img[src='x']").count() == 0
    expect(page.locator(".tensor-head h3")).to_contain_text("</script><img src=x")
    page.get_by_role("option", name="channel 1", exact=True).click()
    expect(page.locator(".large-view")).to_be_visible()


def test_print_shows_the_tensor_and_its_table(pages: Pages) -> None:
    page = pages.show(tensor="conv2d_0.tmp_0", mode="split")
    page.emulate_media(media="print")
    page.evaluate("dispatchEvent(new Event('beforeprint'))")
    assert page.locator(".on-paper tbody tr").count() == 16
    expect(page.locator("section.static")).to_be_visible()
    expect(page.locator(".colour-legend .on-paper")).to_have_text("Split, reference left of 50.0 %")
    assert page.locator(".tensor-list").is_hidden()
    assert page.locator(".channel-grid canvas").first.is_visible()
    page.evaluate("dispatchEvent(new Event('afterprint'))")
    page.emulate_media(media="screen")
    assert page.locator(".on-paper tbody tr").count() == 0


def test_a_narrow_screen_needs_no_sideways_scrolling(pages: Pages) -> None:
    page = pages.show(tensor=BROKEN)
    page.set_viewport_size({"width": 400, "height": 800})
    settle(page)
    assert page.evaluate("document.documentElement.scrollWidth") <= 400
    page.get_by_role("option", name="channel 2", exact=True).click()
    settle(page)
    assert page.evaluate("document.documentElement.scrollWidth") <= 400
    page.set_viewport_size(SCREEN)


@pytest.mark.slow
def test_without_a_script_there_is_a_table(pages: Pages) -> None:
    page = pages.watch.open(pages.browser, pages.file("pair"), java_script_enabled=False)
    expect(page.locator("section.static")).to_contain_text("batch_norm_7.tmp_2")
    page.context.close()
