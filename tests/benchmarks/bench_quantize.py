"""INT8 on PP-OCR det and rec: how much faster than fp32 on this CPU, and how far off on pictures it has not seen.

Prints, asserts nothing: `python -m tests.benchmarks.bench_quantize [--threads 1] [--only percentile]`.

Both sides are the cleaned-up model (`sanitize`). They run in fresh processes that take turns (A B A B ...); the ratio
of each pair of medians is one observation, and the interval is of 10,000 bootstrap resamples of the pairs. With
`--cpu-time` seconds are those the process computed, with one thread: what a busy machine leaves comparable.
"""

from __future__ import annotations

import argparse
import random
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from tests.support.models_run import run_step
from tests.support.pictures import draw_lines, draw_pages
from tests.support.samples import fetch_sample

INPUTS: dict[str, dict[str, Any]] = {
    "det": {"shape": [1, 3, 320, 320], "mean": [0.485, 0.456, 0.406], "std": [0.229, 0.224, 0.225]},
    "rec": {"shape": [1, 3, 48, 320], "mean": [0.5], "std": [0.5]},
}
VARIANTS: dict[str, dict[str, Any]] = {
    "det": {
        "default": {},
        "percentile, 8 bits": {"method": "percentile", "reduce_range": False},
        "everything": {"min_intensity": 0},
    },
    "rec": {
        "default": {},
        "percentile, 8 bits": {"method": "percentile", "reduce_range": False},
        "everything": {"min_intensity": 0},
    },
}


def measure(model: Path, passes: int, threads: int, cpu_time: bool) -> None:
    """In a process of its own: print the median of so many passes, in ms."""
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1 if cpu_time else threads
    session = ort.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    wanted = session.get_inputs()[0]
    feeds = {wanted.name: np.random.default_rng(0).uniform(-1, 1, wanted.shape).astype(np.float32)}
    clock = time.process_time if cpu_time else time.perf_counter
    times = []
    for _ in range(passes + 5):
        start = clock()
        session.run(None, feeds)
        times.append(clock() - start)
    print(statistics.median(times[5:]) * 1e3)


def median_ms(model: Path, arguments: argparse.Namespace) -> float:
    command = [sys.executable, "-m", "tests.benchmarks.bench_quantize", "--measure", str(model)]
    command += [
        "--passes",
        str(arguments.passes),
        "--threads",
        str(arguments.threads),
        *(["--cpu-time"] if arguments.cpu_time else []),
    ]
    return float(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


def interval(ratios: list[float]) -> tuple[float, float]:
    """95 % of the median, by bootstrap over pairs."""
    pick = random.Random(0)
    medians = sorted(statistics.median(pick.choices(ratios, k=len(ratios))) for _ in range(10_000))
    return medians[250], medians[9_750]


def agreement(reference: Path, candidate: Path, folder: Path, given: dict[str, Any]) -> str:
    from ndld_flow.steps.check_accuracy import CheckAccuracy
    from ndld_flow.store.kinds import Onnx

    reads = {"reference": Onnx(reference, "source", "digest")}
    done = run_step(CheckAccuracy, candidate, folder, {"tolerance": {"cosine": 0.9}}, given, artifacts=reads)
    result = {
        name: done.result.metrics[name].value for name in ("cosine", "snr_db", "top1") if name in done.result.metrics
    }
    return ", ".join(f"{name} {value:.4f}" for name, value in result.items())


def compare(name: str, source: Path, folder: Path, arguments: argparse.Namespace) -> None:
    from ndld_flow.steps.quantize import Quantize
    from ndld_flow.steps.sanitize import Sanitize

    draw = draw_pages if name == "det" else draw_lines
    seen, unseen = (draw(folder / f"{name}-{seed}", arguments.pictures, seed) for seed in (1, 2))
    calibration, check = ({"x": {**INPUTS[name], "data": str(pictures)}} for pictures in (seen, unseen))
    cleaned = run_step(Sanitize, source, folder / f"{name}-clean", {"input_shapes": {"x": INPUTS[name]["shape"]}})
    plain = cleaned.out / "model.onnx"
    wanted = {variant: item for variant, item in VARIANTS[name].items() if variant.startswith(arguments.only)}
    for number, (variant, settings) in enumerate(wanted.items()):
        start = time.perf_counter()
        step = run_step(Quantize, plain, folder / f"{name}-{number}", settings, calibration)
        took = time.perf_counter() - start
        model = step.out / "model.onnx"
        pairs = [(median_ms(plain, arguments), median_ms(model, arguments)) for _ in range(arguments.rounds)]
        ratios = [before / after for before, after in pairs]
        low, high = interval(ratios)
        accuracy = agreement(plain, model, folder / f"{name}-{number}-check", check)
        fastest = f"{min(a for a, _ in pairs):.1f} -> {min(b for _, b in pairs):.1f} ms"
        print(
            f"{name} {variant:20} {step.result.summary}; made in {took:.1f} s\n"
            f"    {statistics.median(ratios):.2f}x as fast (95 %: {low:.2f} to {high:.2f}; best {fastest}), {accuracy}",
            flush=True,
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pictures", type=int, default=16, help="to calibrate on, and as many to check on")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--passes", type=int, default=30)
    parser.add_argument("--threads", type=int, default=0, help="within an operator; 0 leaves it to ONNX Runtime")
    parser.add_argument("--only", default="", help="variants whose name begins so")
    parser.add_argument("--cpu-time", action="store_true")
    parser.add_argument("--measure", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.measure:
        measure(arguments.measure, arguments.passes, arguments.threads, arguments.cpu_time)
        return
    with tempfile.TemporaryDirectory() as folder:
        for name in INPUTS:
            compare(name, fetch_sample(name), Path(folder), arguments)


if __name__ == "__main__":
    main()
