"""What the profile step adds to what it measures, and what it costs: printed, not asserted.

`python -m tests.benchmarks.bench_profile MODEL.onnx ...`, models with dynamic shapes run at 1. Without models: those
that tests build. Each row alternates five times between the step's timing pass and a plain loop over `session.run` of
a session of its own, 300 passes each, and gives the medians of the five medians. "layers" is the layer pass with
ONNX Runtime's profiler on, and how many layers were traced to nodes of the model.
"""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path
from statistics import median

import onnxruntime as ort

from ndld_flow.backends.measuring.layer_pass import measure_layers
from ndld_flow.backends.measuring.timing_pass import TimingPlan, time_passes
from ndld_flow.backends.models.declared_inputs import model_inputs
from ndld_flow.backends.models.tensors import Array
from ndld_flow.backends.running.feeds import make_feeds
from ndld_flow.backends.running.onnxruntime_session import SessionSettings, open_model
from ndld_flow.inputs import InputSpec
from tests import models
from tests.samples import copy_samples

PASSES, WARMUP, TURNS = 300, 30, 5
GIVEN = {"silero_vad": {"input": InputSpec(shape=(1, 576)), "sr": InputSpec(data=16000)}}
"""Model -> inputs, for those that do not run with free dimensions as 1."""


def by_step(path: Path, feeds: dict[str, Array]) -> float:
    once = open_model(path, SessionSettings()).bind(feeds, on_device=True).once
    timing = time_passes(once, TimingPlan(passes=PASSES, warmup_passes=WARMUP), lambda done, total: None)
    return median(timing.latency_ms)


def by_plain_loop(path: Path, feeds: dict[str, Array]) -> float:
    session = ort.InferenceSession(path, providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    samples = []
    for _ in range(WARMUP + PASSES):
        start = time.perf_counter_ns()
        session.run(names, feeds)
        samples.append((time.perf_counter_ns() - start) / 1e6)
    return median(samples[WARMUP:])


def report(path: Path) -> None:
    feeds = {name: feed.values for name, feed in make_feeds(model_inputs(path), GIVEN.get(path.stem, {})).items()}
    turns = [(by_step(path, feeds), by_plain_loop(path, feeds)) for _ in range(TURNS)]
    ours, plain = (median(column) for column in zip(*turns, strict=True))
    with tempfile.TemporaryDirectory() as scratch:
        started = time.perf_counter()
        layers = measure_layers(path, SessionSettings(), feeds, 20, Path(scratch), lambda done, total: None)
        wall_s = time.perf_counter() - started
    print(
        f"{path.stem:12} step {ours:8.4f} ms, plain loop {plain:8.4f} ms, ratio {ours / plain:5.3f}; layers: "
        f"profiler overhead {median(layers.pass_ms) / ours:5.2f}x, {wall_s:.2f} s; {layers.notes[-1]}"
    )


def main() -> None:
    given = [Path(argument) for argument in sys.argv[1:]]
    with tempfile.TemporaryDirectory() as folder:
        made = [
            make(Path(folder) / f"{name}.onnx")
            for name, make in (
                ("cnn", models.make_cnn),
                ("tfm", models.make_tfm),
                ("ctrl", models.make_ctrl),
                ("func", models.make_func),
            )
        ]
        for path in given or [*made, *copy_samples(Path(folder))]:
            report(path)


if __name__ == "__main__":
    main()
