"""Take the pictures of the documentation from real runs: `python docs/screenshots.py`, in a clone.

It runs the quickstart, opens the pages in Chromium and writes
`docs/images/*.png`. The run stays in `outputs/`, so that a second call is quick. It needs
`[dev]` (playwright) and Chromium.
"""

from __future__ import annotations

import argparse
import io
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from PIL import Image

from ndld_flow import api

if TYPE_CHECKING:
    from playwright.sync_api import Page

IMAGES = Path(__file__).parent / "images"
SIZE = {"width": 1180, "height": 760}
"""CSS pixels of a picture: the width of a page of the documentation, legible when it is scaled down."""
LARGEST = 200_000
"""Bytes of one picture."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--outputs", default="outputs", help="folder of the runs (default: outputs)")
    outputs: str = parser.parse_args().outputs
    finished = api.run("pipelines/quickstart.yaml", outputs=outputs)
    report = Path(finished.report)
    IMAGES.mkdir(exist_ok=True)
    take(report, "report.png")
    take(report, "layers.png", lambda page: scroll_to(page, "Layers"))
    take(report, "power.png", lambda page: scroll_to(page, "What the check would notice"))
    take(Path(finished.folder, "decide", "comparison.html"), "comparison.png")


def take(page_file: Path, name: str, arrange: Callable[[Page], None] = lambda page: None) -> None:
    """Write a picture of a page; `arrange` scrolls or clicks before it is taken."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        program = shutil.which("chromium-headless-shell")
        browser = playwright.chromium.launch(executable_path=program, args=["--no-sandbox"])
        page = browser.new_page(viewport=SIZE, color_scheme="light")  # type: ignore[arg-type]
        page.goto(page_file.resolve().as_uri())
        page.wait_for_selector("html[data-ready]", state="attached")
        arrange(page)
        picture = page.screenshot()
        browser.close()
    write_small(picture, IMAGES / name)


def scroll_to(page: Page, heading: str) -> None:
    """Scroll to the section with this heading."""
    page.get_by_role("heading", name=heading).first.evaluate("element => element.scrollIntoView()")
    page.wait_for_timeout(500)


def write_small(picture: bytes, path: Path) -> None:
    """Write a PNG with at most 128 colours, which is enough for a page and a third of its size."""
    Image.open(io.BytesIO(picture)).convert("RGB").quantize(128).save(path, optimize=True)
    assert path.stat().st_size < LARGEST, f"{path} has {path.stat().st_size} bytes"


if __name__ == "__main__":
    main()
