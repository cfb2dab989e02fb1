"""The page of a comparison at its size: 5,000 layers x 10 reports, built under 2 s, under 3 MB, ready under 1 s.

Prints, asserts nothing: `python -m tests.benchmarks.bench_comparison_page [layers] [reports]`.
"""

from __future__ import annotations

import shutil
import statistics
import sys
import tempfile
import time
from pathlib import Path

from playwright.sync_api import Page, sync_playwright

from ndld_flow.report.comparison.page import draw_comparison
from tests.benchmarks.bench_report import TIMED
from tests.support.comparison_fixtures import Compared, big, three

TRIES = 5

BASE = "document.querySelector('.bar input[name=bar-base][value=\"%d\"]').click()"
SORT = "document.querySelector('#layers [role=columnheader]:nth-child(%d) button').click()"
CHOICE = "document.querySelector('#layers [data-choice=slower]').click()"
FILTER = """(field => { field.value = '%s'; field.dispatchEvent(new Event('input')); })(
    document.querySelector('#layers .tools input'))"""
ACTS = {
    "another base": BASE % 1,
    "the first base again": BASE % 0,
    "only slower layers": CHOICE,
    "all layers again": CHOICE,
    "sort by name": SORT % 2,
    "filter": FILTER % "conv.1",
}


def build(name: str, compared: Compared, path: Path) -> None:
    """Draw a few times: wall-clock time, which a busy machine lengthens, and processor time."""
    walls, processors = [], []
    for _ in range(TRIES):
        wall, processor = time.perf_counter(), time.process_time()
        draw_comparison(compared.comparison, compared.profiles, path)
        walls.append(time.perf_counter() - wall)
        processors.append(time.process_time() - processor)
    print(f"{name}: {path.stat().st_size / 1e6:.2f} MB")
    print(f"  built in             {statistics.median(walls):.2f} s ({statistics.median(processors):.2f} s processor)")


def open_page(page: Page, path: Path) -> None:
    ready = []
    for _ in range(TRIES):
        page.goto(path.as_uri())
        page.wait_for_selector("html[data-ready]", state="attached")
        ready.append(float(page.evaluate("document.documentElement.dataset.ready")))
    print(f"  ready after          {statistics.median(ready):.0f} ms (the first time {ready[0]:.0f} ms)")
    for name, act in ACTS.items():
        print(f"  {name:<20} {page.evaluate(TIMED, act):.0f} ms to the next frame")


def main(layers: int = 5000, reports: int = 10) -> None:
    browser = shutil.which("chromium") or shutil.which("google-chrome")
    with tempfile.TemporaryDirectory() as scratch, sync_playwright() as playwright:
        running = playwright.chromium.launch(executable_path=browser, args=["--no-sandbox", "--disable-gpu"])
        sizes = {f"{layers:,} layers x {reports} reports": big(layers, reports), "three reports": three()}
        for index, (name, compared) in enumerate(sizes.items()):
            path = Path(scratch) / f"{index}.html"
            build(name, compared, path)
            context = running.new_context(bypass_csp=True)
            open_page(context.new_page(), path)
            context.close()
        running.close()


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
