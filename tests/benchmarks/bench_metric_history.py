"""Quality and cost of the history of metrics: steps that are found, false alarms, and the time of 10,000 runs.

Usage: python tests/benchmarks/bench_metric_history.py [--points 6000] [--steps 60] [--runs 10000] [--real FILE ...]

Simulated series have the kinds of noise of `tests/support/simulated_series.py`. A step of 5 % is planted after 60
points, and counts as found if it is reported with at most 5 points after it, within 5 points of its place. False alarms
are those that a user would have seen at any time: a step is reported as soon as it is found, and never withdrawn.

A real series is made from the passes of a profile, in their order: the median of every 20 passes is a point. Its own
steps are unknown, so that alarms are counted with the points in random order; and steps are planted into it.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from ndld_flow import api  # noqa: E402 - `tests` is found beside the package
from ndld_flow.history.steps import find_steps  # noqa: E402
from tests.support.metric_runs import courses, write_runs  # noqa: E402
from tests.support.simulated_series import NOISE, simulate  # noqa: E402

BEFORE = 60
AFTER = 5
LONG = 1000
A_PASS = 20


def found(series: Callable[[int], Sequence[float]], tries: int, ratio: float = 1.05) -> float:
    """Return the part of planted steps that are found with so few points after them."""
    count = 0
    for seed in range(tries):
        values = [value * (ratio if index >= BEFORE else 1) for index, value in enumerate(series(seed))]
        count += any(abs(step.place - BEFORE) <= AFTER for step in find_steps(values))
    return count / tries


def _part(noise: str, seed: int) -> list[float]:
    return simulate(noise, BEFORE + AFTER, seed)


def show_simulated(points: int, tries: int) -> None:
    print(f"{'noise':<16}{'false alarms':>14}{'of few points':>15}{'+5 % found':>12}{'-5 % found':>12}")
    print(f"{'':<16}{'per 1,000':>14}{'per 1,000':>15}{'within 5':>12}{'within 5':>12}")
    for noise in NOISE:
        alarms = sum(len(find_steps(simulate(noise, LONG, seed))) for seed in range(points // LONG))
        few = sum(len(find_steps(simulate(noise, 30, 10_000 + seed))) for seed in range(points // 30))
        seen = [found(partial(_part, noise), tries, ratio) for ratio in (1.05, 0.95)]
        print(f"{noise:<16}{alarms / points * 1e3:>14.2f}{few / points * 1e3:>15.2f}{seen[0]:>12.0%}{seen[1]:>12.0%}")


def show_real(path: Path, tries: int) -> None:
    profile = json.loads(path.read_text())
    passes = [ms for run in profile["runs"] for ms in run["latency_ms"]]
    points = [statistics.median(passes[start : start + A_PASS]) for start in range(0, len(passes) - A_PASS + 1, A_PASS)]

    def part(seed: int) -> list[float]:
        start = random.Random(seed).randrange(max(len(points) - BEFORE - AFTER, 1))
        return points[start : start + BEFORE + AFTER]

    shuffled = sum(len(find_steps(random.Random(seed).sample(points, len(points)))) for seed in range(5))
    spread = statistics.stdev(points) / statistics.fmean(points)
    print(
        f"{path.parent.name}/{path.name}: {len(points)} points, spread {spread:.1%}; in random order "
        f"{shuffled / 5 / len(points) * 1e3:.2f} false alarms per 1,000; as measured {len(find_steps(points))} steps; "
        f"+5 % found within 5: {found(part, tries):.0%}"
    )


def seconds(command: Sequence[str], tries: int = 3) -> float:
    """Return the least time of a whole process."""
    times = []
    for _ in range(tries):
        started = time.perf_counter()
        subprocess.run(command, check=True, capture_output=True)
        times.append(time.perf_counter() - started)
    return min(times)


def show_cost(runs: int) -> None:
    with tempfile.TemporaryDirectory(prefix="ndld_flow-bench-") as aside:
        outputs, page = Path(aside) / "outputs", Path(aside) / "history.html"
        values = simulate("normal 1 %", runs, 1)
        write_runs(
            outputs, courses([value * (1.05 if index >= runs // 2 else 1) for index, value in enumerate(values)])
        )
        tool = [sys.executable, "-m", "ndld_flow"]
        bare = seconds([sys.executable, "-c", "pass"])
        first = seconds([*tool, "history", "nightly", "--outputs", str(outputs)], tries=1)
        later = seconds([*tool, "history", "nightly", "--outputs", str(outputs)])
        print(f"{runs:,} runs: history {first:.2f} s with a new index, {later:.2f} s later (bare Python {bare:.2f} s)")
        for name in ("runs", "gc --dry-run"):
            print(f"{runs:,} runs: {name} {seconds([*tool, *name.split(), '--outputs', str(outputs)]):.2f} s")
        started = time.perf_counter()
        api.history("nightly", every=True, outputs=outputs, page=page)
        print(
            f"page of 3 series: written in {time.perf_counter() - started:.2f} s, {page.stat().st_size / 1e6:.2f} MB",
            end="",
        )
        print(f", drawn in {drawn_s(page):.2f} s")


def drawn_s(page: Path) -> float:
    """Return the time after which a series of 10,000 points is drawn in Chromium, when another is chosen."""
    from tests.support.report_browser import chromium, wait_until_ready

    with chromium() as browser:
        tab = browser.new_page()
        tab.goto(page.as_uri())
        wait_until_ready(tab)
        tab.wait_for_selector("#chart svg")
        ms: float = tab.evaluate(
            """async () => {
                const choice = document.getElementById("history-series");
                const started = performance.now();
                choice.selectedIndex = [...choice.options].findIndex(option => option.text.includes("throughput"));
                choice.dispatchEvent(new Event("change"));
                await new Promise(done => requestAnimationFrame(() => setTimeout(done)));
                return performance.now() - started;
            }"""
        )
        return ms / 1e3


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--points", type=int, default=6000, help="points of each kind of noise")
    parser.add_argument("--steps", type=int, default=60, help="planted steps of each kind of noise")
    parser.add_argument("--runs", type=int, default=10_000, help="runs of the recipe whose history is timed")
    parser.add_argument("--real", type=Path, nargs="*", default=[], help="profiles of real models")
    given = parser.parse_args()
    show_cost(given.runs)
    for path in given.real:
        show_real(path, given.steps)
    show_simulated(given.points, given.steps)


if __name__ == "__main__":
    main()
