"""The forms of INT8 for a CPU: integer operators, without the first and last layers, and of all operators."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from pydantic import ValidationError

from ndld_flow.base.errors import RequestError
from ndld_flow.quantize import calibration
from ndld_flow.quantize.calibration import measured_under
from ndld_flow.steps.find_precision import FindPrecision
from ndld_flow.steps.quantize import Quantize
from tests.support.message_files import CheckMessage
from tests.support.models import GraphBuilder, rename_output, save, tensor
from tests.support.models_run import run_step

SHAPE = (1, 3, 16, 16)
GIVEN = {"x": {"shape": list(SHAPE), "range": [-1.0, 1.0]}}
ALL: dict[str, Any] = {"samples": 4, "min_intensity": 0}


def bounds(b: GraphBuilder, low: float, high: float) -> list[str]:
    return [b.initializer(np.array(bound, np.float32)) for bound in (low, high)]


def write_net(path: Path) -> Path:
    """Four convolutions with a sum, pools, a Sigmoid and a Mul, and a Gemm."""
    b = GraphBuilder(5)
    h = b.op("Relu", b.op("Conv", "x", b.weight(8, 3, 3, 3), b.weight(8), pads=[1, 1, 1, 1]))
    first = b.op("MaxPool", h, kernel_shape=[2, 2], strides=[2, 2])
    h = b.op("Clip", b.op("Conv", first, b.weight(8, 8, 3, 3), pads=[1, 1, 1, 1]), *bounds(b, -2.0, 2.0))
    h = b.op("Add", b.op("Conv", h, b.weight(8, 8, 1, 1), b.weight(8)), first)
    h = b.op("Mul", h, b.op("Sigmoid", b.op("Conv", h, b.weight(8, 8, 1, 1))))
    h = b.op("Flatten", b.op("GlobalAveragePool", h))
    rename_output(b, b.op("Gemm", h, b.weight(8, 5), b.weight(5)), "y")
    return save(b.model([tensor("x", list(SHAPE))], [tensor("y", [1, 5])]), path)


def outputs_of(path: Path) -> list[np.ndarray[Any, Any]]:
    session = ort.InferenceSession(path, providers=["CPUExecutionProvider"])
    values = np.random.default_rng(7).uniform(-1, 1, (20, *SHAPE)).astype(np.float32)
    runs = [session.run(None, {session.get_inputs()[0].name: value}) for value in values]
    return [np.concatenate([run[number].ravel() for run in runs]) for number in range(len(runs[0]))]


def worst_cosine(source: Path, quantized: Path) -> float:
    pairs = zip(outputs_of(source), outputs_of(quantized), strict=True)
    return min(float(a @ b / np.linalg.norm(a) / np.linalg.norm(b)) for a, b in pairs)


def quantize(source: Path, folder: Path, **settings: Any) -> tuple[Counter[str], Any, Path]:
    """Return the number of nodes of each operator, the result of the step, and the model."""
    ran = run_step(Quantize, source, folder, {**ALL, **settings}, GIVEN)
    path = folder / "out/model.onnx"
    return Counter(node.op_type for node in onnx.load(path).graph.node), ran.result, path


def test_integer_operators_replace_those_of_floats(tmp_path: Path) -> None:
    source = write_net(tmp_path / "m.onnx")
    for settings in ({}, {"per_channel": False}, {"activations": "int8"}, {"symmetric": True}):
        folder = tmp_path / "-".join(["q", *settings])
        found, result, path = quantize(source, folder, format="qoperator", **settings)
        assert found["QLinearConv"] == 4 and found["QGemm"] == 1, settings
        assert not {"Conv", "Gemm"} & found.keys()
        assert result.metrics["layers"] == 5
        assert worst_cosine(source, path) > 0.99, settings
    found, result, _ = quantize(source, tmp_path / "r", format="qoperator")
    assert found["QLinearAdd"] == 1 and "Relu" not in found and "Clip" not in found
    assert "in integer operators" in result.summary


def test_the_first_and_last_layers_can_be_left_in_floats(tmp_path: Path, check_message: CheckMessage) -> None:
    source = write_net(tmp_path / "m.onnx")
    names = [node.name for node in onnx.load(source).graph.node if node.op_type in ("Conv", "Gemm")]
    for form in ("qdq", "qoperator"):
        _, result, path = quantize(source, tmp_path / form, format=form, exclude={"first": 1, "last": 1})
        assert result.metrics["layers"] == 3
        assert worst_cosine(source, path) > 0.99
        left = "; ".join(note for note in result.change.notes if "(excluded)" in note)
        assert names[0] in left and names[-1] in left and names[1] not in left
    _, result, _ = quantize(source, tmp_path / "first", exclude={"first": 2})
    assert result.metrics["layers"] == 3
    with pytest.raises(RequestError) as refused:
        quantize(source, tmp_path / "both", exclude={"first": 3, "last": 3})
    check_message(refused.value)
    with pytest.raises(ValidationError) as invalid:
        Quantize.model_validate({"exclude": {"first": -1}})
    check_message(invalid.value)


def test_constants_that_are_nodes_are_weights_of_the_first_layer(tmp_path: Path) -> None:
    """Products of two activations are no layers, and a weight may be a Constant, transposed."""
    b = GraphBuilder(0)
    square = b.op("MatMul", "x", b.op("Transpose", "x", perm=[1, 0]))
    weights = [
        b.op("Constant", value=onnx.numpy_helper.from_array(np.random.default_rng(i).normal(size=(8, 8)).astype("f")))
        for i in range(3)
    ]
    h = b.op("MatMul", square, b.op("Transpose", weights[0], perm=[1, 0]))
    rename_output(b, b.op("MatMul", b.op("MatMul", h, weights[1]), weights[2]), "y")
    source = save(b.model([tensor("x", [8, 8])], [tensor("y", [8, 8])]), tmp_path / "m.onnx")
    names = [node.name for node in onnx.load(source).graph.node if node.op_type == "MatMul"]
    ran = run_step(Quantize, source, tmp_path / "q", {**ALL, "exclude": {"first": 1}}, {"x": {"shape": [8, 8]}})
    assert ran.result.change is not None
    excluded = next(note for note in ran.result.change.notes if "(excluded)" in note)
    assert names[1] in excluded and names[0] not in excluded and "1 layer not" in excluded


@pytest.mark.parametrize("form", ["qdq", "qoperator"])
def test_all_operators_can_be_quantized(form: str, tmp_path: Path) -> None:
    source = write_net(tmp_path / "m.onnx")
    operators = ["Add", "Clip", "Conv", "Flatten", "Gemm", "GlobalAveragePool", "MaxPool", "Mul", "Relu", "Sigmoid"]
    _, result, path = quantize(source, tmp_path / "q", format=form, op_types=operators)
    assert worst_cosine(source, path) > 0.99
    assert not any("not quantized" in note for note in result.change.notes), result.change.notes
    options = ort.SessionOptions()
    options.optimized_model_filepath = str(tmp_path / "o.onnx")
    ort.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    run = Counter(node.op_type for node in onnx.load(tmp_path / "o.onnx").graph.node)
    assert {"QLinearSigmoid", "QLinearMul", "QLinearGlobalAveragePool"} <= run.keys()
    assert not {"Sigmoid", "Mul", "Add", "GlobalAveragePool"} & run.keys()


@pytest.mark.parametrize("form", ["qdq", "qoperator"])
@pytest.mark.parametrize("reader", ["output", "node", "body"])
def test_what_else_reads_the_input_of_a_relu_gets_all_of_its_values(reader: str, form: str, tmp_path: Path) -> None:
    """The rounding of a convolution absorbs the Relu behind it only if nobody else reads the convolution."""
    b = GraphBuilder(2)
    h = b.op("Conv", "x", b.weight(8, 3, 1, 1))
    relu = b.op("Relu", h)
    rename_output(b, b.op("Conv", relu, b.weight(4, 8, 1, 1)), "y")
    outputs = [tensor("y", [1, 4, 16, 16])]
    if reader == "output":
        rename_output(b, h, "z")
    elif reader == "node":
        rename_output(b, b.op("Tanh", h), "z")
    else:
        inner = onnx.helper.make_node("Tanh", [h], ["t"])
        body = onnx.helper.make_graph([inner], "body", [], [tensor("t", [1, 8, 16, 16])])
        always = b.op("Constant", value=onnx.helper.make_tensor("c", onnx.TensorProto.BOOL, [], [1]))
        rename_output(b, b.op("If", always, then_branch=body, else_branch=body), "z")
    outputs.append(tensor("z", [1, 8, 16, 16]))
    source = save(b.model([tensor("x", list(SHAPE))], outputs), tmp_path / "m.onnx")
    _, result, path = quantize(source, tmp_path / "q", format=form)
    assert result.metrics["layers"] == 2
    assert worst_cosine(source, path) > 0.99


@pytest.mark.parametrize("form", ["qdq", "qoperator"])
def test_a_clip_whose_range_has_no_zero_still_clips(form: str, tmp_path: Path) -> None:
    b = GraphBuilder(2)
    h = b.op("Clip", b.op("Conv", "x", b.weight(8, 3, 1, 1)), *bounds(b, 0.2, 0.5))
    rename_output(b, b.op("Conv", h, b.weight(4, 8, 1, 1)), "y")
    source = save(b.model([tensor("x", list(SHAPE))], [tensor("y", [1, 4, 16, 16])]), tmp_path / "m.onnx")
    _, _, path = quantize(source, tmp_path / "q", format=form)
    assert worst_cosine(source, path) > 0.99


def test_what_a_where_reads_is_dequantized_for_it(tmp_path: Path) -> None:
    """ONNX Runtime's quantizer leaves a Where as it is, and its input may exist as integers only."""
    b = GraphBuilder(2)
    h = b.op("Conv", "x", b.weight(8, 3, 1, 1))
    above = b.op("Greater", "x", b.initializer(np.array(0, np.float32)))
    mask = b.op("Slice", above, *(b.initializer(np.array([value])) for value in (0, 1, 1)))
    first, other = (b.op("Where", mask, h, b.initializer(np.array(value, np.float32))) for value in (-1, 1))
    rename_output(b, b.op("Conv", b.op("Add", first, other), b.weight(4, 8, 1, 1)), "y")
    source = save(b.model([tensor("x", list(SHAPE))], [tensor("y", [1, 4, 16, 16])]), tmp_path / "m.onnx")
    found, _, path = quantize(source, tmp_path / "q", format="qoperator")
    assert (found["QLinearConv"], found["Where"]) == (2, 2)
    assert worst_cosine(source, path) > 0.99


@pytest.mark.parametrize("form", ["qdq", "qoperator"])
def test_a_constant_on_the_left_of_a_product_can_be_on_the_right_of_another(form: str, tmp_path: Path) -> None:
    b = GraphBuilder(3)
    weight = b.weight(16, 16)
    rename_output(b, b.op("MatMul", b.op("MatMul", weight, "x"), weight), "y")
    source = save(b.model([tensor("x", list(SHAPE))], [tensor("y", list(SHAPE))]), tmp_path / "m.onnx")
    _, result, path = quantize(source, tmp_path / "q", format=form)
    assert result.metrics["layers"] == 2
    assert worst_cosine(source, path) > 0.99


def test_a_further_form_of_the_same_model_measures_only_what_is_new(tmp_path: Path) -> None:
    source = write_net(tmp_path / "m.onnx")
    forms: list[dict[str, Any]] = [
        {"op_types": ["Conv"]}, {}, {"format": "qoperator"}, {"method": "percentile"}, {"samples": 3}
    ]  # fmt: skip
    alone = []
    for number, form in enumerate(forms):
        measured_under.cache_clear()
        alone.append(quantize(source, tmp_path / f"alone{number}", **form)[2].read_bytes())
    measured_under.cache_clear()
    measured = []
    for number, form in enumerate(forms):
        ran = run_step(Quantize, source, tmp_path / f"q{number}", {**ALL, **form}, GIVEN)
        assert (ran.out / "model.onnx").read_bytes() == alone[number], form
        measured.append(max((done for done, _, what in ran.told if what == "calibrating"), default=0))
    assert measured == [4, 4, 0, 4, 3]
    scaled = onnx.load(source)
    scaled.graph.initializer[0].CopyFrom(
        onnx.numpy_helper.from_array(onnx.numpy_helper.to_array(scaled.graph.initializer[0]) * 2, "w_0")
    )
    ran = run_step(Quantize, save(scaled, tmp_path / "n.onnx"), tmp_path / "other", ALL, GIVEN)
    assert any(what == "calibrating" for _, _, what in ran.told), "another model of the same names"


@pytest.mark.parametrize(("method", "measured"), [("minmax", 0), ("percentile", 1)])
def test_a_search_for_exceptions_measures_no_range_that_a_form_has_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, method: str, measured: int
) -> None:
    source, counted = write_net(tmp_path / "m.onnx"), Mock(wraps=calibration._measure)
    measured_under.cache_clear()
    quantize(source, tmp_path / "q")
    monkeypatch.setattr(calibration, "_measure", counted)
    settings = {"precision": "int8", "int8": {"min_intensity": 0, "method": method}, "samples": 4, "trials": 2}
    run_step(FindPrecision, source, tmp_path / "found", settings, GIVEN)
    assert counted.call_count == measured


@pytest.mark.parametrize(
    "settings",
    [
        {"mode": "dynamic"},
        {"mode": "weight_only"},
        {"target": "tensorrt"},
        {"target": "openvino"},
        {"weights": "uint8"},
        {"weights": "int4"},
        {"activations": "uint16"},
        {"optimize": "latency"},
    ],
    ids=str,
)
def test_integer_operators_are_refused_where_there_are_none(settings: dict[str, Any]) -> None:
    with pytest.raises(ValidationError, match="`format"):
        Quantize.model_validate({"format": "qoperator", **settings})
