"""Overhead and bias of the profile step: printed, not asserted.

`python -m tests.benchmarks.bench_profile MODEL.onnx ...`, models with dynamic shapes run at 1. Without models: those
that tests build. Each row alternates five times between a process run of the step and a plain loop over `session.run`
in a fresh process of its own, 300 passes each, and gives the medians of the five medians: their ratio should be 1.
"Own" is the wall time of a process run without loading, warming up and measuring the model, next to what
`python -c "import onnxruntime, numpy"` takes. "Layers" is the layer pass with ONNX Runtime's profiler on, and how many
layers were traced to nodes of the model.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from ndld_flow.inputs import InputSpec
from ndld_flow.measure.process_runs import run_worker
from ndld_flow.measure.worker import FeedFile, Job, Part, TimingPlan, write_feeds
from ndld_flow.models.files import model_inputs
from ndld_flow.runtimes.onnxruntime.onnxruntime_session import SessionSettings
from ndld_flow.runtimes.onnxruntime.request import OnnxruntimeRequest
from ndld_flow.samples.feeds import make_feeds
from tests.support import models
from tests.support.layer_passes import measure_layers
from tests.support.samples import copy_samples

PASSES, WARMUP, TURNS = 300, 30, 5
GIVEN = {"silero_vad": {"input": InputSpec(shape=(1, 576)), "sr": InputSpec(data=16000)}}
"""Model -> inputs, for those that do not run with dynamic dimensions as 1."""
PLAIN_LOOP = """
import json, statistics, sys, time
import numpy as np
import onnxruntime as ort
path, feeds, warmup, passes = json.loads(sys.argv[1])
session = ort.InferenceSession(path, providers=["CPUExecutionProvider"])
feeds = {name: np.load(file) for name, file in feeds.items()}
names = [output.name for output in session.get_outputs()]
samples = []
for _ in range(warmup + passes):
    start = time.perf_counter_ns()
    session.run(names, feeds)
    samples.append((time.perf_counter_ns() - start) / 1e6)
print(statistics.median(samples[warmup:]))
"""


@dataclass(frozen=True)
class Turn:
    """One process run of the step, and one of the plain loop."""

    step_ms: float
    plain_ms: float
    own_s: float
    imports_s: float


def take_turn(path: Path, feeds: dict[str, FeedFile], folder: Path) -> Turn:
    started = time.perf_counter()
    part = Part(feeds, TimingPlan(passes=PASSES, warmup_passes=WARMUP))
    answer = run_worker(Job(path, OnnxruntimeRequest(), (part,)), folder, lambda done, total, what: None)
    timing = answer.timings[0]
    measured_s = (timing.starts_ms[-1] + timing.latency_ms[-1] + timing.warmup_ms + answer.load_ms) / 1e3
    own_s = time.perf_counter() - started - measured_s
    given = json.dumps([str(path), {name: feed.path for name, feed in feeds.items()}, WARMUP, PASSES])
    plain = subprocess.run([sys.executable, "-c", PLAIN_LOOP, given], capture_output=True, check=True).stdout
    started = time.perf_counter()
    subprocess.run([sys.executable, "-c", "import onnxruntime, numpy"], check=True)
    return Turn(median(timing.latency_ms), float(plain), own_s, time.perf_counter() - started)


def report(path: Path) -> None:
    arrays = {name: feed.values for name, feed in make_feeds(model_inputs(path), GIVEN.get(path.stem, {})).items()}
    with tempfile.TemporaryDirectory() as scratch:
        files = write_feeds(arrays, Path(scratch) / "inputs")
        turns = [take_turn(path, files, Path(scratch) / str(number)) for number in range(TURNS)]
        started = time.perf_counter()
        layers = measure_layers(path, SessionSettings(), arrays, 20, Path(scratch))
        wall_s = time.perf_counter() - started
    step_ms = median(turn.step_ms for turn in turns)
    plain_ms = median(turn.plain_ms for turn in turns)
    ratio = median(turn.step_ms / turn.plain_ms for turn in turns)
    own_s, imports_s = median(turn.own_s for turn in turns), median(turn.imports_s for turn in turns)
    print(
        f"{path.stem:12} step {step_ms:8.4f} ms, plain loop {plain_ms:8.4f} ms, ratio {ratio:5.3f}; own {own_s:.3f} s "
        f"a run, imports {imports_s:.3f} s; layers: profiler overhead {median(layers.pass_ms) / step_ms:5.2f}x, "
        f"{wall_s:.2f} s; {layers.notes[-1]}"
    )


def main(given: Sequence[str]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        result = [
            make(Path(folder) / f"{name}.onnx")
            for name, make in (
                ("cnn", models.make_cnn),
                ("tfm", models.make_tfm),
                ("ctrl", models.make_ctrl),
                ("func", models.make_func),
            )
        ]
        for path in [Path(argument) for argument in given] or [*result, *copy_samples(Path(folder))]:
            report(path)


if __name__ == "__main__":
    main(sys.argv[1:])
