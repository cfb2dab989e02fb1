"""The views of a profile in Chromium: a treemap that selects layers, timelines aligned at a mark, published roofs."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect

from ndld_flow import api
from ndld_flow.profiles.compare.measured import Rules
from ndld_flow.profiles.read.read_profile import read_profile
from ndld_flow.report.run_page import draw_profile
from tests.support.a100_exports import a100_exports
from tests.support.report_browser import SharedPages
from tests.support.worker_toys import wait_until

pytestmark = pytest.mark.browser


@pytest.fixture(scope="module")
def shared(browser: Browser) -> SharedPages:
    return SharedPages(browser)


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("engine")
    return draw_profile(read_profile(a100_exports() / "fp32"), "fp32", folder / "fp32.html")


@pytest.mark.thorough
def test_a_tile_of_the_treemap_selects_its_layer(shared: SharedPages, engine: Path) -> None:
    page = shared.show(engine)
    page.get_by_role("tab", name="Treemap").click()
    expect(page.locator("#layers-view")).to_be_hidden()
    tile = page.locator("#treemap .tile[data-layer]").first
    name = tile.locator("bdi").inner_text()
    tile.click()
    expect(page.locator("#layers .grid-row[aria-selected=true] .mono").first).to_have_text(name)
    page.evaluate("location.hash = '#convolutions'")
    expect(page.locator("#convolutions")).to_be_visible()
    expect(page.locator("#treemap")).to_be_hidden()


def test_the_roofline_of_an_import_has_a_roof_for_each_unit(shared: SharedPages, engine: Path) -> None:
    page = shared.show(engine)
    page.locator("[data-live=roofline]").scroll_into_view_if_needed()
    expect(page.locator("[data-live=roofline] .roof")).to_have_count(2)
    expect(page.locator("[data-live=roofline]")).to_contain_text("tensor core TF32: 156 TFLOP/s · 1,935 GB/s")
    expect(page.locator("#layers")).to_contain_text("published for NVIDIA A100 80GB PCIe, at boost clock")


def first_kernels(page: Page) -> list[float]:
    """Return the horizontal positions of the first pixel in the colour of layers, one for each timeline."""
    return page.evaluate(  # type: ignore[no-any-return]
        """() => [...document.querySelectorAll("[data-live=timelines] canvas")].map((canvas) => {
          const { width, height } = canvas;
          const pixels = canvas.getContext("2d").getImageData(0, 0, width, height).data;
          for (let x = Math.round(width * 0.1); x < width; x++) {
            for (let y = Math.round(height * 0.45); y < height * 0.6; y++) {
              const [r, g, b] = pixels.slice(4 * (y * width + x), 4 * (y * width + x) + 3);
              if (Math.max(r, g, b) - Math.min(r, g, b) > 60) return x;
            }
          }
          return -1;
        })"""
    )


@pytest.mark.thorough
def test_timelines_of_several_engines_are_aligned(shared: SharedPages, tmp_path: Path) -> None:
    exports = [str(a100_exports() / name) for name in ("fp32", "fp16", "qat")]
    compared = api.compare(exports, rules=Rules(allow=frozenset({"unknown"})), to=tmp_path / "compared")
    page = shared.show(compared.report)
    page.locator("#timeline").scroll_into_view_if_needed()
    expect(page.locator("[data-live=timelines] canvas")).to_have_count(3)
    align = page.get_by_role("group", name="Align at")
    wait_until(lambda: _spread(first_kernels(page)) <= 2)  # at the first kernel, by default
    align.get_by_role("button", name="pass").click()
    wait_until(lambda: 20 < _spread(first_kernels(page)) < math.inf)


def _spread(positions: list[float]) -> float:
    """Return the distance between the outermost; infinity until every timeline is drawn, each in its own frame."""
    return max(positions) - min(positions) if min(positions) >= 0 else math.inf
