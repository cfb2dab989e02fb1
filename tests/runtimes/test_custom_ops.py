"""Libraries of custom operators for ONNX Runtime, compiled here: every step that runs models loads them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from ndld_flow.base.errors import BackendError, ModelError
from ndld_flow.runtimes.onnxruntime.onnxruntime_session import SessionSettings, open_model
from tests.support import models
from tests.support.command_line import ndld_flow
from tests.support.custom_libraries import compile_library
from tests.support.editing_fixtures import parse
from tests.support.message_files import CheckMessage

MODEL = """<ir_version: 8, opset_import: ["" : 17, "com.acme" : 1]>
g (float[2, 64] x) => (float[2, 64] y) {
    [matmul] m = MatMul (x, w)
    [scale] s = com.acme.Scaled (m)
    [relu] y = Relu (s)
}"""


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


def test_a_session_has_the_operators_of_the_library(folder: Path, check_message: CheckMessage) -> None:
    x = np.ones((2, 64), np.float32)
    with pytest.raises(ModelError) as caught:
        open_model(folder / "model.onnx", SessionSettings())
    check_message(caught.value)
    results = []
    for factor in (2, 6):
        library = compile_library(folder / f"lib{factor}.so", factor)
        binding = open_model(folder / "model.onnx", SessionSettings(custom_ops=(str(library),))).bind({"x": x})
        binding.run()
        results.append(np.asarray(binding.outputs()["y"]))
    np.testing.assert_allclose(3 * results[0], results[1], rtol=1e-5)


@pytest.mark.parametrize("content", [b"no library", b""])
def test_a_library_that_does_not_load_is_named_with_the_reason(
    tmp_path: Path, content: bytes, check_message: CheckMessage
) -> None:
    (tmp_path / "libbad.so").write_bytes(content)
    models.save(parse("g (float[2] x) => (float[2] y) { y = Relu (x) }"), tmp_path / "model.onnx")
    with pytest.raises(BackendError) as caught:
        open_model(tmp_path / "model.onnx", SessionSettings(custom_ops=(str(tmp_path / "libbad.so"),)))
    check_message(caught.value)


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


def test_steps_that_examine_models_load_the_library(folder: Path) -> None:
    write_recipe(
        folder,
        {
            "lint": {},
            "sanitize": {},
            "fix_shapes": {"from": "source", "shapes": {"x": [2, 64]}},
            "half": {"step": "convert_fp16", "from": "source"},
            "marked": {
                "step": "constrain_precision",
                "from": "source",
                "op_types": {"Relu": "fp16"},
            },
            "typed": {"step": "apply_precision", "from": "marked"},
            "edit": {"from": "source", "operations": [{"rename_tensors": {"names": {"m": "product"}}}]},
            "small": {"step": "quantize", "from": "source", "min_intensity": 0},
        },
    )
    done = ndld_flow("run", "r.yaml", "--trust", cwd=folder)
    assert done.returncode == 0, done.stdout + done.stderr
    run = folder / "outputs/runs/r/latest"
    assert "is not a registered" not in (run / "log.txt").read_text()
    findings = json.loads((run / "lint/findings.json").read_text())
    assert [found["check"] for found in findings["findings"]] == ["unknown_op"]
    assert "does not load `custom_ops`" in findings["checks_skipped"]["polygraphy"]
    types = {
        info.name: info.type.tensor_type.elem_type for info in onnx.load(run / "sanitize/model.onnx").graph.value_info
    }
    assert types["s"] == onnx.TensorProto.FLOAT  # only the library declares it


@pytest.mark.parametrize("libraries", [True, False])
def test_a_result_that_the_operators_of_the_library_reject_is_refused(
    folder: Path, libraries: bool, check_message: CheckMessage
) -> None:
    """Without the library neither model loads, so that nothing can be said of the result."""
    cast = {"insert_node": {"op_type": "Cast", "attributes": {"to": "float16"}, "before": "scale", "input": 0}}
    write_recipe(folder, {"edit": {"operations": [cast]}}, libraries)
    done = ndld_flow("run", "r.yaml", "--trust", cwd=folder)
    if libraries:
        assert done.returncode == 2, done.stdout
        check_message(done.stderr)
    else:
        assert done.returncode == 0, done.stderr
        assert "does not load" in (folder / "outputs/runs/r/latest/log.txt").read_text()


def test_a_library_that_does_not_load_stops_a_step_that_examines_models(
    folder: Path, check_message: CheckMessage
) -> None:
    (folder / "libacme.so").write_bytes(b"no library")
    write_recipe(folder, {"sanitize": {}})
    done = ndld_flow("run", "r.yaml", "--trust", cwd=folder)
    assert done.returncode == 2
    check_message(done.stderr)
