"""Engines in a report in Chromium: table, graph, roll-ups and the links between them, without times."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Locator, Page, expect

from ndld_flow.base.quantities import TIMES
from ndld_flow.report.run_page import draw_build, draw_report
from tests.support.engine_samples import build, detector, rtx_build, write_engine_run
from tests.support.report_browser import Watch, rows_of
from tests.support.run_fixtures import HOSTILE_NAMES

pytestmark = pytest.mark.browser


@pytest.fixture(scope="module")
def opened(browser: Browser, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    """One page for all tests; at the end, nothing may have been asked for and nothing complained about."""
    folder = write_engine_run(tmp_path_factory.mktemp("engines"), {"engine": build(), "rtx": rtx_build()})
    watch = Watch()
    page = watch.open(browser, draw_report(folder))
    yield page
    page.context.close()
    watch.check()


@pytest.fixture
def page(opened: Page) -> Page:
    """The page as it was when it opened, the first engine in sight."""
    opened.get_by_role("tab", name="engine").click()
    section(opened).get_by_label("Filter layers").fill("")
    section(opened).get_by_role("grid").focus()
    opened.keyboard.press("Escape")
    return opened


def section(page: Page, place: int = 0) -> Locator:
    return page.locator(f"#engine-{place}")


def names(part: Locator) -> list[str]:
    return part.locator(".grid-row > :nth-child(2)").all_inner_texts()


def heads(part: Locator) -> list[str]:
    return part.locator(".grid-head > div").all_inner_texts()


def saved(page: Page, button: Locator) -> bytes:
    with page.expect_download() as waiting:
        button.click()
    return Path(waiting.value.path()).read_bytes()


def test_columns_match_the_data_of_an_engine(page: Page) -> None:
    part = section(page)
    assert heads(part) == [
        "#", "Name", "Type", "Precision", "Dims", "Format", "Tactic", "Stream", "Role", "ONNX nodes",
    ]  # fmt: skip
    part.get_by_text("Columns", exact=True).click()
    choices = part.locator(".chooser label").all_inner_texts()
    part.get_by_text("Columns", exact=True).click()
    assert not {"Median", "Min", "Max", "% of the time", "TFLOP/s"} & set(choices)
    assert not part.get_by_role("group", name="Heat").count()
    expect(part.locator(".grid-row").first).to_contain_text("Reformatting")


@pytest.mark.thorough
def test_layers_are_sorted_and_filtered(page: Page) -> None:
    part = section(page)
    part.get_by_role("columnheader", name="Name").get_by_role("button").click()
    assert names(part)[0].startswith("/blocks.0/depthwise")
    part.get_by_role("columnheader", name="#").get_by_role("button").click()
    part.get_by_label("Filter layers").fill("precision=float32")
    expect(part.locator(".tools output").first).to_have_text("3 of 72 rows")
    part.get_by_label("Filter layers").fill("onnx:blocks.3/sigmoid")
    expect(part.locator(".grid-row")).to_have_count(1)


def test_a_layer_links_to_its_onnx_nodes_and_neighbours(page: Page) -> None:
    part = section(page)
    part.get_by_label("Filter layers").fill("name:blocks.2/depthwise")
    part.locator(".grid-row").first.click()
    detail = part.locator(".detail")
    expect(detail).to_contain_text("/blocks.2/depthwise/Conv, /blocks.2/depthwise/Relu, /blocks.2/depthwise/Mul")
    expect(detail).to_contain_text("hwc8")
    expect(detail.locator("dt", has_text="Time")).to_have_count(0)
    detail.locator("dt", has_text="Read by").locator("xpath=following-sibling::dd[1]").get_by_role("button").click()
    expect(part.locator('[aria-selected="true"] > :nth-child(2)')).to_have_text("/blocks.2/project/Conv")


def test_csv_has_no_times(page: Page) -> None:
    part = section(page)
    part.get_by_label("Filter layers").fill("type=reformat")
    head, *rows = rows_of(saved(page, part.get_by_role("button", name="CSV of 6 rows")))
    assert "name" in [word.lower() for word in head] and not [word for word in head if "ms" in word.split()]
    assert len(rows) == 6 and {row[2] for row in rows} == {"Reformat"}


def test_json_and_markdown_have_no_times(page: Page) -> None:
    part = section(page)
    text = saved(page, part.get_by_role("button", name="JSON")).decode()
    assert '"onnx_nodes"' in text and "_ms" not in text and "timeline" not in text
    text = saved(page, part.get_by_role("button", name="Markdown")).decode()
    assert "72 layers, not timed." in text and "| float16 | 69 | 95.8 % |" in text


def test_roll_ups_reformats_and_findings_link_to_layers(page: Page) -> None:
    part = section(page)
    part.locator('[data-pick="precision"]', has_text="float32").click()
    expect(part.locator(".tools output").first).to_have_text("3 of 72 rows")
    part.locator('[data-pick="precision"]', has_text="float32").click()
    expect(part.locator(".tools output").first).to_have_text("72 rows")
    part.locator(".insights li", has_text="inputs and outputs").get_by_role("button").click()
    expect(part.locator(".detail")).to_contain_text("2 of 72 rows")
    part.get_by_text("Tensors", exact=True).click()
    part.locator("tr", has_text="output y").get_by_role("button").click()
    expect(part.locator(".detail")).to_contain_text("float32 ?x1x?x? linear".replace("x", TIMES))


def test_the_graph_is_coloured_by_precision_and_finds_onnx_nodes(page: Page) -> None:
    part = section(page)
    part.locator(".graph canvas").first.scroll_into_view_if_needed()
    graph = part.locator(".graph")
    expect(graph).to_have_attribute("data-mode", "precision")
    assert graph.locator(".graph-modes button").all_inner_texts() == ["Precision", "Role", "Type"]
    expect(graph.locator(".graph-legend")).to_have_text("float16 69float32 3")
    graph.get_by_label("Find in graph").fill("blocks.5/sigmoid/sigmoid")
    expect(graph.locator(".graph-tools output")).to_have_text("1 found")
    graph.get_by_label("Find in graph").press("Enter")
    graph.locator("canvas").first.focus()
    page.keyboard.press("Enter")
    expect(part.locator('[aria-selected="true"]')).to_contain_text("PWN")
    graph.get_by_role("button", name="Role").click()
    expect(graph.locator(".graph-legend")).to_have_text("compute 66reformat 6")


def test_each_engine_has_its_tab(page: Page) -> None:
    page.get_by_role("tab", name="engine").focus()
    page.keyboard.press("ArrowRight")
    expect(section(page, 1)).to_be_visible()
    expect(section(page, 0)).to_be_hidden()
    assert "Format" in heads(section(page, 1))
    expect(section(page, 1).locator(".glance")).to_contain_text("TensorRT-RTX 1.7.1.116")


@pytest.mark.parametrize("scheme", ["light", pytest.param("dark", marks=pytest.mark.thorough)])
def test_the_page_fits_a_narrow_screen(browser: Browser, tmp_path: Path, scheme: str) -> None:
    watch = Watch()
    folder = write_engine_run(tmp_path, {"engine": build(), "rtx": rtx_build()})
    page = watch.open(browser, draw_report(folder), viewport={"width": 400, "height": 800}, color_scheme=scheme)
    assert page.evaluate("document.documentElement.scrollWidth") <= 400
    page.context.close()
    watch.check()


@pytest.mark.thorough
def test_an_engine_file_has_a_page_even_without_layers(browser: Browser, tmp_path: Path) -> None:
    watch = Watch()
    page = watch.open(browser, draw_build(build(), "engine", tmp_path / "report.html"))
    expect(page.locator("#engine-0 .grid-row").first).to_be_visible()
    page.context.close()
    page = watch.open(browser, draw_build(build(layers=()), "engine", tmp_path / "report.html"))
    expect(page.locator("#engine-0")).to_contain_text("No layers are known.")
    page.context.close()
    engine = detector()[1].model_copy(update={"name": "", "index": 0})
    page = watch.open(browser, draw_build(build(layers=(engine,)), "", tmp_path / "report.html"))
    expect(page.locator("#engine-0 .grid-row")).to_have_count(1)
    page.context.close()
    watch.check()


def test_hostile_names_do_nothing(browser: Browser, tmp_path: Path) -> None:
    layers = tuple(
        layer.model_copy(update={"name": name, "type": name, "tactic": name, "precision": name, "onnx_nodes": (name,)})
        for layer, name in zip(detector(), HOSTILE_NAMES, strict=False)
    )
    watch = Watch()
    page = watch.open(browser, draw_build(build(layers=layers), HOSTILE_NAMES[0], tmp_path / "report.html"))
    part = section(page)
    part.locator(".grid-row").nth(1).click()
    part.locator(".graph canvas").first.hover(position={"x": 40, "y": 40})
    assert page.evaluate("document.images.length") == 0
    page.context.close()
    watch.check()


@pytest.mark.thorough
def test_unmet_precision_requests_are_marked(browser: Browser, tmp_path: Path) -> None:
    asked = {"/head/Softmax": "fp16", "/head/Resize": "fp32", "/blocks.0/expand/Conv + /blocks.0/expand/Relu": "fp32"}
    layers = tuple(item.model_copy(update={"asked_precision": asked.get(item.name, "")}) for item in detector())
    watch = Watch()
    page = watch.open(browser, draw_report(write_engine_run(tmp_path, {"engine": build(layers=layers)})))
    part = section(page)
    assert heads(part)[3:5] == ["Precision", "Asked"]
    part.get_by_label("Filter layers").fill("asked:fp")
    cells = part.locator(".grid-row > :nth-child(5)")
    assert cells.all_inner_texts() == ["fp32", "fp32", "≠ fp16"]
    head, *rows = rows_of(saved(page, part.get_by_role("button", name="CSV of 3 rows")))
    assert [row[head.index("Asked")] for row in rows] == ["fp32", "fp32", "fp16"]
    assert '"asked_precision": "fp16"' in saved(page, part.get_by_role("button", name="JSON")).decode()
    said = []
    for row in part.locator(".grid-row").all():
        row.click()
        label = part.locator(".detail dt", has_text="Requested")
        said.append(label.locator("xpath=following-sibling::dd[1]").inner_text())
    assert [re.findall(r"fp\d+|float32|\b\d+", text) for text in said] == [["fp32", "2"], ["fp32"], ["fp16", "float32"]]
    page.context.close()
    watch.check()


def test_without_scripts_everything_is_readable(browser: Browser, tmp_path: Path) -> None:
    watch = Watch()
    report = draw_report(write_engine_run(tmp_path, {"engine": build(), "rtx": rtx_build()}))
    page = watch.open(browser, report, java_script_enabled=False)
    for value in (0, 1):
        expect(section(page, value)).to_be_visible()
        expect(section(page, value)).to_contain_text(re.compile("The first 20 of (72|55) layers"))
    page.context.close()
