"""The page of a model in Chromium: panels, links, bodies, search and addresses, without network requests."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import onnx
import pytest
from onnx import helper
from playwright.sync_api import Browser, Page, expect

from ndld_flow import api
from tests.support.models import make_cnn, make_ctrl, make_func, save, tensor
from tests.support.models_engine import constrain
from tests.support.report_browser import Watch

pytestmark = pytest.mark.browser

PLACE = """local => {
    const { view } = model;
    const box = view.canvas.getBoundingClientRect();
    const [x, y] = view.data.centre(local);
    return [box.left + (x - view.view.x) * view.view.scale, box.top + (y - view.view.y) * view.view.scale];
}"""


@pytest.fixture(scope="module")
def watch() -> Iterator[Watch]:
    watching = Watch()
    yield watching
    watching.check()


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """`report.html` in folders of their own: that is the only file a page may ask for."""
    folder = tmp_path_factory.mktemp("pages")
    models = {"cnn": make_cnn(folder / "cnn.onnx"), "ctrl": make_ctrl(folder / "ctrl.onnx")}
    models["func"] = make_func(folder / "func.onnx")
    constrain(models["cnn"], Conv_0="fp32")
    nodes = [helper.make_node("Relu", [f"t{at}"], [f"t{at + 1}"], f"relu_{at}") for at in range(300)]
    graph = helper.make_graph(nodes, "g", [tensor("t0", [1])], [tensor("t300", [1])])
    models["long"] = save(
        helper.make_model(graph, ir_version=8, opset_imports=[helper.make_opsetid("", 17)]), folder / "long.onnx"
    )
    return {name: api.draw(path, folder / name / "report.html") for name, path in models.items()}


class Pages:
    def __init__(self, browser: Browser, watch: Watch, files: dict[str, Path]) -> None:
        self.browser, self.watch, self.files = browser, watch, files
        self.opened: list[Page] = []

    def open(self, name: str, address: str = "", **options: Any) -> Page:
        page = self.watch.open(self.browser, self.files[name], **options)
        self.opened.append(page)
        if address:
            page.evaluate("address => { location.hash = address; }", address)
        return page


@pytest.fixture
def show(browser: Browser, watch: Watch, pages: dict[str, Path]) -> Iterator[Pages]:
    shown = Pages(browser, watch, pages)
    yield shown
    for page in shown.opened:
        page.context.close()


def expect_active(page: Page, node: int) -> None:
    """Wait until a node of the graph that is shown is the active one."""
    page.wait_for_function("node => model.view.state.active === node", arg=node)


def local(page: Page, operator: str, nth: int = 0) -> int:
    """The nth node of an operator in the graph that is shown."""
    found: list[int] = page.evaluate(
        """operator => {
            const { first, length } = model.data.scopes[model.place.scope];
            const all = Array.from({ length }, (_, at) => at);
            return all.filter((at) => model.data.nodes.operator[first + at] === operator);
        }""",
        operator,
    )
    return found[nth]


def click(page: Page, node: int, **options: Any) -> None:
    x, y = page.evaluate(PLACE, node)
    page.mouse.click(x, y, **options)


def until(page: Page, expression: str) -> None:
    """Wait for it; the page's policy forbids what `wait_for_function` does."""
    deadline = time.monotonic() + 60
    while not page.evaluate(expression):
        assert time.monotonic() < deadline, expression
        time.sleep(0.01)


def scope(page: Page) -> str:
    return str(page.evaluate("model.data.scopes[model.place.scope].address"))


def panel(page: Page) -> Any:
    return page.locator("#chosen")


def test_a_click_shows_all_facts_of_a_node(show: Pages) -> None:
    page = show.open("cnn")
    expect(page.locator("#summary")).to_contain_text("ai.onnx 17")
    click(page, local(page, "Conv"))
    for part in (
        "Conv_0",
        "kernel_shape",
        "[3, 3]",
        '"NOTSET" (default)',
        "Requested precision",
        "fp32",
        "After it: 1",
    ):
        expect(panel(page)).to_contain_text(part)
    expect(panel(page)).to_contain_text("The convolution operator consumes an input tensor and a filter")
    expect(page.locator("#summary")).to_be_hidden()
    assert page.evaluate("location.hash") == "#node=Conv_0"
    page.keyboard.press("Escape")
    expect(page.locator("#summary")).to_be_visible()
    assert page.evaluate("model.place.node") == -1


def test_links_go_from_node_to_tensor_to_node(show: Pages) -> None:
    page = show.open("cnn")
    click(page, local(page, "Conv"))
    panel(page).locator("ol.ports a").nth(1).click()
    until(page, "model.place.tensor >= 0")
    weight = page.evaluate("model.data.tensors.name[model.place.tensor]")
    expect(panel(page).locator("h1")).to_have_text(weight)
    for part in ("initializer", "float32", "Range", "Mean, deviation", "Zeros", "The first 64 values", "Read by 1"):
        expect(panel(page)).to_contain_text(part)
    assert panel(page).locator(".histogram rect").count() == 24
    assert page.evaluate("[...model.view.state.marked]") == [local(page, "Conv")]
    panel(page).get_by_role("link", name="Conv_0").click()
    expect(panel(page).locator("h1")).to_have_text("Conv_0")
    expect_active(page, local(page, "Conv"))
    page.go_back()
    expect(panel(page).locator("h1")).to_have_text(weight)


@pytest.mark.thorough
def test_an_input_of_the_model_is_a_tensor(show: Pages) -> None:
    page = show.open("cnn")
    click(page, page.evaluate("model.data.scopes[0].length"))
    expect(panel(page).locator(".kind")).to_have_text("input")
    page.keyboard.press("Escape")
    page.locator("#summary").get_by_role("link", name="x", exact=True).click()
    expect(panel(page).locator("h1")).to_have_text("x")
    expect_active(page, page.evaluate("model.data.scopes[0].length"))


def test_bodies_can_be_opened_and_closed(show: Pages) -> None:
    page = show.open("ctrl")
    loop = local(page, "Loop")
    x, y = page.evaluate(PLACE, loop)
    page.mouse.dblclick(x, y)
    until(page, "model.place.scope > 0")
    assert scope(page).endswith("/body")
    expect(panel(page)).to_contain_text("Used by 1")
    expect(panel(page)).to_contain_text("body_carried")
    page.locator(".graph-stage canvas").first.focus()
    page.keyboard.press("Backspace")
    until(page, "model.place.scope === 0")
    expect_active(page, loop)  # where it was opened
    page.locator(".graph-stage canvas").first.focus()
    page.keyboard.press("Enter")
    until(page, "model.place.scope > 0")
    page.locator(".trail a").first.click()
    until(page, "model.place.scope === 0")


@pytest.mark.thorough
def test_branches_are_side_by_side(show: Pages) -> None:
    page = show.open("ctrl")
    click(page, local(page, "If"))
    panel(page).get_by_role("link", name="then_branch").click()
    until(page, "model.place.scope > 0")
    before = scope(page)
    page.locator(".trail").get_by_role("link", name="else_branch").click()
    after = before.replace("then_branch", "else_branch")
    until(page, f"model.data.scopes[model.place.scope].address === {after!r}")


@pytest.mark.thorough
def test_functions_list_their_callers(show: Pages) -> None:
    page = show.open("func")
    page.locator("#bodies").get_by_role("link", name="local::Block").click()
    expect(panel(page)).to_contain_text("Used by 2")
    assert scope(page) == "local::Block"
    x, y = page.evaluate(PLACE, local(page, "local::Linear"))
    page.mouse.dblclick(x, y)
    until(page, "model.data.scopes[model.place.scope].address === 'local::Linear'")
    panel(page).get_by_role("link", name="linear").first.click()
    until(page, "model.place.node >= 0")


def test_an_address_restores_the_view(show: Pages) -> None:
    page = show.open("ctrl")
    page.evaluate("model.enter(model.data.scopes[0].first + model.data.scopes[0].graph.composite.at(-1))")
    until(page, "model.place.scope > 0")
    click(page, 1)
    until(page, "model.place.node >= 0")
    address, name = page.evaluate("location.hash"), panel(page).locator("h1").inner_text()
    again = show.open("ctrl")
    again.goto(again.url.split("#")[0] + address)
    again.reload()
    again.wait_for_selector("html[data-ready]", state="attached")
    expect(panel(again).locator("h1")).to_have_text(name)
    assert scope(again) == scope(page)
    until(again, "model.view.inSight(model.view.state.active)")
    for lost in ("#node=gone", "#scope=gone&node=@9999", "#tensor=@-3", "#%%%"):
        again.evaluate("lost => { location.hash = lost; }", lost)
        until(again, "model.place.node === -1 && model.place.tensor === -1")
        assert scope(again) == ""


@pytest.mark.thorough
def test_an_address_in_a_large_graph_is_shown_close(show: Pages) -> None:
    page = show.open("long")
    assert page.evaluate("model.view.view.scale") >= 0.5  # its beginning
    assert not page.evaluate("model.view.inSight(model.view.data.layers - 1)")
    page.goto(page.url + "#node=relu_1")
    page.reload()
    page.wait_for_selector("html[data-ready]", state="attached")
    assert page.evaluate("model.view.view.scale") > 0.45
    assert page.evaluate("model.view.inSight(1)")


def test_search_goes_through_all_graphs(show: Pages) -> None:
    page = show.open("ctrl")
    page.keyboard.press("/")
    field, found = page.locator("#find"), page.locator("#found")
    expect(field).to_be_focused()
    page.keyboard.type("body_carried")
    expect(found).to_have_text("1 found")
    field.press("Enter")
    expect(found).to_have_text("1 of 1")
    until(page, "model.place.scope > 0")
    expect(panel(page).locator("h1")).to_have_text("body_carried")
    field.fill("ADD")
    hits = page.locator("#hits button")
    count = hits.count()
    assert count > 1
    field.press("Shift+Enter")
    expect(found).to_have_text(f"{count} of {count}")
    field.press("Enter")
    expect(found).to_have_text(f"1 of {count}")
    page.get_by_role("button", name="Next hit").click()
    expect(found).to_have_text(f"2 of {count}")
    hits.nth(0).click()
    expect(page.locator('#hits [aria-current="true"]')).to_have_text(hits.nth(0).inner_text())
    field.fill("nothing like it")
    expect(page.locator("#hits")).to_contain_text("No node, tensor or operator")
    field.press("Enter")
    field.press("Escape")
    expect(page.locator("#hits")).to_be_hidden()
    assert page.evaluate("model.view.state.found") is None


@pytest.mark.thorough
def test_an_operator_marks_its_nodes(show: Pages) -> None:
    page = show.open("cnn")
    operator = page.locator('[data-operator="Conv"]')
    times = int(operator.locator("xpath=..").locator(".quiet").inner_text())
    operator.click()
    expect(page.locator("#found")).to_have_text(f"{times} found")
    assert page.evaluate("model.view.state.found.size") == times


def test_a_long_attribute_is_shown_on_demand(browser: Browser, watch: Watch, tmp_path: Path) -> None:
    node = helper.make_node("Custom", ["x"], ["y"], "long", domain="own", text="a" * 500, many=list(range(3000)))
    graph = helper.make_graph([node], "g", [tensor("x", [1])], [tensor("y", [1])])
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("own", 1)]
    api.draw(
        save(helper.make_model(graph, ir_version=8, opset_imports=opsets), tmp_path / "m.onnx"),
        tmp_path / "report.html",
    )
    page = watch.open(browser, tmp_path / "report.html")
    click(page, 0)
    row = panel(page).locator("tr", has_text="text")
    assert len(row.inner_text()) < 200
    row.get_by_role("button", name="show all").click()
    assert "a" * 500 in row.inner_text()
    page.context.close()


def test_hostile_names_do_nothing(browser: Browser, watch: Watch, tmp_path: Path) -> None:
    evil = "</script><img src=x onerror=alert(1)>&lt;"
    branches = {
        f"{word}_branch": helper.make_graph(
            [helper.make_node("Identity", ["x" + evil], [word + evil], evil)], evil, [], [tensor(word + evil, [1])]
        )
        for word in ("then", "else")
    }
    nodes = [
        helper.make_node("Evil" + evil, ["x" + evil], ["c" + evil], evil, domain=evil, attr=evil, doc_string=evil),
        helper.make_node("If", ["c" + evil], ["y" + evil], 'a"b' + evil, **branches),
    ]
    graph = helper.make_graph(nodes, evil, [tensor("x" + evil, [1])], [tensor("y" + evil, [1])])
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid(evil, 1)]
    model = helper.make_model(graph, ir_version=8, opset_imports=opsets, producer_name=evil, doc_string=evil)
    onnx.save(model, tmp_path / "m.onnx")
    page = watch.open(browser, api.draw(tmp_path / "m.onnx", tmp_path / "report.html"))
    click(page, 0)
    expect(panel(page).locator("h1")).to_have_text(evil)
    click(page, 1)
    panel(page).get_by_role("link", name="then_branch").click()
    until(page, "model.place.scope > 0")
    page.locator("#find").fill("<img")
    page.locator("#find").press("Enter")
    assert page.locator("img").count() == 0
    page.context.close()


@pytest.mark.thorough
def test_the_page_works_dark_narrow_and_printed(show: Pages) -> None:
    page = show.open("cnn", color_scheme="dark", viewport={"width": 420, "height": 800})
    assert page.evaluate("document.documentElement.scrollWidth") <= 420
    page.get_by_role("button", name="Change between light and dark").click()
    assert page.evaluate("document.documentElement.dataset.theme") == "light"
    page.locator("#stage").scroll_into_view_if_needed()
    click(page, local(page, "Conv"))
    expect(panel(page).locator("h1")).to_have_text("Conv_0")
    page.get_by_role("button", name="Change between light and dark").click()
    page.evaluate(
        "addEventListener('beforeprint', () => { globalThis.printed = document.documentElement.dataset.theme; })"
    )
    assert len(page.pdf()) > 5000
    assert page.evaluate("printed") == "light"
    assert page.evaluate("document.documentElement.dataset.theme") == "dark"


def test_without_scripts_the_model_is_summarized(browser: Browser, watch: Watch, pages: dict[str, Path]) -> None:
    page = watch.open(browser, pages["cnn"], java_script_enabled=False)
    for part in ("cnn.onnx", "ai.onnx 17", "Operators", "Conv"):
        expect(page.locator("#summary")).to_contain_text(part)
    page.context.close()
