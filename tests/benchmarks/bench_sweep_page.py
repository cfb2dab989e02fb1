"""The page of a sweep at its size: 1,000 points x 60 metrics, built under 1 s, under 1 MB, ready under 1 s.

Prints, asserts nothing: `python -m tests.benchmarks.bench_sweep_page [points] [metrics]`.
"""

from __future__ import annotations

import shutil
import statistics
import sys
import tempfile
import time
from pathlib import Path

from playwright.sync_api import Page, sync_playwright

from ndld_flow.records.sweep import SweepRecord
from ndld_flow.report.exports.spreadsheets import write_sweep_exports
from ndld_flow.report.sweep.page import draw_sweep
from tests.benchmarks.bench_report import TIMED
from tests.support.sweep_samples import builds, large

TRIES = 5

SORT = "document.querySelector('#points [role=columnheader]:nth-child(%d) button').click()"
FILTER = """(field => { field.value = '%s'; field.dispatchEvent(new Event('input')); })(
    document.querySelector('#points .tools input'))"""
BRUSH = """(axis => axis.dispatchEvent(new KeyboardEvent('keydown', {key: '%s', bubbles: true})))(
    document.querySelector('#parallel [role=slider]'))"""
SCATTER = """(select => { select.selectedIndex = (select.selectedIndex + 1) %% select.length;
    select.dispatchEvent(new Event('change')); })(document.querySelector('#trade select[aria-label^=%s]'))"""
ACTS = {
    "a brush": BRUSH % "ArrowDown",
    "no brush": BRUSH % "Escape",
    "sort": SORT % 8,
    "filter": FILTER % "parallel",
    "no filter": FILTER % "",
    "another quantity": SCATTER % "Up",
}


def build(name: str, record: SweepRecord, folder: Path) -> Path:
    """Draw a few times: wall-clock time, which a busy machine lengthens, and processor time."""
    walls, processors = [], []
    for _ in range(TRIES):
        wall, processor = time.perf_counter(), time.process_time()
        path = draw_sweep(record, folder)
        walls.append(time.perf_counter() - wall)
        processors.append(time.process_time() - processor)
    print(f"{name}: {path.stat().st_size / 1e6:.2f} MB")
    print(f"  built in             {statistics.median(walls):.2f} s ({statistics.median(processors):.2f} s processor)")
    processor = time.process_time()
    write_sweep_exports(record, folder)
    print(f"  exports in           {time.process_time() - processor:.2f} s processor")
    return path


def open_page(page: Page, path: Path) -> None:
    ready = []
    for _ in range(TRIES):
        page.goto(path.as_uri())
        page.wait_for_selector("html[data-ready]", state="attached")
        ready.append(float(page.evaluate("document.documentElement.dataset.ready")))
    print(f"  ready after          {statistics.median(ready):.0f} ms (the first time {ready[0]:.0f} ms)")
    for part in ("parallel", "trade"):
        page.locator(f"#{part}").scroll_into_view_if_needed()
        page.locator(f"#{part} svg").first.wait_for()
    for name, act in ACTS.items():
        print(f"  {name:<20} {page.evaluate(TIMED, act):.0f} ms to the next frame")


def main(points: int = 1000, metrics: int = 60) -> None:
    browser = shutil.which("chromium") or shutil.which("google-chrome")
    with tempfile.TemporaryDirectory() as scratch, sync_playwright() as playwright:
        running = playwright.chromium.launch(executable_path=browser, args=["--no-sandbox", "--disable-gpu"])
        sizes = {f"{points:,} points x {metrics} metrics": large(points, metrics), "72 builds": builds()}
        for index, (name, record) in enumerate(sizes.items()):
            folder = Path(scratch) / str(index)
            folder.mkdir()
            path = build(name, record, folder)
            context = running.new_context(bypass_csp=True)
            open_page(context.new_page(), path)
            context.close()
        running.close()


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
