"""Libraries of custom operators for ONNX Runtime, compiled here: every step that runs models loads them."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import numpy_helper

from ndld_flow.base.errors import BackendError, ModelError
from ndld_flow.runtimes.onnxruntime.onnxruntime_session import SessionSettings, open_model
from tests.support import models
from tests.support.command_line import ndld_flow
from tests.support.editing_fixtures import parse

MODEL = """<ir_version: 8, opset_import: ["" : 17, "com.acme" : 1]>
g (float[2, 64] x) => (float[2, 64] y) {
    [matmul] m = MatMul (x, w)
    [scale] s = com.acme.Scaled (m)
    [relu] y = Relu (s)
}"""


def compile_library(path: Path, factor: int = 2) -> Path:
    """Write a library with the operator `com.acme::Scaled`, which multiplies by a factor."""
    if shutil.which("cc") is None:
        pytest.skip("there is no C compiler")
    source = Path(__file__).parents[1] / "support" / "custom_op.c"
    subprocess.run(["cc", "-shared", "-fPIC", "-w", f"-DFACTOR={factor}", "-o", path, source], check=True)
    return path


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with a model of a custom operator and the operator's library."""
    weights = np.random.default_rng(0).normal(size=(64, 64)).astype(np.float32)
    model = parse(MODEL)
    model.graph.initializer.append(numpy_helper.from_array(weights, "w"))
    models.save(model, tmp_path / "model.onnx")
    compile_library(tmp_path / "libacme.so")
    return tmp_path


def write_recipe(folder: Path, steps: dict[str, dict[str, Any]], libraries: bool = True) -> None:
    given = {"custom_ops": ["libacme.so"]} if libraries else {}
    recipe = {
        "model": "model.onnx",
        "inputs": {"x": {"shape": [2, 64], "data": "random"}},
        "steps": {name: {**settings, **given} for name, settings in steps.items()},
    }
    (folder / "r.yaml").write_text(json.dumps(recipe))


QUICK = {"runs": 1, "passes": 3, "duration": 0, "stable": 0, "warmup": 0, "layer_passes": 2}


def test_a_session_has_the_operators_of_the_library(folder: Path) -> None:
    x = np.ones((2, 64), np.float32)
    with pytest.raises(ModelError, match=r"com.acme:Scaled.* `custom_ops` loads a library with operators of your own"):
        open_model(folder / "model.onnx", SessionSettings())
    results = []
    for factor in (2, 6):
        library = compile_library(folder / f"lib{factor}.so", factor)
        binding = open_model(folder / "model.onnx", SessionSettings(custom_ops=(str(library),))).bind({"x": x})
        binding.run()
        results.append(np.asarray(binding.outputs()["y"]))
    np.testing.assert_allclose(3 * results[0], results[1], rtol=1e-5)


@pytest.mark.parametrize("content", [b"no library", b""])
def test_a_library_that_does_not_load_is_named_with_the_reason(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "libbad.so").write_bytes(content)
    models.save(parse("g (float[2] x) => (float[2] y) { y = Relu (x) }"), tmp_path / "model.onnx")
    with pytest.raises(BackendError, match=r"does not load .*libbad\.so: .* must export `RegisterCustomOps`"):
        open_model(tmp_path / "model.onnx", SessionSettings(custom_ops=(str(tmp_path / "libbad.so"),)))


@pytest.mark.thorough
def test_every_step_that_runs_models_loads_the_library(folder: Path) -> None:
    write_recipe(
        folder,
        {
            "profile": QUICK,
            "check_accuracy": {"candidate": "source", "layers": True},
            "inspect_activations": {"from": "source"},
            "find_precision": {"from": "source", "precision": "int8", "int8": {"min_intensity": 0}},
            "quantize": {"from": "source", "min_intensity": 0},
            "again": {"step": "check_accuracy", "candidate": "quantize", "tolerance": None},
        },
    )
    done = ndld_flow("run", "r.yaml", "--trust", cwd=folder)
    assert done.returncode == 0, done.stdout + done.stderr
    record = json.loads((folder / "outputs/runs/r/latest/run.json").read_text())
    assert {step["name"]: step["outcome"] for step in record["steps"]} == dict.fromkeys(
        ("profile", "check_accuracy", "inspect_activations", "find_precision", "quantize", "again"), "done"
    )


def test_a_library_runs_code_and_needs_a_trusted_recipe(folder: Path) -> None:
    write_recipe(folder, {"profile": QUICK})
    refused = ndld_flow("run", "r.yaml", cwd=folder)
    assert refused.returncode == 2
    assert "custom_ops" in refused.stderr
    assert "--trust" in refused.stderr


def test_the_contents_of_the_library_are_part_of_the_key(folder: Path) -> None:
    write_recipe(folder, {"inspect_activations": {"from": "source"}})
    assert ndld_flow("run", "r.yaml", "--trust", cwd=folder).returncode == 0
    assert "reused" in ndld_flow("plan", "r.yaml", "--trust", cwd=folder).stdout
    compile_library(folder / "libacme.so", factor=3)
    planned = ndld_flow("plan", "r.yaml", "--trust", cwd=folder).stdout
    assert "input changed" in planned
    assert "reused" not in planned


def test_a_model_without_the_library_is_refused_with_the_operator(folder: Path) -> None:
    write_recipe(folder, {"inspect_activations": {"from": "source"}}, libraries=False)
    done = ndld_flow("run", "r.yaml", cwd=folder)
    assert done.returncode == 2
    assert "com.acme:Scaled" in done.stdout + done.stderr
