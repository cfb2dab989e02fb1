"""Every kind of page in Chromium with axe-core: nothing may be found, in light and in dark colours."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Literal

import pytest
from playwright.sync_api import Browser

from ndld_flow.report.panel import find_panels
from tests.support.page_kinds import KINDS
from tests.support.report_browser import wait_until_ready
from tests.support.representatives import slow_except

pytestmark = [pytest.mark.browser, pytest.mark.thorough]

SCHEMES: dict[Literal["light", "dark"], str] = {
    "light": "{resultTypes: ['violations']}",
    "dark": "{resultTypes: ['violations'], runOnly: {type: 'rule', values: ['color-contrast', 'link-in-text-block']}}",
}
"""Scheme -> axe-core's options: a page differs in its colours alone. What passes is not described, which takes long."""
NOTE_LOOKS = """() => {
    const numbers = (window.numbers ??= new Map());
    const number = (look) => numbers.get(look) ?? (numbers.set(look, numbers.size), numbers.size - 1);
    const looks = new Map();
    for (const part of document.querySelectorAll("body, body *")) {
        const style = getComputedStyle(part);
        const colours = [style.color, style.backgroundColor, style.backgroundImage, style.opacity];
        const states = [style.position, part.checkVisibility(), part.ariaDisabled, part.hasAttribute("disabled")];
        const within = looks.get(part.parentElement);
        const names = [part.localName, part.className, style.fontSize, style.fontWeight];
        looks.set(part, number([within, ...names, ...colours, ...states].join()));
        if (![...part.childNodes].some((child) => child.nodeType === Node.TEXT_NODE && child.data.trim())) continue;
        part.look = [part.look, looks.get(part), part.textContent.trim().length > 1].join();
    }
}"""
"""Records, for each element with text, its look in this colour scheme and the looks of the elements around it."""
MARK_TWO_OF_EACH = """() => {
    const alike = Map.groupBy(document.querySelectorAll("body, body *"), (part) => part.look);
    alike.delete(undefined);
    for (const parts of alike.values()) for (const part of [parts[0], parts.at(-1)]) part.dataset.judged = "";
}"""
"""Marks the first and the last of the elements that look the same in every colour scheme."""
JUDGE_MARKED = "axe.configure({rules: [{id: 'color-contrast', selector: '[data-judged]'}]})"
"""Limits the contrast rule to marked elements: each takes a millisecond, and a table has thousands."""
REPEATING = {"run", "comparison-of-exports", "short-history"}
"""Pages whose panels are all in others: `optimization`, `comparison-of-twelve`, `history`."""
AXE = Path(__file__).parents[1] / "javascript" / "node_modules" / "axe-core" / "axe.min.js"


def findings(browser: Browser, path: Path) -> dict[str, str]:
    """Return what does not fit a phone, and what axe-core finds with all sections and tabs open: rule -> element."""
    if not AXE.is_file():
        pytest.skip("axe-core is missing: `npm ci` in tests/javascript installs it")
    page = browser.new_page(viewport={"width": 390, "height": 900})
    page.goto(path.as_uri())
    wait_until_ready(page)
    found: dict[str, str] = {}
    if (width := page.evaluate("document.documentElement.scrollWidth")) > 390:
        found["wider than a phone"] = f"{width} pixels"
    page.set_viewport_size({"width": 1400, "height": 900})
    page.evaluate("""() => {
        for (const closed of document.querySelectorAll('.fold[aria-expanded="false"]')) closed.click();
        for (const details of document.querySelectorAll("details")) details.open = true;
        for (const tab of document.querySelectorAll("[role=tab]")) tab.click();
        for (const pane of document.querySelectorAll("[role=tabpanel]")) pane.hidden = false;
    }""")
    for scheme in SCHEMES:
        page.emulate_media(color_scheme=scheme)
        page.evaluate(NOTE_LOOKS)
    page.evaluate(MARK_TWO_OF_EACH)
    page.evaluate(AXE.read_text("utf-8"))
    page.evaluate(JUDGE_MARKED)
    for scheme, options in SCHEMES.items():
        page.emulate_media(color_scheme=scheme)
        for violation in page.evaluate(f"axe.run({options}).then((found) => found.violations)"):
            found[f"{violation['id']}, {scheme}"] = violation["nodes"][0]["html"][:200]
    page.close()
    return found


@pytest.fixture(scope="module")
def drawn(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Draw a kind of page, once."""
    return functools.cache(lambda kind: KINDS[kind](tmp_path_factory.mktemp(kind)))


@pytest.mark.parametrize("kind", slow_except(KINDS, *(KINDS.keys() - REPEATING)))
def test_axe_finds_nothing(kind: str, browser: Browser, drawn: Callable[[str], Path]) -> None:
    assert findings(browser, drawn(kind)) == {}


def test_the_kinds_of_page_have_every_panel(drawn: Callable[[str], Path]) -> None:
    pages = "".join(drawn(kind).read_text("utf-8") for kind in KINDS)
    assert [name for name in find_panels() if f'id="{name}"' not in pages] == []


def test_axe_finds_text_that_is_too_pale(browser: Browser, tmp_path: Path) -> None:
    page = tmp_path / "report.html"
    page.write_text(
        "<html lang=en data-ready><title>t</title><main><h1>t</h1><p style='color: #bbb; background: #fff'>pale</p>"
    )
    assert list(findings(browser, page)) == ["color-contrast, light", "color-contrast, dark"]


@pytest.mark.parametrize(
    "style",
    [
        "td:nth-child(3) { color: #bbb }",
        "tr:nth-child(3) { background: #777 }",
        "@media (prefers-color-scheme: dark) { tr:nth-child(4) td:nth-child(2) { color: #777; background: #888 } }",
    ],
)
def test_axe_finds_one_pale_cell_of_many(style: str, browser: Browser, tmp_path: Path) -> None:
    """Two of the elements that look the same are judged, and each element with a look of its own."""
    page = tmp_path / "report.html"
    row = f"<tr>{'<td>plain</td>' * 4}</tr>"
    page.write_text(
        f"<html lang=en data-ready><title>t</title><style>body {{ color: #444; background: #fff }} {style}</style>"
        f"<main><h1>t</h1><table>{row * 5}</table>"
    )
    schemes = ["dark"] if "dark" in style else ["light", "dark"]
    assert list(findings(browser, page)) == [f"color-contrast, {scheme}" for scheme in schemes]
