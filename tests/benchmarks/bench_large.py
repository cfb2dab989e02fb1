"""What large models cost: steps on graphs of 1,000, 10,000 and 30,000 nodes, and with `--big` on 2.4 GB of weights.

    python tests/benchmarks/bench_large.py [--nodes 1000 10000 30000] [--only STEP,STEP] [--big]

Each figure is a process of its own that does what the step does, imports included: user and system CPU seconds, peak
memory (Linux only). `chain` is one node behind another, `fan` all of them behind the input. "Growth" is from the last
two sizes: 1 is linear in the number of nodes, 2 would be quadratic. Steps that say no to a model are told with their
reason. Compared with other tools, the same model of 2.4 GB is in bench_sanitize.py, bench_convert_fp16.py and
bench_edit.py.
"""

from __future__ import annotations

import argparse
import json
import logging
import math
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

EDITED = {
    "operations": [{"rename_nodes": {"select": "*", "to": "edited_{index}"}}, {"remove_noops": {"allow_empty": True}}]
}
STEPS = {
    "lint": {},
    "sanitize": {},
    "fix_shapes": {},
    "convert_fp16": {},
    "constrain_precision": {"op_types": {"Mul": "fp16"}, "allow_empty": True},
    "edit": EDITED,
    "quantize": {},
    "check_accuracy": {"reference": "source", "tolerance": {"cosine": 0.999}},
    "profile": {"runs": 1, "passes": 3, "duration": "1 ms", "warmup": "1 ms", "budget": "1 s"},
}
"""Step -> settings."""


def make_graph(kind: str, count: int, path: Path) -> Path:
    """So many nodes, a third of which read a weight of four numbers."""
    from tests.models import GraphBuilder, rename_output, save, tensor

    b = GraphBuilder()
    made = ["x"]
    for number in range(count - 1):
        read = made[-1] if kind == "chain" else "x"
        weights = [b.weight(4)] if number % 3 == 0 else []
        made.append(b.op(("Mul", "Relu", "Abs")[number % 3], read, *weights))
    rename_output(b, b.op("Sum", *made[1:]) if kind == "fan" else b.op("Relu", made[-1]), "y")
    return save(b.model([tensor("x", ["n", 4])], [tensor("y", ["n", 4])]), path)


def child(name: str, model: Path, width: int, folder: Path) -> None:
    """In the fresh process: do the step, and print its costs and what it said."""
    from ndld_flow.artifacts.kinds import Onnx
    from ndld_flow.discovery import StepTypes
    from ndld_flow.errors import NdldFlowError
    from ndld_flow.inputs import InputSpec
    from ndld_flow.step import Context

    found = StepTypes().find(name)
    assert found is not None
    settings = {"shapes": {"x": [2, width]}} if name == "fix_shapes" else STEPS[name]
    step = found.cls.model_validate_json(json.dumps(settings))
    out, scratch, caches = (folder / each for each in ("out", "scratch", "caches"))
    for each in (out, scratch, caches):
        each.mkdir()
    source = Onnx(model, "source", "0" * 64)
    reads = dict.fromkeys([found.cls.read_key, "reference", "candidate"], source)
    inputs = {"x": InputSpec(shape=(2, width))}
    context = Context(name, inputs, reads, scratch, logging.getLogger(name), lambda *_: None, caches)
    try:
        said = step.run(source, out, context).summary
    except NdldFlowError as error:
        said = f"refused: {error}"
    times = os.times()
    peak_kb = next(line for line in Path("/proc/self/status").read_text().splitlines() if "VmHWM" in line).split()[1]
    print(json.dumps([times.user + times.system + times.children_user, int(peak_kb) / 1024, said]))


def cost(name: str, model: Path, width: int) -> tuple[float, float, str]:
    """CPU seconds, peak MB and what was said, of a step in a process of its own."""
    with tempfile.TemporaryDirectory(prefix="ndld_flow-bench-") as folder:
        command = [sys.executable, __file__, "--child", name, str(model), str(width), folder]
        ended = subprocess.run(command, capture_output=True, text=True, check=False)
    if ended.returncode:
        return math.nan, math.nan, (ended.stderr.strip().splitlines() or [f"ended with {ended.returncode}"])[-1]
    cpu_s, peak_mb, said = json.loads(ended.stdout.splitlines()[-1])
    return cpu_s, peak_mb, said


def bench_graphs(kind: str, counts: Sequence[int], steps: Sequence[str], folder: Path) -> None:
    models = [make_graph(kind, count, folder / f"{kind}-{count}.onnx") for count in counts]
    print(f"{kind + ': CPU s (peak MB)':<24}" + "".join(f"{f'{count:,} nodes':>18}" for count in counts) + "   growth")
    for step in steps:
        costs = [cost(step, model, 4) for model in models]
        cells = "".join(f"{f'{cpu_s:.2f} ({peak_mb:.0f})':>18}" for cpu_s, peak_mb, _ in costs)
        print(f"{step:<24}{cells}   {growth(counts, [each[0] for each in costs]):>6}   {costs[-1][2][:60]}", flush=True)


def growth(counts: Sequence[int], seconds: Sequence[float]) -> str:
    """The exponent between the last two sizes, what the smallest costs (imports) left out."""
    if len(counts) < 3 or any(map(math.isnan, seconds)):
        return "?"
    before, after = (max(each - seconds[0], 1e-3) for each in seconds[-2:])
    return f"{math.log(after / before) / math.log((counts[-1] - counts[0]) / (counts[-2] - counts[0])):.1f}"


def bench_big(steps: Sequence[str], folder: Path) -> None:
    from tests.models import BIG_WIDTH, make_big

    model = make_big(folder / "big.onnx")
    print(f"{'2.4 GB of weights':<24}{'CPU s':>10}{'peak MB':>10}")
    for step in steps:
        cpu_s, peak_mb, said = cost(step, model, BIG_WIDTH)
        print(f"{step:<24}{cpu_s:10.1f}{peak_mb:10.0f}   {said[:90]}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, nargs="+", default=[1000, 10_000, 30_000], help="sizes, rising")
    parser.add_argument("--only", default=",".join(STEPS), help="steps, with commas between")
    parser.add_argument("--big", action="store_true", help="a model of 2.4 GB instead (5 GB of disk, 8 GB of memory)")
    parser.add_argument("--child", nargs=4, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.child:
        name, model, width, aside = given.child
        child(name, Path(model), int(width), Path(aside))
        return
    steps = given.only.split(",")
    with tempfile.TemporaryDirectory(prefix="ndld_flow-bench-") as folder:
        if given.big:
            bench_big(steps, Path(folder))
            return
        for kind in ("chain", "fan"):
            bench_graphs(kind, given.nodes, steps, Path(folder))


if __name__ == "__main__":
    main()
