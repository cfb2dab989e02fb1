"""Results of `find_precision` for FP16 and INT8 on real and synthetic models: seconds, trials, kept nodes, causes.

Prints, asserts nothing: `python -m tests.benchmarks.bench_find_precision [--only det]`. Each search starts from the raw
model, without hints, in a process of its own; CPU seconds are those of that process.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from tests.support import models_precision as models
from tests.support.models_run import run_step
from tests.support.samples import fetch_sample

PIPELINES = Path(__file__).parents[2] / "pipelines"
DET = {"shape": [1, 3, 320, 320], "mean": [0.485, 0.456, 0.406], "std": [0.229, 0.224, 0.225]}
REC = {"shape": [1, 3, 48, 320], "mean": [0.5], "std": [0.5]}
RECEIPT, LINES = str(PIPELINES / "images/receipt.png"), str(PIPELINES / "images/lines")
BOUND = {"tolerance": {"cosine": 0.999}}
SILERO = {
    "input": {"shape": [1, 576], "range": [-1, 1]},
    "state": {"shape": [2, 1, 128], "data": "zeros"},
    "sr": {"data": 16000},
}
CASES: dict[str, tuple[str | Callable[[], onnx.ModelProto], dict[str, Any], dict[str, Any]]] = {
    "det": ("det", BOUND, {"x": {**DET, "data": RECEIPT}}),
    "det on noise": ("det", BOUND, {"x": DET}),
    "rec": ("rec", BOUND, {"x": {**REC, "data": LINES}}),
    "silero": ("silero", BOUND, SILERO),
    "det int8": ("det", {**BOUND, "precision": "int8"}, {"x": {**DET, "data": RECEIPT}}),
    "transformer with a mask of -1e9": (models.masked_transformer_model, BOUND, {}),
    "a hidden layer overflows": (models.overflowing_model, BOUND, {}),
    "values of 1e-9": (models.underflowing_model, BOUND, {}),
    "a long sum": (models.long_sum_model, BOUND, {}),
}
"""Name -> sample model or what makes one, settings, inputs."""


def search(name: str) -> None:
    """In a process of its own: search, and print what came of it."""
    from ndld_flow.records.precision_search import PrecisionSearch
    from ndld_flow.steps.find_precision import FindPrecision

    source, settings, inputs = CASES[name]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "made.onnx")
        if callable(source):
            onnx.save(source(), path)
            inputs = _with_mask(path, folder)
        else:
            path = fetch_sample(source)
        wall, cpu = time.perf_counter(), time.process_time()
        done = run_step(FindPrecision, path, Path(folder, "run"), settings, inputs)
        wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
        result = PrecisionSearch.model_validate_json((done.out / "precision.json").read_text())
    causes = ", ".join(f"{count} {cause}" for cause, count in Counter(kept.cause for kept in result.kept).items())
    print(f"{name}: {done.result.summary}; {causes or 'nothing kept'}; {wall:.1f} s ({cpu:.1f} s CPU)")
    for kept in result.kept[:3]:
        print(f"    {kept.op_type} {kept.node}: {kept.evidence[0].sentence}")


def _with_mask(path: Path, folder: str) -> dict[str, Any]:
    """The attention mask as data, where the model wants one."""
    if "mask" not in {value.name for value in onnx.load(path).graph.input}:
        return {}
    np.save(Path(folder, "mask.npy"), models.attention_mask())
    return {"mask": {"data": str(Path(folder, "mask.npy"))}}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="cases whose name begins so")
    parser.add_argument("--search", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.search:
        search(arguments.search)
        return
    for name in CASES:
        if name.startswith(arguments.only):
            command = [sys.executable, "-m", "tests.benchmarks.bench_find_precision", "--search", name]
            subprocess.run(command, check=True)


if __name__ == "__main__":
    main()
