"""Models from reports of users: each recipe gives the right values, or refuses with a reason."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx.reference import ReferenceEvaluator
from onnxruntime.capi.onnxruntime_pybind11_state import NotImplemented

from ndld_flow.models.tensors import Array

FIELD = Path(__file__).parents[3] / "shared" / "field"
FAILING: dict[str, str] = {}
"""Case -> the defect that makes it fail."""


def variants(case: Path) -> list[str]:
    """Return the names of a case's recipes without running it."""
    for node in ast.parse(case.read_text()).body:
        if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") == "VARIANTS":
            return list(ast.literal_eval(node.value))
    return []


NAMES = [f"{path.stem}-{name}" for path in sorted(FIELD.glob("*.py")) for name in variants(path)]
CASES = [
    pytest.param(name, marks=[pytest.mark.xfail(reason=FAILING[name], strict=True)] if name in FAILING else [])
    for name in NAMES or ["absent"]
]


def bound_of(recipe: str) -> float:
    """Return the largest permitted error, relative to the largest value."""
    if "quantize" in recipe:
        return 0.1
    return 0.01 if "convert_fp16" in recipe else 1e-4


def outputs_of(model: Path, inputs: Path) -> dict[str, Array]:
    """Run a model without optimisation, on inputs of the types that it has now."""
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    with np.load(inputs) as given:
        types = {
            item.name: onnx.helper.tensor_dtype_to_np_dtype(item.type.tensor_type.elem_type)
            for item in onnx.load(model, load_external_data=False).graph.input
        }
        feeds = {name: given[name].astype(dtype) for name, dtype in types.items() if name in given}
    runner: Any
    try:
        runner = onnxruntime.InferenceSession(str(model), options, providers=["CPUExecutionProvider"])
        names = [item.name for item in runner.get_outputs()]
    except NotImplemented:  # ONNX Runtime computes little in bfloat16
        runner = ReferenceEvaluator(str(model))
        names = runner.output_names
    return dict(zip(names, runner.run(None, feeds), strict=True))


def largest_error(right: Array, found: Array) -> float:
    """Return the largest error relative to the largest finite value; infinite for other shapes, NaN or infinities."""
    if right.shape != found.shape:
        return float("inf")
    if right.dtype.kind not in "fV":
        return 0.0 if np.array_equal(right, found) else float("inf")
    a, b = right.astype(np.float64), found.astype(np.float64)
    finite = np.isfinite(a)
    if not np.array_equal(a[~finite], b[~finite], equal_nan=True) or not np.isfinite(b[finite]).all():
        return float("inf")
    return float((np.abs(a - b)[finite].max() if finite.any() else 0.0) / max(np.abs(a[finite]).max(initial=0), 1e-6))


@pytest.mark.slow
@pytest.mark.skipif(not FIELD.is_dir(), reason="the cases are in ../shared/field, which is not here")
@pytest.mark.parametrize("name", CASES)
def test_a_model_of_the_field_is_right_or_refused(name: str, tmp_path: Path) -> None:
    case, variant = name.split("-")
    paths = {**os.environ, "PYTHONPATH": str(FIELD), "PYTHONDONTWRITEBYTECODE": "1"}
    subprocess.run([sys.executable, FIELD / f"{case}.py"], cwd=tmp_path, env=paths, check=True, capture_output=True)
    recipe = tmp_path / f"recipe-{variant}.yaml"
    command = [sys.executable, "-m", "ndld_flow", "run", recipe.name]
    ended = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    if ended.returncode:
        assert ended.returncode in (1, 2, 4), ended.stderr
        return
    models = sorted(tmp_path.glob("outputs/runs/*/latest/*/model.onnx"), key=lambda path: path.stat().st_mtime)
    if not models:
        return
    with np.load(tmp_path / "expected.npz") as right:
        found = outputs_of(models[-1], tmp_path / "inputs.npz")
        errors = {output: largest_error(right[output], found[output]) for output in right.files}
    assert max(errors.values()) <= bound_of(recipe.read_text()), errors
