"""`optimize`, and the grid of all that it may choose, as contenders of the benchmark."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import yaml

from ndld_flow.base.errors import NdldFlowError
from ndld_flow.execution.events import Event, RunFinished
from ndld_flow.execution.request import Request as RunRequest
from ndld_flow.optimize.compose import read_model
from ndld_flow.optimize.options import OptimizeOptions
from ndld_flow.sweep.run_request import run_request
from tests.benchmarks.rivals.protocol import Delivery, Request
from tests.support.rivalry.subjects import write_files

_LEVELS = {"disabled": 0, "basic": 1, "extended": 2, "layout": 3, "all": 99}
"""`optimization` of a runtime -> the value of ONNX Runtime's `GraphOptimizationLevel`."""


def optimize(request: Request, target: str) -> Delivery:
    """Return the model that the command delivers."""
    delivered = request.folder / "fast.onnx"
    options = _options(request, target)
    command = [sys.executable, "-m", "ndld_flow", "optimize", str(request.model), "--for", target, "--json"]
    command += [text for name in options.data for text in ("--data", name)]
    command += ["--keep", options.keep[0], "--threads", str(request.threads), "-o", str(delivered)]
    command += ["--outputs", str(request.folder / "outputs")]
    command += ["--budget", request.budget] if request.budget else []
    started = time.monotonic()
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    command_s = time.monotonic() - started
    found = json.loads(done.stdout)
    (request.folder / "optimization.json").write_text(done.stdout)
    return replace(_delivery(delivered, found["runtime"], found["delivered"], found), command_s=command_s)


def run_grid(request: Request, target: str) -> list[Delivery]:
    """Return all variants that could be made, whether right or not; the judge measures them all."""
    composer = read_model(request.model, _options(request, target), request.folder / "samples")
    own = request.folder / "recipes"
    own.mkdir()
    found: list[Delivery] = []
    for number, variant in enumerate(composer.variants):
        recipe, kept = own / f"{number}.yaml", request.folder / f"{number}.onnx"
        recipe.write_text(composer.compose_proof(variant, recipe, kept, part="check"))
        try:
            finished = run_request(RunRequest(recipe=recipe, outputs=request.folder / "outputs"), _log)
        except NdldFlowError as error:
            print(f"{variant.name}: {error}", flush=True)
            continue
        assert isinstance(finished, RunFinished)
        model = request.model if variant.is_source else Path(finished.folder) / variant.result / "model.onnx"
        shutil.copyfile(model, kept)
        found.append(_delivery(kept, variant.runtime, variant.name, {}))
    return found


def _log(event: Event) -> None:
    print(time.strftime("%H:%M:%S"), str(event)[:300], flush=True)


def _options(request: Request, target: str) -> OptimizeOptions:
    folders = write_files(request.calibration, request.folder / "data")
    data = tuple(f"{name}={folder}" for name, folder in folders.items())
    return OptimizeOptions(target, data, (f"cosine >= {request.bound}",), threads=(request.threads,))


def _delivery(model: Path, runtime: str, name: str, record: Mapping[str, Any]) -> Delivery:
    """Return how to run a model, from the value of `runtime:`, and what the command has said of it."""
    read = yaml.safe_load(runtime)
    settings = read if isinstance(read, dict) else {"backend": read}
    said = (name, record.get("budget_s"), None, record.get("ending", ""))
    if settings["backend"] == "onnxruntime":
        unknown = set(settings) - {"backend", "optimization"}
        if unknown:
            raise ValueError(f"the judge does not know {', '.join(unknown)} of {runtime}")
        level = {"graph_optimization_level": _LEVELS[settings["optimization"]]} if "optimization" in settings else {}
        return Delivery(str(model), "onnxruntime", level, *said)
    given = {"PERFORMANCE_HINT": "LATENCY"}
    precision = settings.get("inference_precision", "f32")
    if precision != "default":
        given["INFERENCE_PRECISION_HINT"] = precision
    return Delivery(str(model), "openvino", given, *said)
