"""Accuracy of the diagnosis: the gain from its advice on real models, and the evidence for its constants.

`python -m tests.benchmarks.bench_diagnosis`: about two minutes. Printed, not asserted.

1. The samples as they are and as their diagnosis advises, measured in turns in one process: the median over rounds of
   each round's median, and the best round. And what a second thread brings while the machine is as busy as it is.
2. What ONNX Runtime needs to start a node: a chain of 400 nodes of one element each.
3. The diagnosis' own time for 5,000 layers with 200 samples each.
"""

from __future__ import annotations

import logging
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
from onnx import helper

from ndld_flow.graph.sanitize.pipeline import sanitize_file
from ndld_flow.graph.sanitize.settings import SanitizeSettings
from ndld_flow.models.tensors import Array
from ndld_flow.profiles.diagnose.diagnose import triage
from ndld_flow.profiles.read.onnxruntime_profile import onnxruntime_traits
from ndld_flow.records.measurement import Machine
from ndld_flow.records.profile import Layer, Profile, ProfileRun, Roofs, TensorInfo
from ndld_flow.runtimes.onnxruntime.onnxruntime_session import SessionSettings, open_model
from tests.support.models import GraphBuilder, rename_output, save, tensor
from tests.support.samples import fetch_sample

ROUNDS, PASSES = 12, 6
FEEDS: dict[str, dict[str, Array]] = {
    "det": {"x": np.random.default_rng(0).random((1, 3, 640, 640), np.float32)},
    "rec": {"x": np.random.default_rng(0).random((1, 3, 48, 320), np.float32)},
    "silero": {
        "input": np.zeros((1, 512), np.float32),
        "state": np.zeros((2, 1, 128), np.float32),
        "sr": np.array(16000),
    },
}


def sanitized(source: Path, folder: Path) -> Path:
    target = folder / f"sanitized_{source.name}"
    options = SanitizeSettings(
        fold_constants=True,
        fold_size_threshold=2**26,
        passes="auto",
        remove_unused=True,
        deduplicate=True,
        simplify=True,
        fuse=True,
        inline_functions=False,
        input_shapes={},
    )
    sanitize_file(source, target, options, logging.getLogger("bench"))
    return target


def with_hard_swish(source: Path, target: Path) -> Path:
    """x * clip(x + 3, 0, 6) / 6 as one operator."""
    model = onnx.load(source)
    nodes = model.graph.node
    result = {output: node for node in nodes for output in node.output}
    for last in [node for node in nodes if node.op_type == "Div"]:
        product = result.get(last.input[0])
        clips = [] if product is None else [result.get(name) for name in product.input]
        clip = next((clip for clip in clips if clip is not None and clip.op_type == "Clip"), None)
        added = None if clip is None else result.get(clip.input[0])
        if product is None or clip is None or added is None or added.op_type != "Add":
            continue
        shared = next((name for name in product.input if name in added.input), None)
        if shared is None:
            continue
        last.CopyFrom(helper.make_node("HardSwish", [shared], list(last.output), name=last.name))
        for node in (product, clip, added):
            nodes.remove(node)
    model.opset_import[0].version = max(14, model.opset_import[0].version)
    onnx.save(model, target)
    return target


def in_turns(
    variants: Mapping[str, Callable[[], None]], clock: Callable[[], float] = time.perf_counter
) -> dict[str, list[float]]:
    """Milliseconds of each round's median pass."""
    rounds: dict[str, list[float]] = {name: [] for name in variants}
    for _ in range(ROUNDS):
        for name, once in variants.items():
            rounds[name].append(statistics.median(timed(once, clock) for _ in range(PASSES)))
    return rounds


def timed(once: Callable[[], object], clock: Callable[[], float] = time.perf_counter) -> float:
    started = clock()
    once()
    return (clock() - started) * 1e3


def bench_advice(folder: Path) -> None:
    """On one thread, in CPU time: what else runs on this machine counts little then."""
    settings = SessionSettings(threads=1)
    for sample, feeds in FEEDS.items():
        source = fetch_sample(sample)
        smaller = sanitized(source, folder)
        variants = {
            "as it is": open_model(source, settings).bind(feeds).run,
            "sanitize": open_model(smaller, settings).bind(feeds).run,
            "optimization: extended": open_model(source, replace(settings, optimization="extended")).bind(feeds).run,
        }
        if sample == "det":  # rec's opset cannot be raised by a number alone
            swish = with_hard_swish(smaller, folder / "hard_swish.onnx")
            variants["sanitize, HardSwish"] = open_model(swish, settings).bind(feeds).run
        show(sample, "CPU time", in_turns(variants, time.thread_time))


def bench_threads() -> None:
    for sample, feeds in FEEDS.items():
        source = fetch_sample(sample)
        variants = {
            "as it is": open_model(source, SessionSettings()).bind(feeds).run,
            "threads: 1": open_model(source, SessionSettings(threads=1)).bind(feeds).run,
        }
        show(sample, f"time, load {os.getloadavg()[0]:.1f}", in_turns(variants))


def show(sample: str, what: str, valueses: Mapping[str, list[float]]) -> None:
    base = valueses["as it is"]
    for name, rounds in valueses.items():
        median, best = statistics.median(rounds), min(rounds)
        against = f"{median / statistics.median(base):5.2f} / {best / min(base):.2f} of as it is"
        print(f"{sample:8} {what:16} {name:24} median {median:8.3f} ms, best {best:8.3f} ms  {against}")


def bench_start(folder: Path) -> None:
    count = 400
    builder = GraphBuilder(0)
    value = "x"
    for _ in range(count):
        value = builder.op("Sin", value)
    rename_output(builder, value, "y")
    path = save(builder.model([tensor("x", [1])], [tensor("y", [1])]), folder / "chain.onnx")
    once = open_model(path, SessionSettings(threads=1)).bind({"x": np.ones(1, np.float32)}).run
    best = min(timed(once) for _ in range(500))
    print(f"start of a node: {best / count * 1e3:.2f} us")


def bench_triage() -> None:
    layers = tuple(
        Layer(
            index=number,
            name=f"layer {number}",
            type=("Conv", "Add", "Mul", "Clip", "ReorderInput")[number % 5],
            role="reformat" if number % 5 == 4 else "compute",
            inputs=(TensorInfo(name=f"t{number}", dtype="float32", shape=(1, 32, 40, 40)),),
            outputs=(TensorInfo(name=f"t{number + 1}", dtype="float32", shape=(1, 32, 40, 40)),),
            samples_ms=tuple(0.1 + sample / 1000 for sample in range(200)),
            macs=10**7 if number % 5 == 0 else None,
            read_bytes=204_800,
            written_bytes=204_800,
        )
        for number in range(5000)
    )
    profile = Profile(
        label="made",
        model_digest="",
        backend="onnxruntime",
        runtime=onnxruntime_traits(("CPUExecutionProvider",)),
        providers=("CPUExecutionProvider",),
        machine=Machine(system="", architecture="", cpu="", cpu_count=2, memory_bytes=0),
        versions={},
        options={},
        inputs=(),
        outputs=(),
        warmup_passes=0,
        warmup_ms=0,
        runs=(ProfileRun(latency_ms=(1000.0,) * 200),),
        layers=layers,
        roofs=Roofs(macs_per_s=1e11, bytes_per_s=1e10, how=""),
    )
    seconds = min(timed(lambda: triage(profile)) for _ in range(5)) / 1e3
    print(f"triage of 5,000 layers with 200 samples each: {seconds:.2f} s")


def main() -> None:
    logging.disable(logging.CRITICAL)
    with tempfile.TemporaryDirectory() as name:
        bench_advice(Path(name))
        bench_threads()
        bench_start(Path(name))
    bench_triage()


if __name__ == "__main__":
    main()
