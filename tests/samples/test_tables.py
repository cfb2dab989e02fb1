"""Inputs of strings, and values from tables and from the recipe itself."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from pydantic import ValidationError

from ndld_flow import api
from ndld_flow.base.errors import RequestError
from ndld_flow.inputs import InputSpec
from ndld_flow.models.files import model_inputs
from ndld_flow.models.tensors import TensorSpec
from ndld_flow.samples.feeds import make_feeds
from ndld_flow.samples.sample_feeds import make_samples
from ndld_flow.samples.sample_settings import SampleSettings
from tests.support.message_files import CheckMessage
from tests.support.models_run import specs

COLOR = TensorSpec("color", "string", (None, 1))
SIZE = TensorSpec("size", "float32", (None, 1))
ROWS = 'color,size,sold\nred,1,true\nblue,2.5,false\n\n"a, b",3,1\n'


def fed(*wanted: TensorSpec, **inputs: Any) -> dict[str, Any]:
    return {name: feed.values.tolist() for name, feed in make_feeds(wanted, specs(inputs)).items()}


def make_classifier(path: Path) -> Path:
    """Write a pipeline as scikit-learn's converter does: a category and a number, to a label and probabilities."""
    nodes = [
        helper.make_node(
            "OneHotEncoder", ["color"], ["hot"], domain="ai.onnx.ml", cats_strings=["red", "green", "blue"], zeros=1
        ),
        helper.make_node("Reshape", ["hot", "rows"], ["flat"]),
        helper.make_node("Concat", ["flat", "size"], ["features"], axis=1),
        helper.make_node(
            "LinearClassifier",
            ["features"],
            ["label", "probability"],
            domain="ai.onnx.ml",
            coefficients=[1.0, -1.0, 0.5, 0.2, -1.0, 1.0, -0.5, -0.2],
            intercepts=[0.0, 0.1],
            classlabels_strings=["yes", "no"],
            post_transform="SOFTMAX",
        ),
    ]
    info = helper.make_tensor_value_info
    graph = helper.make_graph(
        nodes,
        "main",
        [info("color", TensorProto.STRING, [None, 1]), info("size", TensorProto.FLOAT, [None, 1])],
        [info("label", TensorProto.STRING, [None]), info("probability", TensorProto.FLOAT, [None, 2])],
        [numpy_helper.from_array(np.array([-1, 3]), "rows")],
    )
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("ai.onnx.ml", 3)]
    onnx.save(helper.make_model(graph, ir_version=8, opset_imports=opsets), path)
    return path


def test_columns_of_a_table_have_the_names_of_inputs(in_folder: Path) -> None:
    (in_folder / "rows.csv").write_text(ROWS)
    data = {"data": "rows.csv"}
    assert fed(COLOR, SIZE, color=data, size=data) == {
        "color": [["red"], ["blue"], ["a, b"]],
        "size": [[1.0], [2.5], [3.0]],
    }
    assert fed(TensorSpec("sold", "bool", (None,)), sold=data) == {"sold": [True, False, True]}


def test_rows_are_samples_of_a_fixed_batch(in_folder: Path) -> None:
    (in_folder / "rows.csv").write_text(ROWS)
    samples = make_samples([COLOR], specs({"color": {"data": "rows.csv", "shape": [1, 1]}}), SampleSettings(), "m")
    assert [sample.feeds["color"].values.tolist() for sample in samples] == [[["red"]], [["blue"]], [["a, b"]]]


@pytest.mark.parametrize("text", ["1,2\n3,4\n", "a,b\n1,2\n3,4\n", "\ufeff1,2\n3,4"])
def test_a_table_without_the_name_gives_all_its_columns(in_folder: Path, text: str) -> None:
    (in_folder / "rows.csv").write_text(text, encoding="utf-8")
    wanted = TensorSpec("x", "int64", ("n", 2))
    assert fed(wanted, x={"data": "rows.csv"}) == {"x": [[1, 2], [3, 4]]}


def test_a_first_row_of_texts_is_a_row_of_an_input_of_strings(in_folder: Path) -> None:
    (in_folder / "rows.csv").write_text("red\nblue\n")
    assert fed(COLOR, color={"data": "rows.csv"}) == {"color": [["red"], ["blue"]]}


@pytest.mark.parametrize(
    ("spec", "text"),
    [
        (SIZE, "a,b\n1,2\n"),
        (SIZE, "size\n1\nred\n"),
        (SIZE, "color,size\nred\n"),
        (TensorSpec("n", "int64", (None, 1)), "n\n1.5\n"),
        (TensorSpec("n", "int8", (None, 1)), "n\n300\n"),
        (SIZE, ""),
        (SIZE, "size\n"),
        (SIZE, '"size\nred'),
        (TensorSpec("n", "float32", (None, 1, 1)), "n\n1\n"),
    ],
)
def test_tables_that_do_not_fit_are_errors(
    in_folder: Path, spec: TensorSpec, text: str, check_message: CheckMessage
) -> None:
    (in_folder / "rows.csv").write_text(text)
    with pytest.raises(RequestError) as error:
        fed(spec, **{spec.name: {"data": "rows.csv"}})
    check_message(error.value)


def test_lines_and_arrays_of_text(in_folder: Path, check_message: CheckMessage) -> None:
    (in_folder / "lines.txt").write_text("red\n\ngreen and blue\n")
    np.save(in_folder / "array.npy", np.array([["red"], ["green and blue"]]))
    tensor = numpy_helper.from_array(np.array([["red"], ["green and blue"]], object))
    (in_folder / "tensor.pb").write_bytes(tensor.SerializeToString())
    for name in ("lines.txt", "array.npy", "tensor.pb"):
        assert fed(COLOR, color={"data": name}) == {"color": [["red"], ["green and blue"]]}
    assert fed(TensorSpec("t", "string", ("n",)), t={"data": "lines.txt"}) == {"t": ["red", "green and blue"]}
    np.save(in_folder / "numbers.npy", np.zeros((2, 1)))
    with pytest.raises(RequestError) as caught:
        fed(COLOR, color={"data": "numbers.npy"})
    check_message(caught.value)


def test_values_of_the_recipe() -> None:
    assert fed(COLOR, SIZE, color={"values": [["red"], ["blue"]]}, size={"values": [[1], [2]]}) == {
        "color": [["red"], ["blue"]],
        "size": [[1.0], [2.0]],
    }
    assert fed(TensorSpec("t", "float32", ()), t={"values": 0.5}) == {"t": 0.5}
    described = make_feeds([COLOR], specs({"color": {"values": [["red"]]}}))["color"].description
    assert described.endswith(", string 1x1")


@pytest.mark.parametrize(
    "settings",
    [
        {"values": [[1], [2, 3]]},
        {"values": [{"a": 1}]},
        {"values": [1], "data": "zeros"},
        {"values": [1], "shape": (1,)},
    ],
)
def test_values_that_are_no_tensor_are_mistakes(settings: dict[str, Any], check_message: CheckMessage) -> None:
    with pytest.raises(ValidationError) as caught:
        InputSpec(**settings)
    check_message(caught.value)


def test_random_texts_are_those_that_the_model_knows(tmp_path: Path) -> None:
    inputs = model_inputs(make_classifier(tmp_path / "model.onnx"))
    feed = make_feeds(inputs, specs({"color": {"shape": [30, 1]}, "size": {"shape": [30, 1]}}))["color"]
    assert set(feed.values.ravel().tolist()) == {"red", "green", "blue"}
    assert "3 texts" in feed.description and feed.description.endswith("seed 0, string 30x1")
    unknown = make_feeds([TensorSpec("t", "string", (2,))], {})["t"]
    assert unknown.values.tolist() == ["text", "text"]
    assert "as nothing gives values" in unknown.description


@pytest.mark.thorough
def test_a_model_of_strings_is_compared_and_measured(in_folder: Path) -> None:
    make_classifier(in_folder / "model.onnx")
    (in_folder / "rows.csv").write_text("color,size\nred,1\nblue,2.5\npurple,3\n")
    result = api.run(
        {
            "name": "strings",
            "model": "model.onnx",
            "inputs": {"color": {"data": "rows.csv"}, "size": {"data": "rows.csv"}},
            "steps": {
                "clean": {"step": "sanitize"},
                "agree": {"step": "check_accuracy", "reference": "source", "candidate": "clean"},
                "speed": {"step": "profile", "passes": 2, "runs": 1, "duration": 0, "stable": 0, "warmup": 0},
            },
        }
    )
    assert result.passed
