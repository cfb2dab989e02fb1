"""`custom_operators:` of a recipe: one place, used by every step."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import numpy_helper

from ndld_flow import api
from ndld_flow.base.errors import RecipeError
from ndld_flow.execution.events import RunFinished
from tests.support import models
from tests.support.custom_libraries import compile_library
from tests.support.editing_fixtures import parse
from tests.support.message_files import CheckMessage
from tests.support.recipes import load_recipe

MODEL = """<ir_version: 8, opset_import: ["" : 17, "com.acme" : 1]>
g (float[2, 64] x) => (float[2, 64] y) {
    [matmul] m = MatMul (x, w)
    [first] s = com.acme.Scaled (m)
    [second] t = com.acme.Scaled (s)
    [relu] y = Relu (t)
}"""


@pytest.fixture
def folder(in_folder: Path) -> Path:
    """A folder with a model of two nodes of a custom operator, and a library that multiplies by 2."""
    model = parse(MODEL)
    model.graph.initializer.append(
        numpy_helper.from_array(np.random.default_rng(0).normal(size=(64, 64)).astype(np.float32), "w")
    )
    models.save(model, in_folder / "model.onnx")
    compile_library(in_folder / "libacme.so")
    (in_folder / "libplugin.so").write_bytes(b"a plugin")
    return in_folder


def write(folder: Path, steps: Mapping[str, Any], **operators: Mapping[str, str]) -> Path:
    named = {name.replace("__", "::").replace("_", ".", 1): given for name, given in operators.items()}
    path = folder / "r.yaml"
    path.write_text(json.dumps({"name": "r", "model": "model.onnx", "custom_operators": named, "steps": steps}))
    return path


def test_code_needs_a_trusted_recipe(folder: Path) -> None:
    steps = {"speed": {"step": "profile"}, "engine": {"step": "build_engine", "backend": "tensorrt"}}
    for given in ({"library": "libacme.so"}, {"plugin": "libplugin.so"}):
        with pytest.raises(RecipeError, match="--trust"):
            load_recipe(write(folder, steps, com_acme__Scaled=given))


def test_every_step_gets_the_libraries_unless_it_has_its_own(folder: Path) -> None:
    steps = {
        "sanitize": {},
        "half": {"step": "convert_fp16"},
        "agree": {"step": "check_accuracy", "candidate": "half"},
        "speed": {"step": "profile"},
        "other": {"step": "profile", "custom_ops": []},
        "engine": {"step": "build_engine", "backend": "tensorrt"},
        "fast": {"step": "profile", "backend": "tensorrt", "engine": "engine"},
    }
    given = {"library": "libacme.so", "plugin": "libplugin.so"}
    recipe = load_recipe(write(folder, steps, com_acme__Scaled=given), trust=True)
    loaded = {step.name: step.data_files for step in recipe.steps}
    assert loaded["sanitize"] == loaded["half"] == loaded["agree"] == loaded["speed"] == {"custom_ops.0": "libacme.so"}
    assert loaded["other"] == {}
    assert loaded["engine"] == loaded["fast"] == {"plugins.0": "libplugin.so"}


def test_a_run_can_be_repeated_from_its_folder(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    steps = {"sanitize": {}, "speed": {"step": "profile", "runs": 1}}
    given = {"library": "libacme.so"}
    finished = api.run(write(folder, steps, com_acme__Scaled=given), trust=True)
    assert isinstance(finished, RunFinished)
    again = api.run(Path(finished.folder) / "recipe.yaml", trust=True, outputs=folder / "outputs")
    assert isinstance(again, RunFinished)
    assert again.nothing_to_do
    compile_library(folder / "libacme.so", factor=3)
    changed = api.run(folder / "r.yaml", trust=True)
    assert isinstance(changed, RunFinished)
    assert not changed.nothing_to_do, "the contents of a library are part of the key"


def test_mistakes_are_reported_at_their_place(folder: Path, check_message: CheckMessage) -> None:
    with pytest.raises(RecipeError) as caught:
        load_recipe(write(folder, {"sanitize": {}}, com_acme__Scaled={}), trust=True)
    check_message(caught.value)
