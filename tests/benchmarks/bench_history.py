"""Cost of a long history: each verb on outputs with 10, 100, 1,000 (and more) runs and a tenth as many sweeps.

Usage: python tests/benchmarks/bench_history.py [--runs 10 100 1000] [--repeat 5] [--read]

With `--read`, only the verbs that read many records: `runs`, `gc --dry-run` and `history`. 10,000 runs are then
made in seconds: their artifacts are links with invented digests.

One real run and one real sweep are copied into the past: each copy has records, keys, artifacts and locks of its own
for two of five steps, and `verify` must find all of them well. Each figure is a whole process: user and system CPU
seconds, the median of so many tries, and peak memory. The last columns tell what each run more costs: where nothing,
the verb does not depend on the history; where the same from length to length, it is linear.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from ndld_flow.runs.outputs import Outputs  # noqa: E402 - `tests` is found beside the package
from tests.support.long_history import lengthen_history, lengthen_quickly, lengthen_sweeps  # noqa: E402
from tests.support.models import make_cnn  # noqa: E402

TOOL = [sys.executable, "-m", "ndld_flow"]
RECIPE = """
name: nightly
model: model.onnx
steps:
  lint: {}
  sanitize: {}
  agree: {step: check_accuracy, reference: source, candidate: sanitize, tolerance: {cosine: 0.999}}
  base: {step: profile, from: source, passes: 5, runs: 2, duration: 10 ms, budget: 1 s, warmup: 1 ms}
  speed: {step: profile, from: sanitize, passes: 5, runs: 2, duration: 10 ms, budget: 1 s, warmup: 1 ms}
"""
SWEEP = """
sweep: {over: {sanitize.fold_size_threshold: [1 KiB, 1 MiB]}, minimize: speed.latency.min}
"""


@dataclass(frozen=True)
class Cost:
    """Cost of one process."""

    cpu_s: float
    peak_mb: float


_WATCHED = """
import json, os, subprocess, sys
process = subprocess.Popen(sys.argv[1:], stdout=sys.stderr)
_, status, used = os.wait4(process.pid, 0)
print(json.dumps([os.waitstatus_to_exitcode(status), used.ru_utime + used.ru_stime, used.ru_maxrss / 1024]))
"""
"""A child's peak memory counts what its parent had when it was forked: so the parent is a Python that has next to
nothing."""


def cost(command: Sequence[object], folder: Path) -> Cost:
    """Return the cost of a whole process, which must succeed."""
    watched = [sys.executable, "-S", "-c", _WATCHED, *map(str, command)]
    env = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}  # as users have it
    ended = subprocess.run(watched, cwd=folder, capture_output=True, text=True, check=True, env=env)
    code, cpu_s, peak_mb = json.loads(ended.stdout)
    if code not in (0, 4):  # an inconclusive comparison is one too
        raise SystemExit(f"{command}: exit code {code}\n{ended.stderr}")
    return Cost(cpu_s, peak_mb)


def make_outputs(folder: Path) -> Outputs:
    """One real run of a recipe with two profiles, and one real sweep."""
    make_cnn(folder / "model.onnx")
    (folder / "nightly.yaml").write_text(RECIPE)
    (folder / "swept.yaml").write_text(RECIPE.replace("nightly", "swept") + SWEEP)
    for recipe in ("nightly.yaml", "swept.yaml"):
        subprocess.run([*TOOL, "run", recipe], cwd=folder, check=True, capture_output=True)
    return Outputs(folder / "outputs")


def verbs() -> dict[str, list[str]]:
    """Return the measured commands by their name in the table. Those that change something come last."""
    some = [f"nightly/{path.name}" for path in sorted(Path("outputs/runs/nightly").glob("2*"))[:10]]
    return {
        "plan": ["plan", "nightly.yaml"],
        "run, all reused": ["run", "nightly.yaml"],
        "run, one new step": ["run", "nightly.yaml", "steps.sanitize.fold_size_threshold=3 KiB"],
        "runs": ["runs"],
        "runs --json": ["runs", "--json"],
        "tag": ["tag", some[0], "kept"],
        "report": ["report", some[1]],
        "compare, 2 runs": ["compare", *some[:2]],
        "compare, 10 runs": ["compare", *some],
        "verify": ["verify"],
        "gc --dry-run": ["gc", "--dry-run"],
        "gc --keep 10": ["gc", "--keep", "10"],
    }


def reading_verbs() -> dict[str, list[str]]:
    """Return the commands that read many records. The first use writes their lines."""
    slow = "speed.latency.median < 1 ns"
    return {
        "runs": ["runs"],
        "history, no lines": ["history", "nightly"],
        "history": ["history", "nightly"],
        "runs --where": ["runs", "--where", slow],
        "runs --json": ["runs", "--json"],
        "gc --dry-run": ["gc", "--dry-run"],
    }


_ONCE = ("gc --keep 10", "verify", "history, no lines")


def measure(folder: Path, repeat: int, known: Mapping[str, list[str]]) -> dict[str, Cost]:
    """Each verb's cost at a length of history; `gc --keep` once, as it ends that history."""
    os.chdir(folder)
    result = {}
    for name, words in known.items():
        tries = [cost([*TOOL, *words], folder) for _ in range(1 if name in _ONCE else repeat)]
        result[name] = sorted(tries, key=lambda outcome: outcome.cpu_s)[len(tries) // 2]
    return result


def cost_of_a_run(counts: Sequence[int], costs: Sequence[Cost], place: int) -> str:
    """CPU milliseconds for each run more, from one length of the history to the next; `-` within what tries differ."""
    added_s = costs[place + 1].cpu_s - costs[place].cpu_s
    if added_s < 0.1 * costs[0].cpu_s + 0.05:
        return "-"
    return f"{1e3 * added_s / (counts[place + 1] - counts[place]):.1f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, nargs="+", default=[10, 100, 1000], help="lengths of the history, rising")
    parser.add_argument("--repeat", type=int, default=5, help="tries of each verb; their median counts")
    parser.add_argument("--read", action="store_true", help="only verbs that read many records")
    given = parser.parse_args()
    costs: list[dict[str, Cost]] = []
    with tempfile.TemporaryDirectory(prefix="ndld_flow-bench-") as aside:
        begun = Path(aside) / "begun"
        begun.mkdir()
        make_outputs(begun)
        for count in given.runs:
            folder = Path(aside) / str(count)
            shutil.copytree(begun, folder, symlinks=True)
            outputs = Outputs(folder / "outputs")
            if given.read:
                lengthen_quickly(outputs, "nightly", range(1, count), "speed")
            else:
                lengthen_history(outputs, "nightly", range(1, count), ["base", "speed"])
                lengthen_sweeps(outputs, "swept", range(1, max(count // 10, 1)))
            os.chdir(folder)
            costs.append(measure(folder, given.repeat, reading_verbs() if given.read else verbs()))
            os.chdir("/")
            shutil.rmtree(folder)
    pairs = [f"to {count:,}" for count in given.runs[1:]]
    heads = "".join(f"{count:>16,}" for count in given.runs) + "".join(f"{pair:>10}" for pair in pairs)
    print(f"{'CPU s (peak MB); ms for a run more':<36}{heads}")
    for name in costs[0]:
        row = [cost[name] for cost in costs]
        cells = "".join(f"{f'{item.cpu_s:.2f} ({item.peak_mb:.0f})':>16}" for item in row)
        print(f"{name:<36}{cells}" + "".join(f"{cost_of_a_run(given.runs, row, at):>10}" for at in range(len(pairs))))


if __name__ == "__main__":
    main()
