"""Cost of large models: steps on graphs of 1,000 and 10,000 nodes, and with `--big` on 2.4 GB of weights.

    python tests/benchmarks/bench_large.py [--nodes 1000 10000] [--only STEP,STEP] [--limit 600] [--big]

Each figure is a process of its own that does what the step does, imports included: user and system CPU seconds, peak
memory of it or of a process that it starts, whichever is larger (Linux only). `chain` is one node behind another, `fan`
all of them behind the input. "Growth" is the exponent of the CPU seconds over those of a graph of three nodes: 1 is
linear in the number of nodes, 2 would be quadratic. A step that says no to a model is told with its reason; one that
takes more CPU than the limit, with the limit. Compared with other tools, the same model of 2.4 GB is in
bench_sanitize.py, bench_convert_fp16.py and bench_edit.py.
"""

from __future__ import annotations

import argparse
import json
import logging
import math
import os
import resource
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

EDITED = {"operations": [{"rename_nodes": {"select": "*", "to": "edited_{index}"}}, "remove_noops"]}
STEPS = {
    "lint": {},
    "sanitize": {},
    "fix_shapes": {},
    "convert_fp16": {},
    "constrain_precision": {"op_types": {"Mul": "fp16"}, "allow_empty": True},
    "edit": EDITED,
    "quantize": {"allow_empty": True},
    "check_accuracy": {"reference": "source", "tolerance": {"cosine": 0.999}},
    "profile": {"runs": 1, "passes": 3, "duration": "1 ms", "warmup": "1 ms", "budget": "1 s"},
}
"""Step -> settings."""
_TINY = 3
"""Nodes of a graph that costs the imports only."""
_LEAST_S = 0.05


def make_graph(kind: str, count: int, path: Path) -> Path:
    """So many nodes, a third of which read a weight of four numbers."""
    from tests.support.models import GraphBuilder, rename_output, save, tensor

    b = GraphBuilder()
    result = ["x"]
    for number in range(count - 1):
        read = result[-1] if kind == "chain" else "x"
        weights = [b.weight(4)] if number % 3 == 0 else []
        result.append(b.op(("Mul", "Relu", "Abs")[number % 3], read, *weights))
    rename_output(b, b.op("Sum", *result[1:]) if kind == "fan" else b.op("Relu", result[-1]), "y")
    return save(b.model([tensor("x", ["n", 4])], [tensor("y", ["n", 4])]), path)


def child(name: str, model: Path, width: int, folder: Path) -> None:
    """Run the step in this fresh process, and print its costs and messages."""
    from ndld_flow.base.errors import NdldFlowError
    from ndld_flow.inputs import InputSpec
    from ndld_flow.recipe.step_types import StepTypes
    from ndld_flow.step import Context
    from ndld_flow.store.kinds import Onnx

    result = StepTypes().find(name)
    assert result is not None
    settings = {"shapes": {"x": [2, width]}} if name == "fix_shapes" else STEPS[name]
    step = result.cls.model_validate_json(json.dumps(settings))
    out, scratch, caches = (folder / text for text in ("out", "scratch", "caches"))
    for item in (out, scratch, caches):
        item.mkdir()
    source = Onnx(model, "source", "0" * 64)
    reads = dict.fromkeys([result.cls.read_key, "reference", "candidate"], source)
    inputs = {"x": InputSpec(shape=(2, width))}
    context = Context(name, inputs, reads, scratch, logging.getLogger(name), lambda *_: None, caches)
    try:
        summary = step.run(source, out, context).summary
    except NdldFlowError as error:
        summary = f"refused: {error}"
    times = os.times()
    own_kb = next(line for line in Path("/proc/self/status").read_text().splitlines() if "VmHWM" in line).split()[1]
    peak_kb = max(int(own_kb), resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)
    print(json.dumps([times.user + times.system + times.children_user, peak_kb / 1024, summary]))


@dataclass(frozen=True)
class Cost:
    """Cost of a step in its own process; NaN if it failed."""

    cpu_s: float
    peak_mb: float
    said: str

    @property
    def cells(self) -> str:
        return f"{self.cpu_s:10.1f}{self.peak_mb:9.0f}"


def cost(name: str, model: Path, width: int, limit_s: int) -> Cost:
    """Return the cost and the messages of a step."""
    with tempfile.TemporaryDirectory(prefix="ndld_flow-bench-") as folder:
        command = [sys.executable, __file__, "--limit", str(limit_s), "--child", name, str(model), str(width), folder]
        ended = subprocess.run(command, capture_output=True, text=True, check=False)
    if ended.returncode == -signal.SIGXCPU:
        return Cost(math.nan, math.nan, f"more than {limit_s} s of CPU")
    if ended.returncode:
        last = (ended.stderr.strip().splitlines() or ["nothing"])[-1]
        return Cost(math.nan, math.nan, f"ended with {ended.returncode}: {last}")
    return Cost(*json.loads(ended.stdout.splitlines()[-1]))


def bench_graphs(kind: str, counts: Sequence[int], steps: Sequence[str], limit_s: int, folder: Path) -> None:
    """One row for each step: CPU and memory at each size, and how the CPU grows between the last two."""
    models = [make_graph(kind, count, folder / f"{kind}-{count}.onnx") for count in (_TINY, *counts)]
    print(f"{kind:<22}" + "".join(f"{f'{count:,} nodes':>19}" for count in counts))
    print(f"{'':<22}" + f"{'CPU s':>10}{'peak MB':>9}" * len(counts) + "   growth")
    for step in steps:
        tiny, *costs = [cost(step, model, 4, limit_s) for model in models]
        text = growth(counts, [cost.cpu_s - tiny.cpu_s for cost in costs])
        print(f"{step:<22}{''.join(cost.cells for cost in costs)}   {text:>6}   {costs[-1].said[:60]}", flush=True)


def growth(counts: Sequence[int], seconds: Sequence[float]) -> str:
    """The exponent between the last two sizes; `?` where one of them is missing or next to nothing."""
    if len(counts) < 2 or any(not second > _LEAST_S for second in seconds[-2:]):
        return "?"
    return f"{math.log(seconds[-1] / seconds[-2]) / math.log(counts[-1] / counts[-2]):.2f}"


def bench_big(steps: Sequence[str], limit_s: int, folder: Path) -> None:
    """Each step on weights of 2.4 GB."""
    from tests.support.models import BIG_WIDTH, make_big

    model = make_big(folder / "big.onnx")
    print(f"{'2.4 GB of weights':<22}{'CPU s':>10}{'peak MB':>9}")
    for step in steps:
        result = cost(step, model, BIG_WIDTH, limit_s)
        print(f"{step:<22}{result.cells}   {result.said[:90]}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, nargs="+", default=[1000, 10_000], help="sizes, rising")
    parser.add_argument("--only", default=",".join(STEPS), help="steps, with commas between")
    parser.add_argument("--limit", type=int, default=600, help="CPU seconds of one step")
    parser.add_argument("--big", action="store_true", help="a model of 2.4 GB instead (5 GB of disk, 8 GB of memory)")
    parser.add_argument("--child", nargs=4, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.child:
        resource.setrlimit(resource.RLIMIT_CPU, (given.limit, given.limit + 5))
        name, model, width, aside = given.child
        child(name, Path(model), int(width), Path(aside))
        return
    steps = given.only.split(",")
    with tempfile.TemporaryDirectory(prefix="ndld_flow-bench-") as folder:
        if given.big:
            bench_big(steps, given.limit, Path(folder))
            return
        for kind in ("chain", "fan"):
            bench_graphs(kind, given.nodes, steps, given.limit, Path(folder))


if __name__ == "__main__":
    main()
