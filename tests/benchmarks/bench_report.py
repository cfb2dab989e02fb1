"""The report of a large run, 5,000 layers x 10 profiles, and of the quickstart: built, size, ready, and reactions.

Prints, asserts nothing: `python -m tests.benchmarks.bench_report [layers] [profiles]`.
"""

from __future__ import annotations

import shutil
import statistics
import sys
import tempfile
import time
from pathlib import Path

from playwright.sync_api import Page, sync_playwright

from ndld_flow.records.run_folder import RunDocuments, read_run
from ndld_flow.report.run_page import draw_report
from ndld_flow.report.verdict import summarize_run
from tests.support.run_fixtures import write_big, write_quickstart

TRIES = 5

# Waits for the frame that shows the change: what a person sees, not what the handler took.
TIMED = """async (act) => {
    const frame = () => new Promise(done => requestAnimationFrame(() => setTimeout(done)));
    await frame();
    const start = performance.now();
    await eval(act);
    await frame();
    return performance.now() - start;
}"""

SORT = "document.querySelector('#layers-0 [role=columnheader]:nth-child(%d) button').click()"
FILTER = """(field => { field.value = '%s'; field.dispatchEvent(new Event('input')); })(
    document.querySelector('#layers-0 [data-live=layers] input[type=search]'))"""
SCROLL = "document.querySelector('#layers-0 .grid-box').scrollTop += 40000"
PRESS = "[...document.querySelectorAll('#layers-0 button')].find(one => one.textContent === '%s').click()"
KEY = """(canvas => { canvas.focus(); canvas.dispatchEvent(new KeyboardEvent('keydown', {key: '%s'})); })(
    document.querySelector('#layers-0 [data-live=timeline] canvas'))"""
SELECT_ALL = """(grid => { grid.focus(); const key = {key: 'a', ctrlKey: true};
    grid.dispatchEvent(new KeyboardEvent('keydown', key)); })(
    document.querySelector('#layers-0 .grid-box'))"""
TAB = "document.querySelector('#tab-layers-1')?.click()"  # a run may have one profile


def median_of(measure: object) -> float:
    """Median of a few calls, in seconds."""
    assert callable(measure)
    taken = []
    for _ in range(TRIES):
        start = time.perf_counter()
        measure()
        taken.append(time.perf_counter() - start)
    return statistics.median(taken)


def measure_build(name: str, folder: Path) -> Path:
    report = draw_report(folder)
    run = read_run(folder).run
    print(f"{name}: {report.stat().st_size / 1e6:.2f} MB")
    print(f"  built in            {median_of(lambda: draw_report(folder)):.2f} s")
    print(f"  five lines alone in {median_of(lambda: summarize_run(RunDocuments(run, folder))):.2f} s")
    return report


def measure_page(page: Page, report: Path) -> None:
    session = page.context.new_cdp_session(page)
    session.send("Performance.enable", {"timeDomain": "threadTicks"})
    page.goto(report.as_uri())
    page.wait_for_selector("html[data-ready]", state="attached")
    used = {metric["name"]: metric["value"] for metric in session.send("Performance.getMetrics")["metrics"]}
    print(f"  CPU until drawn     {used['TaskDuration'] * 1e3:.0f} ms of its main thread, whatever else runs")
    ready = []
    for _ in range(TRIES):
        page.goto(report.as_uri())
        page.wait_for_selector("html[data-ready]", state="attached")
        ready.append(float(page.evaluate("document.documentElement.dataset.ready")))
    print(f"  ready after         {statistics.median(ready):.0f} ms (the first time {ready[0]:.0f} ms)")
    acts = {
        "sort by name": SORT % 2,
        "sort by dims": SORT % 4,
        "filter": FILTER % "conv.1",
        "scroll": SCROLL,
        "heat by rank": PRESS % "rank",
        "timeline in": KEY % "+",
        "timeline whole": KEY % "0",
        "select all": SELECT_ALL,
        "types by mean": PRESS % "mean per layer",
        "next profile": TAB,
    }
    for name, act in acts.items():
        page.evaluate(FILTER % "")
        print(f"  {name:<19} {page.evaluate(TIMED, act):.0f} ms to the next frame")


def main(layers: int = 5000, profiles: int = 10) -> None:
    browser = shutil.which("chromium-headless-shell") or shutil.which("chromium")
    with tempfile.TemporaryDirectory() as scratch, sync_playwright() as playwright:
        big = write_big(Path(scratch) / "big", layers, profiles)
        quick = write_quickstart(Path(scratch) / "quick")
        running = playwright.chromium.launch(executable_path=browser, args=["--no-sandbox", "--disable-gpu"])
        for name, folder in ((f"{layers:,} layers x {profiles} profiles", big), ("quickstart", quick)):
            report = measure_build(name, folder)
            context = running.new_context(bypass_csp=True)
            measure_page(context.new_page(), report)
            context.close()
        running.close()


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
