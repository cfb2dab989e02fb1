"""`custom_operators:` of a recipe: one place, used by every step, and checked node by node on real inputs."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import numpy_helper

from ndld_flow import api
from ndld_flow.base.errors import RecipeError, RequestError
from ndld_flow.execution.events import RunFinished
from ndld_flow.records.accuracy import Accuracy
from ndld_flow.records.document import read_document
from tests.support import models
from tests.support.custom_libraries import compile_library
from tests.support.editing_fixtures import parse
from tests.support.recipes import load_recipe

MODEL = """<ir_version: 8, opset_import: ["" : 17, "com.acme" : 1]>
g (float[2, 64] x) => (float[2, 64] y) {
    [matmul] m = MatMul (x, w)
    [first] s = com.acme.Scaled (m)
    [second] t = com.acme.Scaled (s)
    [relu] y = Relu (t)
}"""
FUNCTION = """<domain: "com.acme", opset_import: ["" : 17]>
Scaled (x) => (y) {
    two = Constant <value = float {2.0}> ()
    y = Mul (x, two)
}"""
GELU = """<ir_version: 8, opset_import: ["" : 17, "com.microsoft" : 1]>
g (float[2, 8] x) => (float[2, 8] y) { y = com.microsoft.QuickGelu <alpha = 1.5> (x) }"""
NUMPY = """
import numpy as np

def Scaled(x):
    x *= 2
    return x
"""


@pytest.fixture
def folder(in_folder: Path) -> Path:
    """A folder with a model of two nodes of a custom operator, libraries that multiply by 2 and 3, and references."""
    model = parse(MODEL)
    model.graph.initializer.append(
        numpy_helper.from_array(np.random.default_rng(0).normal(size=(64, 64)).astype(np.float32), "w")
    )
    models.save(model, in_folder / "model.onnx")
    compile_library(in_folder / "libacme.so")
    (in_folder / "scaled.onnxtxt").write_text(FUNCTION)
    (in_folder / "scaled.py").write_text(NUMPY)
    (in_folder / "libplugin.so").write_bytes(b"a plugin")
    return in_folder


def write(folder: Path, steps: Mapping[str, Any], model: str = "model.onnx", **operators: Mapping[str, str]) -> Path:
    named = {name.replace("__", "::").replace("_", ".", 1): given for name, given in operators.items()}
    path = folder / "r.yaml"
    path.write_text(json.dumps({"name": "r", "model": model, "custom_operators": named, "steps": steps}))
    return path


def check(folder: Path, trust: bool = True, model: str = "model.onnx", **operators: Mapping[str, str]) -> Accuracy:
    """Run `check_operators`, and return its record."""
    finished = api.run(write(folder, {"check": {"step": "check_operators"}}, model, **operators), trust=trust)
    assert isinstance(finished, RunFinished)
    accuracy = read_document(Accuracy, Path(finished.artifacts["check"]))
    assert finished.exit_code == (0 if accuracy.passed else 1)
    return accuracy


@pytest.mark.parametrize("reference", ["scaled.onnxtxt", "scaled.py"])
def test_a_library_that_does_what_its_reference_defines_passes(folder: Path, reference: str) -> None:
    accuracy = check(folder, com_acme__Scaled={"library": "libacme.so", "reference": reference})
    assert accuracy.passed
    assert [output.output for output in accuracy.outputs] == ["s of com.acme::Scaled", "t of com.acme::Scaled"]
    assert all(output.metrics["max_abs"] == 0 for output in accuracy.outputs)


def test_each_wrong_node_fails_by_itself(folder: Path) -> None:
    compile_library(folder / "libacme.so", factor=3)
    accuracy = check(folder, com_acme__Scaled={"library": "libacme.so", "reference": "scaled.onnxtxt"})
    assert not accuracy.passed
    assert [output.metrics["relative_rms"] for output in accuracy.outputs] == pytest.approx([0.5, 0.5]), (
        "the second node gets what the first one wrote, and is not judged by the error of the first"
    )


def test_a_factor_that_a_whole_model_would_tolerate_fails(folder: Path) -> None:
    compile_library(folder / "libacme.so", factor=2.01)
    assert not check(folder, com_acme__Scaled={"library": "libacme.so", "reference": "scaled.onnxtxt"}).passed


def test_operators_of_onnx_runtime_need_neither_library_nor_trust(in_folder: Path) -> None:
    models.save(parse(GELU), in_folder / "gelu.onnx")
    (in_folder / "gelu.onnxtxt").write_text(
        """<domain: "com.microsoft", opset_import: ["" : 17]>
        QuickGelu <alpha> (x) => (y) {
            a = Constant <value_float: float = @alpha> ()
            scaled = Mul (x, a)
            gate = Sigmoid (scaled)
            y = Mul (x, gate)
        }"""
    )
    accuracy = check(in_folder, False, "gelu.onnx", com_microsoft__QuickGelu={"reference": "gelu.onnxtxt"})
    assert accuracy.passed
    assert any("ONNX Runtime itself" in note for note in accuracy.notes)


def test_strings_are_compared(in_folder: Path) -> None:
    text = """<ir_version: 9, opset_import: ["" : 20]>
    g (string[2] x) => (string[2] y) { y = StringConcat (x, x) }"""
    models.save(parse(text), in_folder / "text.onnx")
    for result, passed in (("x + z", True), ("x", False)):
        (in_folder / "text.py").write_text(f"def StringConcat(x, z):\n    return {result}\n")
        assert check(in_folder, model="text.onnx", StringConcat={"reference": "text.py"}).passed is passed


def test_a_function_gets_the_attributes(in_folder: Path) -> None:
    text = """<ir_version: 8, opset_import: ["" : 17]>
    g (float[2, 8] x) => (float[2, 8] y) { m = Neg (x)  y = LeakyRelu <alpha = 0.25> (m) }"""
    models.save(parse(text), in_folder / "leaky.onnx")
    (in_folder / "leaky.py").write_text(
        "import numpy as np\n\ndef LeakyRelu(x, alpha):\n    return np.where(x < 0, alpha * x, x)\n"
    )
    assert check(in_folder, model="leaky.onnx", LeakyRelu={"reference": "leaky.py"}).passed


def test_what_was_not_checked_is_listed(folder: Path) -> None:
    accuracy = check(
        folder,
        com_acme__Scaled={"library": "libacme.so", "reference": "scaled.onnxtxt", "plugin": "libplugin.so"},
        com_acme__Other={"reference": "scaled.onnxtxt"},
    )
    assert "the TensorRT plugin of com.acme::Scaled was not checked: only engines load it" in accuracy.notes
    assert "com.acme::Other was not checked: the model's main graph has no such node" in accuracy.notes


def test_nothing_to_check_is_an_error_and_not_a_success(folder: Path) -> None:
    with pytest.raises(RequestError, match="no custom operator has a `reference`"):
        check(folder, com_acme__Scaled={"library": "libacme.so"})
    with pytest.raises(RequestError, match=r"the model has no node of com\.acme::Other"):
        check(folder, com_acme__Other={"reference": "scaled.onnxtxt"})
    (folder / "scaled.py").write_text("def scaled(x): return x")
    with pytest.raises(RequestError, match="defines no function 'Scaled'"):
        check(folder, com_acme__Scaled={"library": "libacme.so", "reference": "scaled.py"})
    (folder / "scaled.py").write_text("def Scaled(x):\n    return x + y")
    with pytest.raises(RequestError, match=r"scaled\.py:2: NameError"):
        check(folder, com_acme__Scaled={"library": "libacme.so", "reference": "scaled.py"})


def test_code_needs_a_trusted_recipe(folder: Path) -> None:
    for given in ({"library": "libacme.so"}, {"reference": "scaled.py"}, {"plugin": "libplugin.so"}):
        with pytest.raises(RecipeError, match="--trust"):
            check(folder, trust=False, com_acme__Scaled=given)


def test_every_step_gets_the_libraries_unless_it_has_its_own(folder: Path) -> None:
    steps = {
        "sanitize": {},
        "half": {"step": "convert_fp16"},
        "agree": {"step": "check_accuracy", "candidate": "half"},
        "speed": {"step": "profile"},
        "other": {"step": "profile", "custom_ops": []},
        "engine": {"step": "build_engine", "backend": "tensorrt"},
        "fast": {"step": "profile", "backend": "tensorrt", "engine": "engine"},
        "check": {"step": "check_operators", "from": "source"},
    }
    given = {"library": "libacme.so", "plugin": "libplugin.so", "reference": "scaled.onnxtxt"}
    recipe = load_recipe(write(folder, steps, com_acme__Scaled=given), trust=True)
    loaded = {step.name: step.data_files for step in recipe.steps}
    assert loaded["sanitize"] == loaded["half"] == loaded["agree"] == loaded["speed"] == {"custom_ops.0": "libacme.so"}
    assert loaded["other"] == {}
    assert loaded["engine"] == loaded["fast"] == {"plugins.0": "libplugin.so"}
    assert set(loaded["check"].values()) == set(given.values())


def test_a_run_can_be_repeated_from_its_folder(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    steps = {"sanitize": {}, "check": {"step": "check_operators"}}
    given = {"library": "libacme.so", "reference": "scaled.onnxtxt"}
    finished = api.run(write(folder, steps, com_acme__Scaled=given), trust=True)
    assert isinstance(finished, RunFinished)
    again = api.run(Path(finished.folder) / "recipe.yaml", trust=True, outputs=folder / "outputs")
    assert isinstance(again, RunFinished)
    assert again.nothing_to_do
    compile_library(folder / "libacme.so", factor=3)
    assert api.run(folder / "r.yaml", trust=True).exit_code == 1, "the contents of a library are part of the key"


def test_mistakes_are_reported_at_their_place(folder: Path) -> None:
    with pytest.raises(RecipeError, match=r"custom_operators\.com\.acme::Scaled: give at least one"):
        check(folder, com_acme__Scaled={})
