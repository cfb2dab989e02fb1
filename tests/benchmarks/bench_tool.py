"""Print what the tool itself costs: help, a reused run, and a cold run against a plain script of the same calls.

Usage: python tests/benchmarks/bench_tool.py [--runs 5]

Everything is a whole process, warmed up once, in turn (A B A B ...), so that a machine whose speed drifts hits all
alike; medians are printed with their ranges, and the overhead as the median of the pairs' ratios. The plain script does
what the quickstart's steps do by calling them directly: no recipe, no Hydra, no store, no records, no report.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from tests.support.recipes import load_recipe

ROOT = Path(__file__).parents[2]
RECIPE = ROOT / "pipelines/quickstart.yaml"
TOOL = [sys.executable, "-m", "ndld_flow"]

PLAIN = """
import importlib, json, logging, sys
from pathlib import Path
from ndld_flow.store.kinds import Onnx
from ndld_flow.inputs import InputSpec
from ndld_flow.step import Context

model, work, calls = Path(sys.argv[1]), Path(sys.argv[2]), json.loads(sys.argv[3])
inputs = {"x": InputSpec(shape=(1, 3, 320, 320))}
made = {"source": Onnx(model, "source", "none")}
for name, module, cls, settings, reads, key in calls:
    out, scratch = work / name, work / f"{name}.scratch"
    out.mkdir(parents=True); scratch.mkdir()
    step = getattr(importlib.import_module(module), cls).model_validate_json(settings)
    read = {key: made[maker] for key, maker in reads.items()}
    log = logging.getLogger("plain")
    step.run(read[key], out, Context(name, inputs, read, scratch, log, lambda *_: None, caches=work / "caches"))
    kind = step.kinds()[1]
    made[name] = kind(out / kind.main, name, name)
"""


def describe_calls() -> str:
    """The quickstart's steps as the plain script calls them, in JSON, read beforehand at no cost to it."""
    calls = []
    for step in load_recipe(RECIPE).steps:
        cls = step.type.cls
        settings = step.step.model_dump_json()
        calls.append([step.name, cls.__module__, cls.__name__, settings, step.reads, cls.read_key])
    return json.dumps(calls)


def seconds(command: Sequence[object]) -> float:
    """Wall seconds of one whole process, which must succeed."""
    start = time.perf_counter()
    done = subprocess.run(list(map(str, command)), cwd=ROOT, check=False, capture_output=True, text=True)
    taken = time.perf_counter() - start
    if done.returncode:
        sys.exit(f"{command[0]} {command[1]} ended with {done.returncode}: {done.stderr[-2000:]}")
    return taken


def show(name: str, samples: Sequence[float]) -> None:
    print(f"{name:<44} {statistics.median(samples):8.3f} s   ({min(samples):.3f} .. {max(samples):.3f})")


def bench_help(runs: int) -> None:
    command = [*TOOL, "--help"]
    seconds(command)
    show("--help", [seconds(command) for _ in range(runs)])
    bare = [sys.executable, "-c", "pass"]
    show("  (a Python that does nothing)", [seconds(bare) for _ in range(runs)])


def bench_reused(runs: int, outputs: Path) -> None:
    command = [*TOOL, "run", RECIPE, "--outputs", outputs]
    seconds(command)
    seconds(command)
    show("quickstart, everything reused", [seconds(command) for _ in range(runs)])
    plan = [*TOOL, "plan", RECIPE, "--outputs", outputs]
    show("quickstart, plan", [seconds(plan) for _ in range(runs)])


def bench_overhead(runs: int, folder: Path, outputs: Path) -> None:
    """Cold runs of the quickstart in fresh stores (the fetched model kept), against the plain script."""
    model = fetched_model(outputs)
    recipe = folder / "quickstart.yaml"
    text = RECIPE.read_text()
    source = next(line for line in text.splitlines() if "source: pypi:" in line)
    recipe.write_text(text.replace(source, f"  source: {model}"))
    shutil.copytree(ROOT / "configs", folder / "configs")
    calls = describe_calls()
    tool, plain = [], []
    for index in range(runs + 1):
        tool.append(seconds([*TOOL, "run", recipe, "--outputs", folder / f"cold-{index}"]))
        plain.append(seconds([sys.executable, "-c", PLAIN, model, folder / f"plain-{index}", calls]))
    show("quickstart, cold", tool[1:])
    show("  the same library calls in a plain script", plain[1:])
    ratios = [a / b for a, b in zip(tool[1:], plain[1:], strict=True)]
    print(f"{'  own overhead':<44} {statistics.median(ratios) - 1:8.1%}")


def fetched_model(outputs: Path) -> Path:
    """The quickstart's model, as an earlier run left it in the store."""
    return max((outputs / "store/objects").glob("*/*/model.onnx"), key=lambda path: path.stat().st_size)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=5, help="counted runs of each command")
    runs: int = parser.parse_args().runs
    with tempfile.TemporaryDirectory(prefix="ndld_flow-bench-") as aside:
        outputs = Path(aside) / "outputs"
        bench_help(runs)
        bench_reused(runs, outputs)
        bench_overhead(runs, Path(aside), outputs)


if __name__ == "__main__":
    main()
