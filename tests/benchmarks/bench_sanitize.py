"""Sanitize against its peers: seconds, nodes, peak memory and largest difference, each in a fresh process.

    python tests/benchmarks/bench_sanitize.py [MODEL.onnx ...] [--big] [--only TOOL,TOOL] [--repeat N]

Without models: the ones tests build, the samples (PP-OCR, silero-vad), and those of the onnx package. `--big` adds a
generated 2.4 GB model.
Seconds are those of load, transform and save, imports not counted; memory is the process's peak, imports included.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))


def run_ndld_flow(model: Path, out: Path, **settings: Any) -> float:
    from ndld_flow.graph.sanitize.pipeline import sanitize_file
    from ndld_flow.graph.sanitize.settings import SanitizeSettings

    start = time.perf_counter()
    sanitize_file(model, out, SanitizeSettings(**settings))
    return time.perf_counter() - start


def run_ndld_flow_inlined(model: Path, out: Path) -> float:
    return run_ndld_flow(model, out, inline_functions=True)


def run_ndld_flow_exact(model: Path, out: Path) -> float:
    return run_ndld_flow(model, out, fuse=False)


def run_ndld_flow_unlimited(model: Path, out: Path) -> float:
    """Fold results of any size, as the other tools do. Two of the light models make weights of hundreds of MB."""
    return run_ndld_flow(model, out, fold_size_threshold=2**40)


def run_polygraphy(model: Path, out: Path, **options: Any) -> float:
    import onnx
    import onnx_graphsurgeon as gs
    from polygraphy.backend.onnx import fold_constants, onnx_from_path, save_onnx

    start = time.perf_counter()
    folded = fold_constants(onnx_from_path(str(model)), partitioning="recursive", **options)
    graph = gs.import_onnx(folded)
    graph.cleanup().toposort()
    large = folded.ByteSize() > 2**30
    save_onnx(gs.export_onnx(graph), str(out), external_data_path="big.data" if large else None)
    del onnx
    return time.perf_counter() - start


def run_polygraphy_fast(model: Path, out: Path) -> float:
    return run_polygraphy(model, out, do_shape_inference=False, num_passes=1)


def run_onnxslim(model: Path, out: Path) -> float:
    import onnxslim

    start = time.perf_counter()
    onnxslim.slim(str(model), str(out))
    return time.perf_counter() - start


def run_onnxscript(model: Path, out: Path) -> float:
    import onnx_ir as ir
    import onnxscript.optimizer

    start = time.perf_counter()
    loaded = ir.load(model)
    onnxscript.optimizer.optimize(loaded)
    _save_ir(loaded, out)
    return time.perf_counter() - start


def run_onnx_ir(model: Path, out: Path) -> float:
    import onnx_ir as ir
    from onnx_ir.passes import common

    start = time.perf_counter()
    loaded = ir.load(model)
    ir.passes.Sequential(
        common.InlinePass(),
        common.ShapeInferencePass(),
        common.IdentityEliminationPass(),
        common.CommonSubexpressionEliminationPass(),
        common.LiftConstantsToInitializersPass(),
        common.DeduplicateInitializersPass(),
        common.RemoveUnusedNodesPass(),
    )(loaded)
    _save_ir(loaded, out)
    return time.perf_counter() - start


def _save_ir(loaded: Any, out: Path) -> None:
    import onnx_ir as ir

    external = any(isinstance(v.const_value, ir.ExternalTensor) for v in loaded.graph.initializers.values())
    ir.save(loaded, out, external_data=f"{out.name}.data" if external else None)


def run_ort_basic(model: Path, out: Path) -> float:
    import onnxruntime as ort

    start = time.perf_counter()
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_BASIC
    options.optimized_model_filepath = str(out)
    options.log_severity_level = 3
    if any(model.parent.glob(f"{model.name}.*")):  # its external data
        options.add_session_config_entry("session.optimized_model_external_initializers_file_name", f"{out.name}.data")
    ort.InferenceSession(str(model), options, providers=["CPUExecutionProvider"])
    return time.perf_counter() - start


TOOLS: dict[str, Callable[[Path, Path], float]] = {
    "ndld_flow": run_ndld_flow,
    "ndld_flow inlined": run_ndld_flow_inlined,
    "ndld_flow exact": run_ndld_flow_exact,
    "ndld_flow unlimited": run_ndld_flow_unlimited,
    "polygraphy": run_polygraphy,
    "polygraphy fast": run_polygraphy_fast,
    "onnxslim": run_onnxslim,
    "onnxscript": run_onnxscript,
    "onnx_ir": run_onnx_ir,
    "ort basic": run_ort_basic,
}


@dataclass(frozen=True)
class Row:
    """Result of one tool on one model."""

    tool: str
    seconds: float = 0.0
    memory_mb: float = 0.0
    wall_s: float = 0.0
    nodes: int = 0
    main_nodes: int = 0
    difference: str = ""
    error: str = ""

    def __str__(self) -> str:
        if self.error:
            return f"  {self.tool:20s} {self.error}"
        return (
            f"  {self.tool:20s} {self.seconds:7.2f} s {self.memory_mb:8.0f} MB {self.nodes:6d} nodes "
            f"({self.main_nodes} in the main graph)  {self.difference}"
        )


def best_of(count: int, tool: str, model: Path, folder: Path) -> Row:
    """The fastest of some runs: a shared machine's disk is sometimes ten times slower than at other times."""
    rows = [measure(tool, model, folder, compare=i == 0 and model.name != "big.onnx") for i in range(count)]
    fastest = min(rows, key=lambda row: row.seconds)
    return dataclasses.replace(fastest, difference=rows[0].difference)


def measure(tool: str, model: Path, folder: Path, compare: bool) -> Row:
    out = folder / f"{tool.replace(' ', '_')}.onnx"
    for old in folder.glob(f"{out.name}*"):
        old.unlink()  # ext4 flushes a file that replaces another
    command = [sys.executable, str(Path(__file__).resolve()), "--child", tool, str(model.resolve()), str(out)]
    start = time.perf_counter()
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=900, check=False, cwd=folder)
    except subprocess.TimeoutExpired:
        return Row(tool, error="more than 900 s")
    wall = time.perf_counter() - start
    if done.returncode or not out.exists():
        last = (done.stderr.strip().splitlines() or ["no output"])[-1]
        return Row(tool, error=f"failed after {wall:.1f} s: {last[:150]}")
    numbers = json.loads(done.stdout.strip().splitlines()[-1])
    nodes, main_nodes = count_nodes(out)
    difference = largest_difference(model, out) if compare else "not compared"
    return Row(tool, numbers["seconds"], numbers["memory_mb"], wall, nodes, main_nodes, difference)


def count_nodes(path: Path) -> tuple[int, int]:
    """Nodes with subgraphs and functions, and nodes of the main graph."""
    import onnx
    import onnx_ir as ir

    loaded = ir.serde.deserialize_model(onnx.load(path, load_external_data=False))
    functions = sum(1 for function in loaded.functions.values() for _ in function.all_nodes())
    return functions + sum(1 for _ in loaded.graph.all_nodes()), len(loaded.graph)


SHAPES: dict[str, dict[str, list[int]]] = {
    "ch_PP-OCRv4_det_infer.onnx": {"x": [1, 3, 320, 320]},
    "ch_PP-OCRv4_rec_infer.onnx": {"x": [1, 3, 48, 320]},
    "ch_ppocr_mobile_v2.0_cls_infer.onnx": {"x": [1, 3, 48, 192]},
    "silero_vad.onnx": {"input": [1, 512], "state": [2, 1, 128]},
    "silero_vad_half.onnx": {"input": [1, 512], "state": [2, 1, 128]},
}


def make_feed(session: Any, model: Path) -> dict[str, Any]:
    import numpy as np

    random, feed = np.random.default_rng(0), {}
    for value in session.get_inputs():
        shape = SHAPES.get(model.name, {}).get(value.name) or [d if isinstance(d, int) else 2 for d in value.shape]
        if value.name == "sr":
            feed["sr"] = np.array(16000, np.int64)
        elif "int" in value.type:
            feed[value.name] = random.integers(0, 2, shape).astype(np.int64)
        else:
            kind = np.float16 if "float16" in value.type else np.float32
            feed[value.name] = random.random(shape).astype(kind)
    return feed


def largest_difference(before: Path, after: Path) -> str:
    """Largest absolute difference of any output, optimizations of ONNX Runtime off."""
    import numpy as np
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 3
    try:
        first, second = (ort.InferenceSession(str(p), options, ["CPUExecutionProvider"]) for p in (before, after))
        feed = make_feed(first, before)
        pairs = zip(first.run(None, feed), second.run(None, feed), strict=True)
        return f"max diff {max(float(np.max(np.abs(a - b), initial=0)) for a, b in pairs):.1e}"
    except Exception as error:  # a peer's model may not even load: that is a result
        return f"does not run: {str(error)[:100]}"


def default_models(folder: Path, big: bool) -> list[Path]:
    import onnx

    from tests.support import models
    from tests.support.samples import copy_samples

    light = Path(onnx.__file__).parent / "backend/test/data/light"
    built = [getattr(models, f"make_{name}")(folder / f"{name}.onnx") for name in ("cnn", "tfm", "ctrl", "func", "ext")]
    if big:
        built.append(models.make_big(folder / "big.onnx"))
    return [*built, *copy_samples(folder), *sorted(light.glob("*.onnx"))]


def peak_memory_mb() -> float:
    """Return the peak memory of this process alone; ru_maxrss would include the parent's."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) / 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def child(tool: str, model: Path, out: Path) -> None:
    seconds = TOOLS[tool](model, out)
    memory = peak_memory_mb()
    print(json.dumps({"seconds": seconds, "memory_mb": memory}))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", type=Path)
    parser.add_argument("--big", action="store_true")
    parser.add_argument("--repeat", type=int, default=1, help="runs of each, of which the fastest is told")
    parser.add_argument("--only", default=",".join(TOOLS))
    parser.add_argument("--child", nargs=3)
    arguments = parser.parse_args()
    if arguments.child:
        tool, model, out = arguments.child
        child(tool, Path(model), Path(out))
        return
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for model in arguments.models or default_models(folder, arguments.big):
            print(f"{model.name}: {count_nodes(model)[0]} nodes", flush=True)
            for tool in arguments.only.split(","):
                print(best_of(arguments.repeat, tool, model, folder), flush=True)


if __name__ == "__main__":
    main()
