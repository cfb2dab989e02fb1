"""Take pictures of every kind of page, at four widths, light, dark and on paper: `python docs/gallery.py FOLDER`.

Whoever changes a page runs this and looks at `FOLDER/KIND-WIDTH-SCHEME.png`. It also prints what a page requests, its
errors, what axe-core finds at the smallest width (the tests do at a large one), and text wider than the window.
`--page outputs/runs/my/latest/report.html` takes those of a page that exists. It needs `[dev]` and Chromium.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Literal

sys.path.insert(0, str(Path(__file__).parents[1]))
from tests.support.page_kinds import KINDS
from tests.support.report_browser import chromium, wait_until_ready

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

WIDTHS = (390, 768, 1024, 1440)
SCHEMES: tuple[Literal["light", "dark"], ...] = ("light", "dark")
AXE = Path(__file__).parents[1] / "tests/javascript/node_modules/axe-core/axe.min.js"
_PATIENCE_MS = 180_000.0
_DRAWN = "new Promise((drawn) => requestAnimationFrame(() => requestAnimationFrame(() => setTimeout(drawn, 50))))"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--only", default="", help="kinds whose name contains this")
    parser.add_argument("--page", type=Path, action="append", default=[], help="this page instead of the kinds")
    parser.add_argument("--whole", action="store_true", help="the whole page, not only its first screen")
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory() as scratch, chromium() as browser:
        pages = (
            ((path.parent.name or path.stem, path) for path in options.page)
            if options.page
            else draw(options.only, Path(scratch))
        )
        for name, path in pages:
            for complaint in dict.fromkeys(pictures(browser, path, options.folder / name, options.whole)):
                print(f"{name}: {complaint}")


def draw(only: str, scratch: Path) -> Iterator[tuple[str, Path]]:
    """Draw the kinds of page whose name contains `only`, and yield their names and paths."""
    for name, draw_kind in KINDS.items():
        if only in name:
            (scratch / name).mkdir()
            yield name, draw_kind(scratch / name)


def pictures(browser: Browser, path: Path, to: Path, whole: bool) -> Iterator[str]:
    """Write the pictures of a page, which is loaded once, and yield the complaints about it."""
    seen: list[str] = []
    page = browser.new_page(reduced_motion="reduce")
    page.on("pageerror", lambda error: seen.append(f"error {error}"))
    page.on("request", lambda request: seen.append(f"request {request.url}") if "file:" not in request.url else None)
    page.goto(path.resolve().as_uri())
    wait_until_ready(page)
    for width in WIDTHS:
        page.set_viewport_size({"width": width, "height": 900})
        for scheme in SCHEMES:
            page.emulate_media(media="screen", color_scheme=scheme)
            page.evaluate(_DRAWN)
            page.screenshot(path=f"{to}-{width}-{scheme}.png", full_page=whole, timeout=_PATIENCE_MS)
            if (width, scheme) == (WIDTHS[0], SCHEMES[0]):
                yield from violations(page)
        if page.evaluate("document.documentElement.scrollWidth > innerWidth"):
            yield f"{width} is wider than the window"
    page.emulate_media(media="print", color_scheme="light")
    page.set_viewport_size({"width": 794, "height": 1123})  # A4
    page.evaluate("dispatchEvent(new Event('beforeprint'))")
    page.evaluate(_DRAWN)
    page.screenshot(path=f"{to}-print.png", full_page=True, timeout=_PATIENCE_MS)
    page.close()
    yield from seen


def violations(page: Page) -> Iterator[str]:
    """Yield what axe-core finds, with the first element of each finding."""
    if not AXE.is_file():
        return
    page.evaluate(AXE.read_text("utf-8"))
    for violation in page.evaluate("axe.run().then((found) => found.violations)"):
        yield f"axe {violation['id']}: {violation['nodes'][0]['html'][:150]} ({len(violation['nodes'])})"


if __name__ == "__main__":
    main()
