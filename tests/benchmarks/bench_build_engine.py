"""Overhead of the step `build_engine` over the builder it calls: printed, not asserted.

`python -m tests.benchmarks.bench_build_engine [MODEL.onnx ...]`; without models: PP-OCR detection and recognition. Each
row alternates three times between the step's build and a plain script over TensorRT-RTX's bindings, in fresh processes,
for the same compute capabilities and shapes, and gives medians: the whole wall time, what of it was building, and the
peak memory of the building process. "Layers" is how many compiled layers the record knows, and how many of the model's
nodes they name.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from ndld_flow.base.quantities import size
from ndld_flow.engines.build_settings import BuildSettings
from ndld_flow.engines.building import BuildRequest, build_engine
from ndld_flow.inputs import InputSpec
from ndld_flow.records.build import Build
from tests.support.samples import fetch_sample

TURNS = 3
CAPABILITIES = ("8.6", "8.9", "12.0")
SHAPES = {
    "det": {"x": ((1, 3, 320, 320), (1, 3, 640, 640), (4, 3, 960, 960))},
    "rec": {"x": ((1, 3, 48, 160), (1, 3, 48, 320), (8, 3, 48, 640))},
}
PLAIN = """
import json, sys, time
import tensorrt_rtx as trt
path, shapes, capabilities, target = json.loads(sys.argv[1])
logger = trt.Logger(trt.Logger.ERROR)
builder = trt.Builder(logger)
network = builder.create_network(1 << int(trt.NetworkDefinitionCreationFlag.STRONGLY_TYPED))
assert trt.OnnxParser(network, logger).parse_from_file(path)
config = builder.create_builder_config()
config.profiling_verbosity = trt.ProfilingVerbosity.DETAILED
if shapes:
    profile = builder.create_optimization_profile()
    for name, (low, best, high) in shapes.items():
        profile.set_shape(name, low, best, high)
    config.add_optimization_profile(profile)
config.num_compute_capabilities = len(capabilities)
for place, capability in enumerate(capabilities):
    config.set_compute_capability(getattr(trt.ComputeCapability, "SM" + capability.replace(".", "")), place)
started = time.perf_counter()
engine = builder.build_serialized_network(network, config)
print(time.perf_counter() - started)
with open(target, "wb") as file:
    file.write(engine)
"""

Shapes = Mapping[str, tuple[tuple[int, ...], ...]]


@dataclass(frozen=True)
class Turn:
    """One build by the step, and one by the plain script."""

    step_s: float
    plain_s: float
    plain_build_s: float
    build: Build


def take_turn(path: Path, shapes: Shapes, folder: Path) -> Turn:
    out, scratch = folder / "out", folder / "scratch"
    out.mkdir(parents=True)
    scratch.mkdir()
    inputs = {name: InputSpec(min=low, opt=best, max=high) for name, (low, best, high) in shapes.items()}
    settings = BuildSettings(backend="tensorrt_rtx", compute_capabilities=CAPABILITIES)
    started = time.perf_counter()
    request = BuildRequest(path, path.stem, "", inputs, settings, out, folder / "caches", scratch)
    build = build_engine(request, lambda done, total, what: None)
    step_s = time.perf_counter() - started
    given = json.dumps([str(path), shapes, CAPABILITIES, str(folder / "plain.engine")])
    started = time.perf_counter()
    output = subprocess.run([sys.executable, "-c", PLAIN, given], capture_output=True, check=True).stdout
    return Turn(step_s, time.perf_counter() - started, float(output), build)


def report(name: str, path: Path, shapes: Shapes) -> None:
    with tempfile.TemporaryDirectory() as scratch:
        turns = [take_turn(path, shapes, Path(scratch) / str(number)) for number in range(TURNS)]
    build = turns[-1].build
    step_s, plain_s = median(turn.step_s for turn in turns), median(turn.plain_s for turn in turns)
    named = {node for layer in build.layers for node in layer.onnx_nodes}
    print(
        f"{name:<24} step {step_s:5.2f} s (building {median(turn.build.build_s for turn in turns):5.2f} s)   "
        f"plain {plain_s:5.2f} s (building {median(turn.plain_build_s for turn in turns):5.2f} s)   "
        f"own {step_s - plain_s:+5.2f} s   {size(build.engine_bytes)}   peak {size(build.memory.build_peak_bytes)}   "
        f"layers {len(build.layers)} of {build.network_layer_count}, naming {len(named)} nodes"
    )


def main(paths: Sequence[str]) -> None:
    """Measure the models named, or the sample models."""
    if paths:
        for path in map(Path, paths):
            report(path.stem, path, {})
        return
    for name, shapes in SHAPES.items():
        report(name, fetch_sample(name), shapes)


if __name__ == "__main__":
    main(sys.argv[1:])
