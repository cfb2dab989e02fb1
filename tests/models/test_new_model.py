"""Empty models: `model: new:20`, filled by the step `edit`."""

from __future__ import annotations

import json
from math import erf
from pathlib import Path

import numpy as np
import onnx
import pytest

from ndld_flow import api
from ndld_flow.base.errors import ModelError, SourceError
from ndld_flow.models.files import NEWEST_OPSET
from ndld_flow.recipe.recipe import ModelSource
from ndld_flow.recipe.sources import find_model
from ndld_flow.records.run_record import RunRecord
from ndld_flow.store.store import Store
from tests.support.editing_fixtures import run
from tests.support.message_files import CheckMessage

OPERATIONS = [
    {"add_inputs": {"inputs": {"x": {"dtype": "float32", "shape": ["batch", 4]}}}},
    {"add_initializer": {"name": "scale", "value": [1.0, 2.0, 3.0, 4.0], "dtype": "float32"}},
    {"add_node": {"op_type": "Mul", "inputs": ["x", "scale"], "outputs": ["scaled"], "name": "mul"}},
    {
        "add_node": {
            "op_type": "Gelu",
            "domain": "com.microsoft",
            "inputs": ["scaled"],
            "outputs": ["y"],
            "name": "gelu",
        }
    },
    {"add_outputs": {"select": "y", "dtype": "float32", "shape": ["batch", 4]}},
]


def find(folder: Path, source: str, sha256: str | None = None) -> onnx.ModelProto:
    model = find_model(ModelSource(source=source, sha256=sha256), Store(folder / "store"), lambda _: None)
    return onnx.load(model.artifact.path)


@pytest.mark.representatives("7", "6", "2")
@pytest.mark.parametrize("opset", [1, 2, 6, 7, 13, 20, 21, 26, NEWEST_OPSET])
def test_an_empty_model_of_any_opset_is_valid(tmp_path: Path, opset: int) -> None:
    model = find(tmp_path, f"new:{opset}")
    onnx.checker.check_model(model, full_check=True)
    assert [(opset.domain, opset.version) for opset in model.opset_import] == [("", opset)]
    assert not model.graph.node
    assert (model.ir_version == 8) == (opset <= 18), "the oldest with local functions, or with the opset"


def test_contrib_imports_the_operators_of_onnx_runtime(tmp_path: Path) -> None:
    model = find(tmp_path, "new:20+contrib")
    assert {opset.domain: opset.version for opset in model.opset_import} == {"": 20, "com.microsoft": 1}


def test_new_models_are_deterministic(tmp_path: Path) -> None:
    assert find(tmp_path / "a", "new:18") == find(tmp_path / "b", "new:18") == find(tmp_path / "a", "new:18")


@pytest.mark.parametrize(
    "source",
    [
        "new:0",
        "new:99",
        "new:",
        "new:20+ml",
    ],
)
def test_unknown_opsets_and_domains_are_refused(tmp_path: Path, source: str, check_message: CheckMessage) -> None:
    with pytest.raises(ModelError) as caught:
        find(tmp_path, source)
    check_message(caught.value)


def test_a_digest_that_differs_is_refused(tmp_path: Path, check_message: CheckMessage) -> None:
    with pytest.raises(SourceError) as caught:
        find(tmp_path, "new:20", "0" * 64)
    check_message(caught.value)


def test_a_recipe_builds_a_working_model_from_an_empty_one(in_folder: Path) -> None:
    recipe = {
        "name": "made",
        "model": "new:20+contrib",
        "inputs": {"x": {"shape": [3, 4]}},
        "steps": {"build": {"step": "edit", "operations": OPERATIONS}},
    }
    (in_folder / "recipe.yaml").write_text(json.dumps(recipe))
    done = api.run("recipe.yaml")
    model = onnx.load(Path(done.folder, "build", "model.onnx"))
    x = np.linspace(-1, 1, 12, dtype=np.float32).reshape(3, 4)
    scaled = x * np.array([1, 2, 3, 4], dtype=np.float32)
    wanted = [[0.5 * v * (1 + erf(v / 2**0.5)) for v in row] for row in scaled.tolist()]
    np.testing.assert_allclose(run(model, {"x": x})["y"], wanted, atol=1e-6)
    assert api.run("recipe.yaml").nothing_to_do
    record = RunRecord.model_validate_json(Path(done.folder, "run.json").read_text())
    assert record.source.location == "new:20+contrib"
    elsewhere = api.run(Path(done.folder, "recipe.yaml"), outputs=in_folder / "elsewhere")
    assert elsewhere.passed
