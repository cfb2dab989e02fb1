"""The graph view in Chromium: mouse, wheel, keyboard, search and colours, without network requests."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, expect

from ndld_flow.base.quantities import MINUS
from tests.support.graph_page import layer, profile_of, residual_profile, write_graph_page
from tests.support.report_browser import Watch
from tests.support.run_fixtures import HOSTILE_NAMES

pytestmark = pytest.mark.browser

# Where the middle of a node is on the screen.
PLACE = """node => {
    const box = view.canvas.getBoundingClientRect();
    const [x, y] = view.data.centre(node);
    return [box.left + (x - view.view.x) * view.view.scale, box.top + (y - view.view.y) * view.view.scale];
}"""
# Its colour, near its left end where no letter is.
COLOUR = """async node => {
    await new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)));
    const [x, y] = [view.data.x[node] + 5, view.data.y[node] + view.data.nodeHeight / 2];
    const copy = Object.assign(document.createElement("canvas"), { width: 1, height: 1 });
    const context = copy.getContext("2d", { willReadFrequently: true });
    const at = [x - view.view.x, y - view.view.y].map((length) => Math.round(length * view.view.scale));
    context.drawImage(view.canvas, ...at, 1, 1, 0, 0, 1, 1);
    return [...context.getImageData(0, 0, 1, 1).data];
}"""


@pytest.fixture(scope="module")
def watch() -> Iterator[Watch]:
    watching = Watch()
    yield watching
    watching.check()


@pytest.fixture(scope="module")
def chain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_graph_page(residual_profile(40), tmp_path_factory.mktemp("chain"))


@pytest.fixture
def page(browser: Browser, watch: Watch, chain: Path) -> Iterator[Page]:
    opened = watch.open(browser, chain)
    yield opened
    opened.context.close()


def place(page: Page, node: int) -> Any:
    """x and y."""
    return tuple(page.evaluate(PLACE, node))


def colour(page: Page, node: int) -> tuple[int, ...]:
    return tuple(page.evaluate(COLOUR, node))


def state(page: Page, name: str) -> Any:
    return page.evaluate(f"view.state.{name}")


def scale(page: Page) -> float:
    return float(page.evaluate("view.view.scale"))


def in_sight(page: Page, node: int) -> bool:
    return bool(page.evaluate("node => view.inSight(node)", node))


@pytest.mark.thorough
def test_the_whole_graph_is_visible_at_first(page: Page) -> None:
    assert all(in_sight(page, node) for node in range(42))
    expect(page.locator(".graph-map")).to_be_hidden()
    expect(page.locator(".graph-legend")).to_contain_text("1.07 ms")


def test_a_click_selects_a_layer_and_the_background_deselects_it(page: Page) -> None:
    page.mouse.click(*place(page, 7))
    assert page.evaluate("picked") == [7]
    assert state(page, "active") == 7
    expect(page.locator(".graph-tools output")).to_contain_text("Cast")
    box = page.locator(".graph-stage").bounding_box()
    assert box is not None
    page.mouse.click(box["x"] + 3, box["y"] + 3)
    assert page.evaluate("picked") == [7, -1]
    assert state(page, "active") == -1


def test_an_input_of_the_model_is_not_a_layer(page: Page) -> None:
    page.mouse.click(*place(page, 40))
    assert page.evaluate("picked") == []
    expect(page.locator(".graph-tools output")).to_have_text("x, input")


@pytest.mark.thorough
def test_a_drag_moves_the_graph_and_selects_nothing(page: Page) -> None:
    x, y = place(page, 7)
    page.mouse.move(x, y)
    page.mouse.down()
    page.mouse.move(x + 50, y + 20, steps=4)
    page.mouse.up()
    assert place(page, 7) == (pytest.approx(x + 50), pytest.approx(y + 20))
    assert page.evaluate("picked") == []
    page.get_by_role("button", name="Show all").click()
    assert place(page, 7) == (pytest.approx(x), pytest.approx(y))


@pytest.mark.thorough
def test_the_wheel_with_ctrl_zooms_around_the_pointer(page: Page) -> None:
    x, y = place(page, 12)
    before = scale(page)
    page.mouse.move(x, y)
    page.mouse.wheel(0, -300)  # nobody clicked in: the page may scroll
    assert scale(page) == before
    page.keyboard.down("Control")
    page.mouse.wheel(0, -300)
    page.keyboard.up("Control")
    page.wait_for_function("before => view.view.scale > 1.5 * before", arg=before)
    assert place(page, 12) == (pytest.approx(x, abs=1), pytest.approx(y, abs=1))
    expect(page.locator(".graph-map")).to_be_visible()
    page.mouse.click(x, y)
    zoomed = scale(page)
    page.mouse.wheel(0, 200)
    page.wait_for_function("before => view.view.scale < before", arg=zoomed)


@pytest.mark.thorough
def test_zoom_is_limited(page: Page) -> None:
    for _ in range(30):
        page.get_by_role("button", name="Zoom in").click()
    assert scale(page) == 4
    for _ in range(60):
        page.get_by_role("button", name="Zoom out").click()
    assert 0 < scale(page) < 1


@pytest.mark.thorough
def test_a_click_on_the_minimap_scrolls_there(page: Page) -> None:
    page.evaluate("view.zoomBy(6)")
    map_ = page.locator(".graph-map")
    expect(map_).to_be_visible()
    box = map_.bounding_box()
    assert box is not None
    target = page.evaluate("[...view.data.centre(39)].map((value) => value * view.map.scale)")
    page.mouse.click(box["x"] + target[0], box["y"] + target[1])
    assert in_sight(page, 39)
    assert not in_sight(page, 0)


def test_search_finds_dims_and_steps_through_matches(page: Page) -> None:
    field = page.get_by_label("Find in graph of test")
    calm = colour(page, 1)
    field.fill("MATMUL")
    element = page.locator(".graph-tools output")
    expect(element).to_have_text("5 found")
    assert colour(page, 1) != calm  # all others step back
    field.press("Enter")
    expect(element).to_have_text("1 of 5")
    assert state(page, "active") == 3 and in_sight(page, 3)
    field.press("Enter")
    assert state(page, "active") == 11
    field.press("Shift+Enter")
    assert state(page, "active") == 3
    field.fill("layer_39 cast")
    expect(element).to_have_text("1 found")
    field.fill("nothing like it")
    expect(element).to_have_text("0 found")
    field.press("Enter")
    field.press("Escape")
    expect(field).to_have_value("")
    assert colour(page, 1)[:3] != (0, 0, 0) and state(page, "found") is None


def test_the_graph_works_by_keyboard_alone(page: Page) -> None:
    page.get_by_label("Find in graph of test").press("ArrowDown")
    expect(page.locator(".graph-stage canvas").first).to_be_focused()
    page.keyboard.press("ArrowDown")
    assert state(page, "active") == 0
    for _ in range(3):
        page.keyboard.press("ArrowDown")
    assert state(page, "active") == 3
    page.keyboard.press("ArrowUp")
    assert state(page, "active") == 2
    page.keyboard.press("Enter")
    assert page.evaluate("picked") == [2]
    before = scale(page)
    page.keyboard.press("+")
    assert scale(page) == pytest.approx(before * 1.4)
    page.keyboard.press("-")
    assert scale(page) == pytest.approx(before)
    at = page.evaluate("view.view.x")
    page.keyboard.press("Shift+ArrowRight")
    assert page.evaluate("view.view.x") > at
    page.keyboard.press("0")
    assert page.evaluate("view.view.x") == pytest.approx(at)
    page.keyboard.press("End")
    assert state(page, "active") == 39
    page.keyboard.press("Home")
    assert state(page, "active") == 0
    page.keyboard.press("Escape")
    assert page.evaluate("picked") == [2, -1]
    page.keyboard.press("Tab")  # nothing holds the keyboard back
    expect(page.locator(".graph-stage canvas").first).not_to_be_focused()


@pytest.mark.thorough
def test_the_active_node_stays_visible(page: Page) -> None:
    page.evaluate("view.zoomBy(8)")
    page.locator(".graph-stage canvas").first.focus()
    page.keyboard.press("Home")
    for _ in range(12):
        page.keyboard.press("ArrowDown")
        assert in_sight(page, state(page, "active"))


def test_marked_layers_become_visible(page: Page) -> None:
    page.evaluate("view.zoomBy(8)")
    assert not in_sight(page, 30)
    page.evaluate("view.mark([30, 31])")
    assert in_sight(page, 30)
    assert page.evaluate("[...view.state.marked]") == [30, 31]
    page.evaluate("view.mark([])")
    assert page.evaluate("view.state.marked.size") == 0


def test_colour_modes_change_the_colours(page: Page) -> None:
    heat = [colour(page, node) for node in (0, 20, 39)]
    assert len(set(heat)) == 3
    buttons = page.get_by_role("group", name="Colour by")
    buttons.get_by_role("button", name="Type").click()
    assert colour(page, 0) == colour(page, 8) != colour(page, 1)  # Conv, Conv, Relu
    legend = page.locator(".graph-legend")
    expect(legend).to_contain_text("Convolution")
    expect(legend).not_to_contain_text("Control flow")
    buttons.get_by_role("button", name="precision").click()
    assert colour(page, 0) == colour(page, 3) != colour(page, 1)
    expect(legend).to_contain_text("float32 26")
    expect(legend).to_contain_text("float16 14")
    buttons.get_by_role("button", name="role").click()
    assert colour(page, 0) == colour(page, 1)
    expect(buttons.get_by_role("button", name="role")).to_have_attribute("aria-pressed", "true")
    expect(buttons.get_by_role("button", name="Type")).to_have_attribute("aria-pressed", "false")


def test_changes_are_blue_when_faster_and_orange_when_slower(page: Page) -> None:
    page.evaluate("view.setMode('delta')")
    none, same, slower, quicker = (colour(page, node) for node in range(4, 8))
    assert quicker[2] > quicker[0] + 60  # blue over red
    assert slower[0] > slower[2] + 60
    assert max(same[:3]) - min(same[:3]) < 12
    assert none != same
    expect(page.locator(".graph-legend")).to_contain_text(f"faster: {MINUS}50.0 %")
    expect(page.locator(".graph-legend")).to_contain_text("no pair")


@pytest.mark.thorough
def test_new_modes_keep_the_current_one_while_it_exists(page: Page) -> None:
    page.evaluate("view.setMode('delta')")
    page.evaluate("view.setModes([familyMode(graph), deltaMode({ ratio: () => 2 })])")
    expect(page.locator(".graph")).to_have_attribute("data-mode", "delta")
    assert colour(page, 1)[0] > colour(page, 1)[2] + 60
    page.evaluate("view.setModes([familyMode(graph)])")
    expect(page.locator(".graph")).to_have_attribute("data-mode", "family")
    expect(page.get_by_role("group", name="Colour by")).to_be_hidden()


@pytest.mark.thorough
def test_a_tooltip_matches_the_page(page: Page) -> None:
    page.mouse.move(*place(page, 5))
    expect(page.locator(".tooltip")).to_have_text("layer_5\n225 µs")
    page.mouse.move(5, 5)
    expect(page.locator(".tooltip")).to_be_hidden()


def test_dark_and_light_themes_have_their_colours(page: Page) -> None:
    light = colour(page, 0)
    page.evaluate("document.documentElement.dataset.theme = 'dark'")
    dark = colour(page, 0)
    assert sum(dark[:3]) < sum(light[:3]) - 200
    page.evaluate("document.documentElement.dataset.theme = 'light'")
    assert colour(page, 0) == light


@pytest.mark.thorough
def test_resizing_fits_the_graph_again(page: Page) -> None:
    page.set_viewport_size({"width": 700, "height": 800})
    page.wait_for_function("view.canvas.clientWidth < 700")
    page.wait_for_function("view.inSight(0) && view.inSight(39) && view.inSight(20)")


def test_a_hidden_view_is_drawn_when_it_is_shown(browser: Browser, watch: Watch, tmp_path: Path) -> None:
    hidden = write_graph_page(residual_profile(12), tmp_path, "document.getElementById('host').hidden = true;")
    page = watch.open(browser, hidden)
    page.evaluate("document.getElementById('host').hidden = false")
    page.wait_for_function("view.inSight(0) && view.inSight(11)")
    assert colour(page, 0)[3] == 255
    page.context.close()


def test_hostile_names_are_text(browser: Browser, watch: Watch, tmp_path: Path) -> None:
    names = [*HOSTILE_NAMES, "n" * 10_000]
    layers = [
        layer(index, [f"t{index - 1}" if index else "x"], [f"t{index}"]).model_copy(update={"name": name, "type": name})
        for index, name in enumerate(names)
    ]
    page = watch.open(browser, write_graph_page(profile_of(layers, inputs=["x", *names]), tmp_path))
    page.evaluate("view.setMode('precision'); view.setModes([kinds('name'), kinds('type')]); view.fit()")
    for node in range(len(names)):
        page.mouse.move(*place(page, node))
        page.mouse.click(*place(page, node))
    assert page.evaluate("picked") == list(range(len(names)))
    for name in names:
        page.get_by_label("Find in graph of test").fill(name[:200].replace("\n", " "))
    assert page.locator("main script, main b, main img").count() == 0
    page.context.close()


def test_a_layer_that_reads_its_own_output_is_drawn(browser: Browser, watch: Watch, tmp_path: Path) -> None:
    """Circles and names written twice: a body that ran again."""
    layers = [
        layer(0, ["x", "t2"], ["t0"]),
        layer(1, ["t0"], ["t1"]),
        layer(2, ["t1"], ["t2"]),
        layer(3, ["t2"], ["t0"]),
    ]
    page = watch.open(browser, write_graph_page(profile_of(layers), tmp_path))
    page.mouse.click(*place(page, 3))
    assert page.evaluate("picked") == [3]
    page.context.close()


@pytest.mark.thorough
def test_thousands_of_layers_are_drawn_in_time(browser: Browser, watch: Watch, tmp_path: Path) -> None:
    page = watch.open(browser, write_graph_page(residual_profile(5000), tmp_path))
    assert in_sight(page, 0) and scale(page) >= 0.5, "the beginning can be read at first"
    page.get_by_role("button", name="Show all").click()
    assert in_sight(page, 0) and in_sight(page, 4999)
    page.get_by_label("Find in graph of test").fill("layer_4321")
    page.keyboard.press("Enter")
    assert in_sight(page, 4321)
    page.mouse.click(*place(page, 4321))
    assert page.evaluate("picked") == [4321]
    page.context.close()


def test_unknown_edges_are_reported(browser: Browser, watch: Watch, tmp_path: Path) -> None:
    layers = [layer(index, [], []).model_copy(update={"index": index}) for index in range(5)]
    page = watch.open(browser, write_graph_page(profile_of(layers), tmp_path))
    expect(page.locator(".graph-hint")).to_contain_text(re.compile("follow the order of execution"))
    page.locator(".graph-stage canvas").first.focus()
    for _ in range(3):
        page.keyboard.press("ArrowDown")
    assert state(page, "active") == 2
    page.context.close()


def test_a_block_opens_at_a_click(browser: Browser, watch: Watch, tmp_path: Path) -> None:
    page = watch.open(browser, write_graph_page(residual_profile(64), tmp_path))
    expect(page.get_by_role("button", name="Blocks")).to_have_attribute("aria-pressed", "true")
    assert page.evaluate("view.data.layers") == 16  # Conv, Relu and Add; MatMul and the four after it
    assert page.evaluate("view.words(1)") == ["MatMul", "Reshape · MaxPool · LayerNormalization · Cast", "891 µs"]
    page.mouse.click(*place(page, 1))
    assert page.evaluate("picked") == [], "a block is no layer"
    assert page.evaluate("view.data.layers") == 64
    assert page.evaluate("[...view.state.marked]") == [3, 4, 5, 6, 7]
    assert all(in_sight(page, node) for node in range(3, 8))
    page.mouse.click(*place(page, 4))
    assert page.evaluate("picked") == [4]
    page.get_by_role("button", name="Blocks").click()
    page.evaluate("view.setMode('latency'); view.setModes([{ ...familyMode(graph), ofBlocks: undefined }])")
    expect(page.locator(".graph")).to_have_attribute("data-mode", "family")
    assert page.evaluate("view.data.layers") == 64, "blocks cannot show what cannot be added up"
    expect(page.get_by_role("button", name="Blocks")).to_be_hidden()
    page.evaluate("view.setModes([familyMode(graph)])")
    expect(page.get_by_role("button", name="Blocks")).to_be_visible()
    page.context.close()


def test_a_large_block_opens_into_blocks(browser: Browser, watch: Watch, tmp_path: Path) -> None:
    profile = residual_profile(1470)
    layers = [
        layer.model_copy(update={"name": f"/layers.{index // 49}/part{index // 7 % 7}/op{index}"})
        for index, layer in enumerate(profile.layers)
    ]
    page = watch.open(browser, write_graph_page(profile.model_copy(update={"layers": tuple(layers)}), tmp_path))
    assert page.evaluate("view.data.layers") == 30
    assert page.evaluate("view.words(2)[0]") == "layers.2"
    page.mouse.click(*place(page, 2))
    assert page.evaluate("view.data.layers") == 210
    assert page.evaluate("[...view.state.marked]") == list(range(14, 21))
    assert page.evaluate("view.words(15)[0]") == "part1"
    expect(page.get_by_role("button", name="Inner blocks")).to_have_attribute("aria-pressed", "true")
    page.mouse.click(*place(page, 15))
    assert page.evaluate("view.data.layers") == 1470
    assert page.evaluate("[...view.state.marked]") == list(range(105, 112))
    assert all(in_sight(page, node) for node in range(105, 112))
    page.get_by_role("button", name="Blocks", exact=True).click()
    assert page.evaluate("[...view.state.marked]") == [2]
    page.context.close()


@pytest.mark.thorough
def test_blocks_show_what_is_found_and_marked_inside_them(browser: Browser, watch: Watch, tmp_path: Path) -> None:
    page = watch.open(browser, write_graph_page(residual_profile(64), tmp_path))
    page.evaluate("view.mark([12, 13])")
    assert page.evaluate("[...view.state.marked]") == [3]
    page.get_by_label("Find in graph of test").fill("layer_6 Norm")
    assert page.evaluate("[...view.state.found]") == [1, 15]  # layer_6 and layer_62
    page.keyboard.press("Enter")
    assert page.evaluate("view.data.layers") == 64 and state(page, "active") == 6
    page.get_by_role("button", name="Blocks").click()
    assert page.evaluate("[...view.state.marked]") == [3]
    assert page.evaluate("[...view.state.found]") == [1, 15]  # layer_6 and layer_62
    for mode in ("family", "precision", "delta", "latency"):
        page.evaluate("mode => view.setMode(mode)", mode)
        assert colour(page, 1)[3] == 255
    page.evaluate("view.setMode('precision')")
    assert page.evaluate("view.words(1)[2]") == "several", "layers of two precisions have no common one"
    page.locator(".graph-stage canvas").first.focus()
    page.keyboard.press("Home")
    page.keyboard.press("Enter")
    assert page.evaluate("view.data.layers") == 64 and page.evaluate("[...view.state.marked]") == [0, 1, 2]
    page.context.close()
