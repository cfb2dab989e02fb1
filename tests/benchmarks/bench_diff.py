"""Diffs of two models of 10,000 nodes, as they are, renamed and edited, and of models with weights on disk.

Prints, asserts nothing; each number comes from a fresh process: `python -m tests.benchmarks.bench_diff [--big]`. The
models on disk hold 500 MB, or with `--big` 2.4 GB.
"""

from __future__ import annotations

import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import onnx
import onnx_ir as ir

from ndld_flow.graph.diff.diff_models import diff_models
from ndld_flow.models.files import all_graphs, load_model
from tests.support.models import BIG_LAYERS, GraphBuilder, make_big, tensor

NODES = 10_000
CASES = ("same", "renamed", "edited", "renamed and edited", "another model")
ON_DISK = ("the same file", "a copy", "a copy with one byte changed", "a copy without values")


def large_model(seed: int = 0) -> onnx.ModelProto:
    """Blocks of six nodes, with weights of their own and with attributes that all blocks share."""
    builder = GraphBuilder(seed)
    hidden = "x"
    for _ in range(NODES // 6):
        left = builder.op("Relu", builder.op("MatMul", hidden, builder.weight(8, 8)))
        gate = builder.op("Sigmoid", builder.op("Add", hidden, builder.weight(8)))
        hidden = builder.op("Add", builder.op("Mul", left, gate), hidden)
    return builder.model([tensor("x", [2, 8])], [tensor(hidden, [2, 8])])


def rename(model: ir.Model) -> None:
    for graph in all_graphs(model):
        for index, value in enumerate(list(graph.initializers.values())):
            value.name = f"renamed_w{index}"
        for index, node in enumerate(graph):
            node.name = f"renamed_{index}"
            for value in node.outputs:
                if not value.is_graph_output():
                    value.name = f"renamed_{index}_{value.index()}"


def edit(model: ir.Model) -> None:
    """A node put behind every hundredth."""
    for node in list(model.graph)[50::100]:
        new = ir.node("Identity", [node.outputs[0]], name=f"behind_{node.name}")
        new.outputs[0].name = f"behind_{node.outputs[0].name}"
        for use in node.outputs[0].uses():
            if use.node is not new:
                use.node.replace_input_with(use.idx, new.outputs[0])
        model.graph.insert_after(node, new)


def measure_nodes(case: str) -> None:
    before = ir.serde.deserialize_model(large_model())
    after = ir.serde.deserialize_model(large_model(1 if case == "another model" else 0))
    if "renamed" in case:
        rename(after)
    if "edited" in case:
        edit(after)
    _measure(lambda: diff_models(before, after).one_line)


def measure_on_disk(case: str, folder: Path) -> None:
    other = "one" if case == "the same file" else "changed" if "changed" in case else "copy"
    before, after = load_model(folder / "one" / "model.onnx"), load_model(folder / other / "model.onnx")
    _measure(lambda: diff_models(before, after, compare_values="without" not in case).one_line)


def _measure(work: Callable[[], str]) -> None:
    start, worked = time.perf_counter(), time.process_time()
    result = work()
    taken, worked = time.perf_counter() - start, time.process_time() - worked
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(f"{taken:8.2f} s {worked:6.2f} s of CPU {peak:7.0f} MB  {result}", flush=True)


def write_models(folder: Path, layers: int) -> None:
    for name in ("one", "copy", "changed"):
        (folder / name).mkdir()
        make_big(folder / name / "model.onnx", layers=layers)
    (data,) = (path for path in (folder / "changed").iterdir() if path.suffix != ".onnx")
    with data.open("r+b") as file:
        file.seek(data.stat().st_size // 3)
        file.write(b"\x7f\x7f")


def _alone(name: str, *arguments: str) -> None:
    print(f"{name:<32}", end="", flush=True)
    subprocess.run([sys.executable, "-m", "tests.benchmarks.bench_diff", *arguments], check=True)


def main() -> None:
    print(f"{NODES:,} nodes")
    for case in CASES:
        _alone(case, "nodes", case)
    layers = BIG_LAYERS if "--big" in sys.argv else BIG_LAYERS // 5 + 1
    with tempfile.TemporaryDirectory() as folder:
        write_models(Path(folder), layers)
        size = sum(path.stat().st_size for path in (Path(folder) / "one").iterdir())
        print(f"{size / 1e6:,.0f} MB of weights on disk")
        for case in ON_DISK:
            _alone(case, "disk", case, folder)


if __name__ == "__main__":
    if sys.argv[1:2] == ["nodes"]:
        measure_nodes(sys.argv[2])
    elif sys.argv[1:2] == ["disk"]:
        measure_on_disk(sys.argv[2], Path(sys.argv[3]))
    else:
        main()
