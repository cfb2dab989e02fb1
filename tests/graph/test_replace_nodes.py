"""The operation `replace_nodes`: one node in the place of several, with weights and attributes of its own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from ndld_flow.base.errors import ModelError, RequestError
from ndld_flow.step import DataFile
from ndld_flow.steps.edit import Edit
from tests.support.editing_fixtures import edit, parse, run, text_of
from tests.support.message_files import CheckMessage

SILU = """g (float[N, 4] x) => (float[N, 4] y) <float[4] b = {1, -2, 3, -4}> {
    [add] h = Add (x, b)
    [sig] s = Sigmoid (h)
    [mul] m = Mul (h, s)
    [neg] y = Neg (m)
}"""
HEAD = """<ir_version: 8, opset_import: ["" : 17, "com.acme" : 1]>
g (float[1, 8, 4] raw) => (float[1, 8, 4] boxes, float[1, 8, 2] scores, float[1, 8, 4] rest)
<int64[2] parts = {2, 2}, float[4] scale = {1, 2, 3, 4}> {
    [scale] t = Mul (raw, scale)
    [split] a, scores = Split <axis = 2> (t, parts)
    [twice] boxes = Concat <axis = 2> (a, a)
    [other] rest = Neg (raw)
}"""


def only(model: onnx.ModelProto, op_type: str) -> onnx.NodeProto:
    nodes: list[onnx.NodeProto] = [node for node in model.graph.node if node.op_type == op_type]
    assert len(nodes) == 1
    return nodes[0]


def refused(model: str, settings: dict[str, Any]) -> str:
    with pytest.raises(RequestError) as error:
        edit(model, {"replace_nodes": settings})
    return str(error.value)


def test_a_selection_becomes_one_node_that_reads_what_it_read() -> None:
    settings = {"select": ["sig", "mul"], "op_type": "QuickGelu", "domain": "com.microsoft", "attributes": {"alpha": 1}}
    result = edit(SILU, {"replace_nodes": {**settings, "name": "sig"}})
    assert "[sig] m = com.microsoft.QuickGelu <alpha: float = 1> (h)" in text_of(result)
    x = np.random.default_rng(0).normal(size=(3, 4)).astype(np.float32)
    np.testing.assert_allclose(run(result, {"x": x})["y"], run(parse(SILU), {"x": x})["y"], rtol=1e-6)


def test_a_plugin_gets_attributes_and_weights_and_unneeded_constants_disappear(tmp_path: Path) -> None:
    np.save(tmp_path / "gamma.npy", np.arange(4, dtype=np.float32))
    settings = {
        "select": {"between": ["add", "mul"]},
        "op_type": "MyNorm",
        "domain": "com.acme",
        "attributes": {"epsilon": 1e-5, "mode": "fast", "axes": [0, 1]},
        "weights": {"gamma": str(tmp_path / "gamma.npy"), "beta": {"value": [1, 2], "dtype": "float16", "shape": [2]}},
    }
    result = edit(SILU, {"replace_nodes": settings})
    node = only(result, "MyNorm")
    assert list(node.input) == ["x", "gamma", "beta"]
    assert list(node.output) == ["m"]
    assert {attribute.name: helper.get_attribute_value(attribute) for attribute in node.attribute} == {
        "epsilon": pytest.approx(1e-5), "mode": b"fast", "axes": [0, 1]
    }  # fmt: skip
    weights = {tensor.name: numpy_helper.to_array(tensor) for tensor in result.graph.initializer}
    assert set(weights) == {"gamma", "beta"}
    assert weights["gamma"].tolist() == [0, 1, 2, 3]
    assert weights["beta"].dtype == np.float16
    assert {opset.domain for opset in result.opset_import} == {"", "com.acme"}


def test_inputs_and_weights_come_in_the_given_order() -> None:
    settings = {"select": ["sig", "mul"], "op_type": "My", "domain": "a.b", "inputs": ["w", "", "x", "b"]}
    result = edit(SILU, {"replace_nodes": {**settings, "weights": {"w": {"value": 1.5}}}})
    assert list(only(result, "My").input) == ["w", "", "x", "b"]
    assert not any(node.op_type == "Add" for node in result.graph.node)  # nothing reads it any longer


def test_outputs_of_the_model_keep_their_names_and_types() -> None:
    result = edit(HEAD, {"replace_nodes": {"select": ["scale", "split", "twice"], "op_type": "Head", "domain": "a.b"}})
    assert list(only(result, "Head").input) == ["raw"]
    assert list(only(result, "Head").output) == ["scores", "boxes"]
    assert [output.name for output in result.graph.output] == ["boxes", "scores", "rest"]
    assert [len(output.type.tensor_type.shape.dim) for output in result.graph.output] == [3, 3, 3]
    assert not result.graph.initializer


def test_new_outputs_take_the_place_of_those_that_are_left_out() -> None:
    settings = {
        "select": {"name": "*", "exclude": "other"},
        "op_type": "EfficientNMS_TRT",
        "domain": "TRT",
        "outputs": ["num", "detections"],
        "types": {"num": "int32[1, 1]", "detections": "float32[1, 100, 4]"},
    }
    result = edit(HEAD, {"replace_nodes": settings})
    assert [output.name for output in result.graph.output] == ["num", "detections", "rest"]
    assert [dim.dim_value for dim in result.graph.output[1].type.tensor_type.shape.dim] == [1, 100, 4]


def test_a_plugin_may_be_in_the_default_domain_as_graphsurgeon_writes_it() -> None:
    result = edit(SILU, {"replace_nodes": {"select": ["sig", "mul"], "op_type": "MyGelu_TRT", "name": "neg_2"}})
    assert "[neg_2] m = MyGelu_TRT (h)" in text_of(result)
    assert [opset.domain for opset in result.opset_import] == [""]


def test_outputs_that_go_with_the_nodes_are_reported(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    settings = {"select": ["scale", "split", "twice"], "op_type": "Head", "domain": "a.b", "outputs": ["scores"]}
    result = edit(HEAD, {"replace_nodes": settings})
    assert [output.name for output in result.graph.output] == ["scores", "rest"]
    assert "removed with the nodes" in caplog.text
    assert "[1, 8, 4] -> scores: [1, 8" in caplog.text


def test_nodes_of_a_subgraph_are_replaced_there() -> None:
    text = """g (bool c, float[2] x) => (float[2] y) {
        h = Abs (x)
        [choice] y = If (c) <then_branch = t () => (float[2] p) { [n] q = Neg (h) [r] p = Relu (q) },
                             else_branch = e () => (float[2] q) { q = Identity (h) }>
    }"""
    settings = {"select": ["n", "r"], "op_type": "LeakyRelu", "attributes": {"alpha": 0.5}}
    result = edit(text, {"replace_nodes": settings})
    x = np.array([-2, 4], np.float32)
    assert run(result, {"c": np.array(True), "x": x})["y"].tolist() == [2, 4]


@pytest.mark.parametrize(
    "settings",
    [
        {"select": "sig", "outputs": ["z"]},
        {"select": ["add", "sig"], "outputs": ["s"]},
        {"select": ["sig", "mul"], "inputs": ["s"]},
        {"select": ["add", "mul"]},
        {"select": ["sig", "mul"], "inputs": ["nothing"]},
        {"select": ["sig", "mul"], "name": "neg"},
        {"select": ["sig", "mul"], "weights": {"b": {"value": 1}}},
        {"select": ["sig", "mul"], "types": {"s": "float32[1]"}},
        {"select": ["sig"], "outputs": ["s", "x"], "types": {"x": "float32[1]"}},
        {"select": "nothing"},
    ],
)
def test_what_does_not_fit_is_refused(settings: dict[str, Any], check_message: CheckMessage) -> None:
    check_message(refused(SILU, {"op_type": "My", "domain": "a.b", **settings}))


def test_an_input_that_depends_on_the_selection_is_refused(check_message: CheckMessage) -> None:
    settings = {"select": ["sig", "mul"], "op_type": "My", "domain": "a.b", "inputs": ["y"]}
    with pytest.raises(ModelError) as caught:
        edit(SILU, {"replace_nodes": settings})
    check_message(caught.value)


def test_the_operator_is_checked_where_it_is_known() -> None:
    assert "LeakyRelu" in refused(SILU, {"select": ["sig", "mul"], "op_type": "LeakyRelu", "inputs": ["h", "x"]})


def test_the_contents_of_weights_are_part_of_the_key(tmp_path: Path) -> None:
    entry = {"select": "a", "op_type": "My", "weights": {"w": str(tmp_path / "w.npy")}}
    step = Edit.model_validate({"operations": ({"replace_nodes": entry},)})
    assert [held.value for held in step.held(DataFile)] == [tmp_path / "w.npy"]
    assert Edit.model_validate_json(step.model_dump_json()) == step
