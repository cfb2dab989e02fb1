"""The recipe of this package, run on a small model."""

from __future__ import annotations

from pathlib import Path

import onnx
from onnx import TensorProto, helper

from ndld_flow import api

RECIPE = Path(__file__).with_name("recipe.yaml")


def write_model(path: Path) -> None:
    """Write a model of one node that has a doc string."""
    node = helper.make_node("Relu", ["x"], ["y"], name="relu", doc_string="a note")
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, 4]) for name in "xy")
    graph = helper.make_graph([node], "graph", [x], [y])
    opset = helper.make_opsetid("", 17)
    onnx.save(helper.make_model(graph, opset_imports=[opset], ir_version=9), path)


def test_the_recipe_runs(tmp_path: Path) -> None:
    write_model(tmp_path / "model.onnx")
    model = f"model={tmp_path / 'model.onnx'}"
    finished = api.run(RECIPE, [model], outputs=tmp_path / "outputs")
    assert finished.passed
    assert finished.metrics["stamped.length"].value == 5
    written = onnx.load(finished.artifacts["clean"])
    assert written.doc_string == "hello"
    assert [node.doc_string for node in written.graph.node] == [""]
