"""A check as a script for Polygraphy, and outputs that Polygraphy saved as a reference or a candidate."""

from __future__ import annotations

import json
import os
import runpy
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ndld_flow.base.errors import RequestError
from ndld_flow.base.extras import EngineBackend
from ndld_flow.records.accuracy import Accuracy
from ndld_flow.step import DataFile
from ndld_flow.steps.check_accuracy import CheckAccuracy
from ndld_flow.store.kinds import Engine
from tests.accuracy.test_check_accuracy import compare
from tests.support.engine_standins import make_standins
from tests.support.models_run import write_model

CHANNELS = "g (float[1, 3, 4, 5] x) => (float[1, 3, 4, 5] y) <float[1, 3, 1, 1] w = {SCALES}> { y = Mul (x, w) }"
IMAGE = "g (float[n, 1, 20, 24] x) => (float[n, 1, 20, 24] y) { p = Sigmoid (x) y = Mul (p, p) }"
WRONG_IMAGE = IMAGE.replace("Mul (p, p)", "Sin (p)")
CLASSES = "g (float[n, 6] x) => (float[n, 6] y, int64[n] z) { y = Softmax (x) z = ArgMax <axis = 1, keepdims = 0> (x) }"
WRONG_CLASSES = CLASSES.replace("Softmax (x)", "Softmax <axis = 0> (x)")
NOT_FINITE = "g (float[n, 6] x) => (float[n, 6] y) { h = Log (x) y = Abs (h) }"


def script_of(check: Path) -> dict[str, Any]:
    return runpy.run_path(str(check / "polygraphy" / "check.py"))


@pytest.mark.parametrize(
    ("reference", "candidate", "shape", "passes"),
    [
        (CHANNELS.replace("SCALES", "1, 100, 0.5"), CHANNELS.replace("SCALES", "1, 100.1, 0.5"), [1, 3, 4, 5], True),
        # A cosine of 1: only the channel's own spread shows it.
        (CHANNELS.replace("SCALES", "1, 100, 0.5"), CHANNELS.replace("SCALES", "1, 100, 0.2"), [1, 3, 4, 5], False),
        (IMAGE, IMAGE, [2, 1, 20, 24], True),
        (IMAGE, WRONG_IMAGE, [2, 1, 20, 24], False),
        (CLASSES, CLASSES, [3, 6], True),
        (CLASSES, WRONG_CLASSES, [3, 6], False),
        (NOT_FINITE, NOT_FINITE.replace("Log (x)", "Exp (x)"), [3, 6], False),
        (CLASSES, CLASSES.replace(", int64[n] z", ""), [3, 6], False),
        (
            CLASSES,
            CLASSES.replace("keepdims = 0", "keepdims = 1").replace("int64[n] z", "int64[n, 1] z"),
            [3, 6],
            False,
        ),
    ],
)
def test_the_script_measures_and_decides_as_the_check(
    reference: str, candidate: str, shape: list[int], passes: bool, tmp_path: Path
) -> None:
    spread = {"x": {"shape": shape, "range": [-1.0, 1.0]}}
    bounds = {"cosine": 0.5, "rtol": 1e-2, "atol": 1e-2, "mismatched": "60 %"}
    ran, accuracy = compare(tmp_path, reference, candidate, spread, tolerance=bounds, polygraphy=True, samples=3)
    assert ran.result.passed == passes
    script = script_of(ran.out)
    models = [str(tmp_path / f"{name}.onnx") for name in ("reference", "candidate")]
    assert script["main"](*models) == int(not passes)

    rules = json.loads((ran.out / "polygraphy" / "bounds.json").read_text())
    mine, theirs = (script["run"](model, "inputs.json") for model in models)
    for output in (output for output in accuracy.outputs if output.metrics):
        rule = rules[output.output]
        pairs = [(r[output.output], c[output.output]) for r, c in zip(mine, theirs, strict=True)]
        found = script["measure"](pairs, rule)
        for metric in rule["bounds"].keys() | ({"max_abs", "rmse", "relative_rms"} & output.metrics.keys()):
            assert found[metric] == pytest.approx(output.metrics[metric], rel=1e-6, abs=1e-9), metric


@pytest.mark.parametrize(
    ("backend", "release"), [("tensorrt", "10.16"), pytest.param("tensorrt_rtx", "1.7", marks=pytest.mark.thorough)]
)
def test_the_script_judges_engines(
    backend: EngineBackend, release: str, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """By Polygraphy's own runner, in the stand-ins of TensorRT and CUDA."""
    standins = make_standins(tmp_path_factory)
    library = standins.library(backend, release)
    [site] = library.glob("lib/python*/site-packages")
    right, wrong = (graph.replace("n, ", "2, ") for graph in (IMAGE, WRONG_IMAGE))
    ran, _ = compare(tmp_path, right, right, {"x": {"shape": [2, 1, 20, 24]}}, polygraphy=True, samples=2)
    chosen = {
        "PYTHONPATH": str(site), "LD_LIBRARY_PATH": str(standins.cudart), "STANDIN_COMPUTES": "1",
        "POLYGRAPHY_USE_TENSORRT_RTX": str(int(backend == "tensorrt_rtx")),
    }  # fmt: skip
    codes = []
    for graph in (right, wrong):
        engine = standins.engine(library, backend, graph, {}) / Engine.main
        program = [sys.executable, str(ran.out / "polygraphy/check.py"), str(tmp_path / "reference.onnx"), str(engine)]
        done = subprocess.run(program, env={**os.environ, **chosen}, capture_output=True, text=True, check=False)
        assert "trt-runner" in done.stdout, done.stderr
        codes.append((done.returncode, "y: within its bounds" in done.stdout))
    assert codes == [(0, True), (1, False)]


def save(folder: Path, model: str, count: int = 2) -> dict[str, str]:
    """Run a model as `polygraphy run --save-inputs --save-outputs` does; return the settings that read the files."""
    from polygraphy.backend.onnxrt import OnnxrtRunner, SessionFromOnnx
    from polygraphy.comparator import Comparator

    stream = np.random.default_rng(0)
    feeds = [{"x": stream.normal(size=(3, 6)).astype(np.float32)} for _ in range(count)]
    paths = {name: str(folder / f"{name}.json") for name in ("inputs", "outputs")}
    runner = OnnxrtRunner(SessionFromOnnx(model), name="trt-of-another-machine")
    Comparator.run([runner], data_loader=feeds, **{f"save_{name}_path": path for name, path in paths.items()})
    (folder / "saved.py").write_text(
        "from polygraphy.json import load_json\ndef samples():\n    return load_json('inputs.json')\n"
    )
    return {"backend": "polygraphy", **paths}


def test_saved_outputs_are_a_reference_or_a_candidate(in_folder: Path) -> None:
    write_model(in_folder / "model.onnx", CLASSES)
    right = save(in_folder, "model.onnx")
    loader = {"loader": str(in_folder / "saved.py")}

    def check(name: str, reference: str, candidate: str, **settings: Any) -> tuple[bool, Accuracy]:
        given = {"x": {"shape": [3, 6]}}
        ran, accuracy = compare(in_folder / name, reference, candidate, given, **{**loader, **settings})
        return ran.result.passed, accuracy

    for name in ("same", "reference", "wrong", "wrong_reference", "0", "1", "2", "3"):
        (in_folder / name).mkdir()
    passed, accuracy = check("same", CLASSES, CLASSES, runtime=right)
    assert passed
    assert accuracy.execution_candidate is not None
    assert accuracy.execution_candidate.described == "outputs saved in outputs.json on trt-of-another-machine"
    assert check("reference", CLASSES, CLASSES, reference_runtime=right)[0]
    assert not check("wrong", CLASSES, WRONG_CLASSES, reference_runtime=right)[0]
    assert not check("wrong_reference", WRONG_CLASSES, CLASSES, runtime=right)[0]

    changes: list[tuple[dict[str, Any], str]] = [
        ({"loader": None}, "inputs.json"),  # random samples, whose outputs nobody saved
        ({"runtime": {**right, "runner": "onnxrt"}}, "trt-of-another-machine"),
        ({"runtime": {**right, "outputs": right["inputs"]}}, "inputs.json"),
        ({"runtime": {**right, "outputs": str(in_folder / "model.onnx")}}, "--save-outputs"),
    ]
    for index, (change, word) in enumerate(changes):
        with pytest.raises(RequestError, match=word):
            check(str(index), CLASSES, CLASSES, **{"runtime": right, **change})

    step = CheckAccuracy.model_validate_json(json.dumps({"runtime": right}))
    assert {held.dotted for held in step.held(DataFile)} == {"runtime.inputs", "runtime.outputs"}
