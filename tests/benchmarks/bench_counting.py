"""A/A spread of counts next to that of times: printed, not asserted.

`python -m tests.benchmarks.bench_counting [--runs 3] [--openvino] [--allocations] [NAME ...]`, by default every sample
model in ONNX Runtime. Each process run of a model is measured in up to three ways: wall and CPU time of 50 passes in a
process of its own, and instructions and allocations of a pass in Valgrind. The spread is (largest - smallest) / median
over the process runs of one model with the same settings on one thread, which would be 0 on an ideal machine. "Cost" is
the CPU time of a process that counts instructions.
"""

from __future__ import annotations

import argparse
import json
import math
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ndld_flow.machine.counters import describe_counter, find_valgrind_lack
from ndld_flow.machine.perf_events import find_perf_lack
from ndld_flow.measure.counting import CountedModel, CountingPlan, count_passes
from ndld_flow.measure.timing_pass import TimingPlan
from ndld_flow.measure.worker_job import Job, Part, write_feeds
from ndld_flow.models.tensors import Array
from ndld_flow.runtimes.onnxruntime.request import OnnxruntimeRequest
from ndld_flow.runtimes.openvino import OpenvinoRequest
from ndld_flow.runtimes.protocol import SessionRequest
from tests.support.samples import fetch_sample

SHAPES = {"det": (1, 3, 64, 64), "rec": (1, 3, 48, 64), "cls": (1, 3, 48, 96)}
TIMED = 50
LOOP = """
import json, sys, time
from pathlib import Path
from ndld_flow.measure.worker_job import Job, read_feeds
job = Job.read(Path(sys.argv[1]))
binding = job.session.open(job.model).bind(read_feeds(job.parts[0].feeds), on_device=True)
for _ in range(10):
    binding.run()
wall, cpu = time.perf_counter(), time.process_time()
for _ in range(int(sys.argv[2])):
    binding.run()
print(json.dumps([time.perf_counter() - wall, time.process_time() - cpu]))
"""


@dataclass(frozen=True)
class Run:
    """One process run of each kind."""

    wall_ms: float
    cpu_ms: float
    instructions: float
    allocations: float
    allocated_bytes: float
    cost_s: float


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("names", nargs="*", default=["silero", *SHAPES])
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--openvino", action="store_true")
    parser.add_argument("--allocations", action="store_true", help="also count allocations, which takes as long again")
    given = parser.parse_args()
    print(f"perf events: {find_perf_lack() or 'allowed'}; {find_valgrind_lack() or describe_counter('valgrind')}")
    print("| model | runtime | wall | CPU | instructions | allocations | bytes | pass | cost |")
    for name in given.names:
        request: SessionRequest = OpenvinoRequest() if given.openvino else OnnxruntimeRequest()
        runs = [measure(name, request, allocations=given.allocations) for _ in range(given.runs)]
        print(describe(name, request, runs), flush=True)


def feeds_of(name: str) -> dict[str, Array]:
    numbers = np.random.default_rng(0)
    if name != "silero":
        return {"x": numbers.random(SHAPES[name], np.float32)}
    state = np.zeros((2, 1, 128), np.float32)
    return {"input": numbers.random((1, 576), np.float32), "state": state, "sr": np.array(16000)}


def measure(name: str, request: SessionRequest, *, allocations: bool) -> Run:
    model, one = fetch_sample(name), request.on_one_thread()
    assert one is not None
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        feeds = write_feeds(feeds_of(name), folder / "inputs")
        Job(model, one, (Part(feeds, TimingPlan(1)),)).write(folder / "timed.json")
        command = [sys.executable, "-c", LOOP, str(folder / "timed.json"), str(TIMED)]
        ran = subprocess.run(command, stdout=subprocess.PIPE, check=True, text=True)
        wall_s, cpu_s = json.loads(ran.stdout.splitlines()[-1])
        subject = CountedModel(model, request, feeds, folder, {}, lambda *_: None)
        before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime
        (instructions,), _ = count_passes(subject, CountingPlan(("instructions",), "valgrind", 3))
        cost_s = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime - before
        plan = CountingPlan(("allocations",), "valgrind", 3)
        counts = [each.median for each in count_passes(subject, plan)[0]] if allocations else [math.nan] * 2
    return Run(wall_s / TIMED * 1e3, cpu_s / TIMED * 1e3, instructions.median, counts[0], counts[1], cost_s)


def describe(name: str, request: SessionRequest, runs: Sequence[Run]) -> str:
    spreads = (
        "not counted" if math.isnan(values[0]) else f"{spread(values):.3%}"
        for field in ("wall_ms", "cpu_ms", "instructions", "allocations", "allocated_bytes")
        for values in [[getattr(run, field) for run in runs]]
    )
    middle = statistics.median(run.instructions for run in runs)
    cost_s = statistics.median(run.cost_s for run in runs)
    return f"| {name} | {request.runtime} | {' | '.join(spreads)} | {middle:,.0f} | {cost_s:.0f} s |"


def spread(values: Sequence[float]) -> float:
    return (max(values) - min(values)) / statistics.median(values) if any(values) else 0.0


if __name__ == "__main__":
    started = time.perf_counter()
    main()
    print(f"{time.perf_counter() - started:.0f} s")
