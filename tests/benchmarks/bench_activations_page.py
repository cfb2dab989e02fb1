"""The page of activations at its size: 32 tensors x 2 sides x 4 samples x 64 channels, under 12 MB, ready under 1 s.

Prints, asserts nothing: `python -m tests.benchmarks.bench_activations_page [tensors] [samples] [channels] [side]`.
"""

from __future__ import annotations

import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from playwright.sync_api import Page, sync_playwright

from ndld_flow.report.activations.page import draw_activations
from tests.support.activation_samples import write_large, write_pair

TRIES = 5
TIMED = """async (changes) => {
    const start = performance.now();
    await inspector.set(changes);
    inspector.paintNow();
    const done = performance.now();
    await new Promise((next) => requestAnimationFrame(() => requestAnimationFrame(next)));
    return [done - start, performance.now() - start];
}"""
ACTS: dict[str, dict[str, object]] = {
    "another tensor": {"tensor": 1},
    "another sample": {"sample": 1},
    "a scale": {"scale": 0.3, "shift": 0.1},
    "split": {"mode": "split", "split": 0.3},
    "the split moved": {"split": 0.31},
    "mix": {"mode": "mix"},
    "difference": {"mode": "difference"},
    "one channel": {"channel": 5},
}


def build(name: str, folder: Path) -> Path:
    walls, processors = [], []
    for _ in range(TRIES):
        wall, processor = time.perf_counter(), time.process_time()
        path = draw_activations(folder)
        walls.append(time.perf_counter() - wall)
        processors.append(time.process_time() - processor)
    held = sum(file.stat().st_size for file in folder.glob("maps/*"))
    print(f"{name}: {path.stat().st_size / 1e6:.2f} MB of {held / 1e6:.1f} MB of maps")
    print(f"  built in          {statistics.median(walls):.2f} s ({statistics.median(processors):.2f} s processor)")
    return path


def open_page(page: Page, path: Path) -> None:
    ready = []
    page.goto(path.as_uri())
    for _ in range(TRIES):
        page.reload()  # going away and back would find it as it was left
        page.wait_for_selector("html[data-ready]", state="attached")
        ready.append(float(page.evaluate("document.documentElement.dataset.ready")))
    print(f"  ready after       {statistics.median(ready):.0f} ms")
    for name, changes in ACTS.items():
        script, frame = page.evaluate(TIMED, changes)
        print(f"  {name:<17} {script:.0f} ms, {frame:.0f} ms to the next frame")


def main(tensors: int = 32, samples: int = 4, channels: int = 64, side: int = 40) -> None:
    browser = shutil.which("chromium") or shutil.which("google-chrome")

    def large(folder: Path) -> Path:
        return write_large(folder, tensors, samples, channels, side)

    kinds: dict[str, Callable[[Path], Path]] = {
        "11 tensors x 2 sides x 2 samples": write_pair,
        f"{tensors} tensors x 2 sides x {samples} samples x {channels} channels of {side} x {side}": large,
    }
    with tempfile.TemporaryDirectory() as scratch, sync_playwright() as playwright:
        running = playwright.chromium.launch(executable_path=browser, args=["--no-sandbox", "--disable-gpu"])
        for index, (name, write) in enumerate(kinds.items()):
            path = build(name, write(Path(scratch) / str(index)))
            context = running.new_context(bypass_csp=True, viewport={"width": 1500, "height": 1000})
            open_page(context.new_page(), path)
            context.close()
        running.close()


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
