"""Steps on models that runtimes load and ONNX's checker rejects: the result loads, agrees, and keeps its operators."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from ndld_flow.models.changed_model import examine_model, load_failure
from ndld_flow.step import Step
from ndld_flow.steps.apply_precision import ApplyPrecision
from ndld_flow.steps.constrain_precision import ConstrainPrecision
from ndld_flow.steps.convert_fp16 import ConvertFp16
from ndld_flow.steps.edit import Edit
from ndld_flow.steps.fix_shapes import FixShapes
from ndld_flow.steps.sanitize import Sanitize
from tests.support.editing_fixtures import run
from tests.support.models_run import run_step

STEPS: Mapping[str, tuple[type[Step[Any, Any]], Mapping[str, Any]]] = {
    "sanitize": (Sanitize, {}),
    "edit": (Edit, {"operations": [{"rename_nodes": {"select": "*", "to": "n_{index}"}}]}),
    "convert_fp16": (ConvertFp16, {}),
    "fix_shapes": (FixShapes, {"shapes": {"x": [2, 8, 16]}}),
    "constrain_precision": (ConstrainPrecision, {"op_types": {"MatMul": "fp16"}}),
    "apply_precision": (ApplyPrecision, {}),
}
MATMUL = helper.make_node("MatMul", ["a", "w"], ["y"], name="matmul")
FEED = {"x": np.random.default_rng(0).standard_normal((2, 8, 16)).astype(np.float32)}


def _clear_shapes(model: onnx.ModelProto) -> None:
    for value in (*model.graph.input, *model.graph.output):
        value.type.tensor_type.ClearField("shape")
    model.graph.value_info.append(helper.make_tensor_value_info("a", TensorProto.FLOAT, None))


def _use_contrib(model: onnx.ModelProto) -> None:
    model.graph.node[0].CopyFrom(helper.make_node("Gelu", ["x"], ["a"], name="gelu", domain="com.microsoft"))


def _normalize(model: onnx.ModelProto) -> None:
    node = helper.make_node("SimplifiedLayerNormalization", ["x", "s"], ["a"], name="norm", axis=-1)
    model.graph.node[0].CopyFrom(node)
    model.graph.initializer.append(numpy_helper.from_array(np.ones(16, np.float32), "s"))


def _use_plugin(model: onnx.ModelProto) -> None:
    model.graph.node[0].CopyFrom(helper.make_node("Smooth_TRT", ["x"], ["a"], name="plugin"))


DEFECTS: Mapping[str, Callable[[onnx.ModelProto], None]] = {
    "no shapes": _clear_shapes,
    "no name": lambda model: model.graph.ClearField("name"),
    "no import": _use_contrib,
    "no imports": lambda model: model.ClearField("opset_import"),
    "an operator of ONNX Runtime": _normalize,
    "a plugin": _use_plugin,
}


def write_model(path: Path, defect: str) -> Path:
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [None, 8, 16]) for name in "xy")
    weight = numpy_helper.from_array(np.eye(16, dtype=np.float32) / 4, "w")
    relu = helper.make_node("Relu", ["x"], ["a"], name="relu")
    graph = helper.make_graph([relu, MATMUL], "graph", [x], [y], [weight])
    model = helper.make_model(graph, ir_version=8, opset_imports=[helper.make_opsetid("", 17)])
    DEFECTS[defect](model)
    onnx.save(model, path)
    return path


@pytest.mark.representatives("edit-no name", "edit-a plugin", "sanitize-no name")
@pytest.mark.parametrize("defect", DEFECTS)
@pytest.mark.parametrize("step", STEPS)
def test_a_step_accepts_a_defect_of_its_source(tmp_path: Path, step: str, defect: str) -> None:
    kind, settings = STEPS[step]
    source = write_model(tmp_path / "source.onnx", defect)
    result = run_step(kind, source, tmp_path / "step", settings).out / "model.onnx"
    operators = Counter(node.op_type for node in onnx.load(source).graph.node)
    assert operators <= Counter(node.op_type for node in onnx.load(result).graph.node)
    assert len(examine_model(result).defects) <= len(examine_model(source).defects)
    assert not examine_model(result).rejected
    if defect == "a plugin":
        return
    assert load_failure(result) is None
    if load_failure(source) is None:
        np.testing.assert_allclose(run(result, FEED)["y"], run(source, FEED)["y"], rtol=2e-3, atol=2e-3)
