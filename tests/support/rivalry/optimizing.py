"""`optimize`, and the grid of all that it may choose, as contenders of the benchmark."""

from __future__ import annotations

import shutil
import time
from pathlib import Path

import yaml

from ndld_flow import api
from ndld_flow.base.errors import NdldFlowError
from ndld_flow.recipe.optimize.compose import read_model
from ndld_flow.recipe.optimize.options import OptimizeOptions
from ndld_flow.runner.events import Event
from ndld_flow.runner.optimize.proof import Prover
from ndld_flow.runner.request import Request as RunRequest
from tests.benchmarks.rivals.protocol import Delivery, Request
from tests.support.rivalry.subjects import write_files


def optimize(request: Request, target: str) -> Delivery:
    """Return the model that `optimize` delivers."""
    delivered = request.folder / "fast.onnx"
    found = api.optimize(
        request.model, _options(request, target), output=delivered, outputs=request.folder / "outputs", listener=_log
    )
    assert found is not None
    (request.folder / "optimization.json").write_text(found.to_json())
    return _delivery(delivered, found.runtime, found.delivered)


def run_grid(request: Request, target: str) -> list[Delivery]:
    """Return all variants that could be made, whether right or not.

    Only the first that is right on all data is measured as `optimize` does. The others would take as long; the judge
    measures them all.
    """
    options = _options(request, target)
    composer = read_model(request.model, options, request.folder / "samples")
    own = request.folder / "recipes"
    own.mkdir()
    run = RunRequest(recipe=own / "none.yaml", outputs=request.folder / "outputs")
    prover = Prover(composer, own, run, _log)
    found: list[Delivery] = []
    measuring_s = 0.0
    for number, variant in enumerate(composer.variants):
        recipe = own / f"{number}.yaml"
        text = composer.compose_proof(variant, None, recipe, Path("fast.onnx"), measured=False)
        try:
            proof = prover.run(variant, None, text, recipe)
        except NdldFlowError as error:
            print(f"{variant.name}: failed {error}", flush=True)
            continue
        print(f"{variant.name}: {proof.outcome} {proof.why}", flush=True)
        assert proof.finished is not None
        made = request.model if variant.is_source else Path(proof.finished.folder) / variant.result / "model.onnx"
        kept = request.folder / f"{number}.onnx"
        shutil.copyfile(made, kept)
        costs = proof.passed and not composer.is_base(variant, None)
        still_s = measuring_s if costs else 0.0
        found.append(_delivery(kept, variant.runtime, variant.name, still_s))
        if costs and not measuring_s:
            started = time.perf_counter()
            prover.prove(variant, None)
            measuring_s = time.perf_counter() - started
    return found


def _log(event: Event) -> None:
    print(time.strftime("%H:%M:%S"), str(event)[:300], flush=True)


def _options(request: Request, target: str) -> OptimizeOptions:
    folders = write_files(request.calibration, request.folder / "data")
    data = tuple(f"{name}={folder}" for name, folder in folders.items())
    return OptimizeOptions(target, data, (f"cosine >= {request.bound}",), threads=(request.threads,))


def _delivery(model: Path, runtime: str, name: str, measuring_s: float = 0.0) -> Delivery:
    """Return how to run a model, from the value of `runtime:`."""
    read = yaml.safe_load(runtime)
    settings = read if isinstance(read, dict) else {"backend": read}
    if settings["backend"] == "onnxruntime":
        return Delivery(str(model), "onnxruntime", {}, name, measuring_s)
    given = {"PERFORMANCE_HINT": "LATENCY"}
    precision = settings.get("inference_precision", "f32")
    if precision != "default":
        given["INFERENCE_PRECISION_HINT"] = precision
    return Delivery(str(model), "openvino", given, name, measuring_s)
