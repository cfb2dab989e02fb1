"""The step `quantize`, and searches for nodes that int8 breaks."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from pydantic import ValidationError

from ndld_flow.base.errors import RequestError
from ndld_flow.inputs import InputSpec
from ndld_flow.records.precision_search import PrecisionSearch
from ndld_flow.runtimes.tensorrt.library import find_library
from ndld_flow.steps.find_precision import FindPrecision
from ndld_flow.steps.quantize import Quantize
from ndld_flow.store.kinds import PrecisionDocument
from tests.support.message_files import CheckMessage
from tests.support.models import GraphBuilder, make_ext, rename_output, save, tensor
from tests.support.models_run import run_step

EVERYTHING: dict[str, Any] = {"min_intensity": 0}
SIGNED = {"x": {"shape": [1, 8, 12, 12], "range": [-1.0, 1.0]}}
FULL = {"samples": 4, **EVERYTHING}


def make_convs(path: Path, layers: int = 4, loud: int | None = None, opset: int = 17, between: str = "Relu") -> Path:
    """Dense 1x1 convolutions with an operator between; channel 0 of what `loud` reads is 3000 times as large as the
    others, and its weight as much smaller: one step of 256 is larger than all that the other channels hold.
    """
    b = GraphBuilder(3)
    h = "x"
    for layer in range(layers):
        weight = np.random.default_rng(layer).normal(0, 0.35, (8, 8, 1, 1)).astype(np.float32)
        if layer == loud:
            gain = np.ones((1, 8, 1, 1), np.float32)
            gain[0, 0] = 3000
            h = b.op("Mul", h, b.floats(gain))
            weight[:, 0] /= 3000
        h = b.op("Conv", h, b.floats(weight), b.weight(8), kernel_shape=[1, 1])
        if layer + 1 < layers:
            h = b.op(between, h)
    rename_output(b, h, "y")
    model = b.model([tensor("x", [1, 8, "h", "w"])], [tensor("y", [1, 8, "h", "w"])])
    model.opset_import[0].version = opset
    return save(model, path)


def quantize(model: Path, folder: Path, given: Any = SIGNED, **settings: Any) -> tuple[onnx.ModelProto, Any]:
    ran = run_step(Quantize, model, folder, settings, given)
    return onnx.load(folder / "out" / "model.onnx"), ran.result


def operators(model: onnx.ModelProto) -> Counter[str]:
    return Counter(node.op_type for node in model.graph.node)


def run(path: Path, optimized: Path | None = None) -> np.ndarray[Any, Any]:
    options = ort.SessionOptions()
    options.log_severity_level = 4
    if optimized is not None:
        options.optimized_model_filepath = str(optimized)
    session = ort.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    shape = [size if isinstance(size, int) else 12 for size in session.get_inputs()[0].shape]
    values = np.random.default_rng(7).uniform(-1, 1, shape).astype(np.float32)
    return np.asarray(session.run(None, {session.get_inputs()[0].name: values})[0])


def snr(reference: np.ndarray[Any, Any], candidate: np.ndarray[Any, Any]) -> float:
    return float(10 * np.log10((reference**2).sum() / ((candidate - reference) ** 2).sum()))


@pytest.mark.representatives("{'method': 'entropy'}")
@pytest.mark.parametrize(
    "settings",
    [{}, {"activations": "int8"}, {"weights": "uint8"}, {"per_channel": False}, {"symmetric": True}]
    + [{"method": method} for method in ("percentile", "entropy")],
    ids=str,
)
def test_a_quantized_model_computes_in_integers_and_stays_accurate(settings: dict[str, Any], tmp_path: Path) -> None:
    source = make_convs(tmp_path / "m.onnx")
    model, result = quantize(source, tmp_path / "q", **FULL, **settings)
    assert result.metrics["layers"] == 4
    initializers = {initializer.name: initializer.data_type for initializer in model.graph.initializer}
    weights = onnx.TensorProto.UINT8 if settings.get("weights") == "uint8" else onnx.TensorProto.INT8
    assert sum(kind == weights for name, kind in initializers.items() if name.endswith("_quantized")) == 4
    assert snr(run(source), run(tmp_path / "q/out/model.onnx", tmp_path / "o.onnx")) > 20
    # As ONNX Runtime runs it, nothing is left in floats but what is between.
    assert operators(onnx.load(tmp_path / "o.onnx"))["QLinearConv"] == 4


def test_wider_types_and_4_bits_raise_the_opset(tmp_path: Path) -> None:
    source = make_convs(tmp_path / "m.onnx", opset=13)
    model, result = quantize(source, tmp_path / "q", **FULL, activations="uint16")
    assert model.opset_import[0].version == 21
    assert "opset 13 -> 21" in "; ".join(result.change.notes)
    assert snr(run(source), run(tmp_path / "q/out/model.onnx")) > 35


@pytest.mark.parametrize("settings", [{}, {"per_channel": False}], ids=str)
def test_weights_of_4_bits_are_written(settings: dict[str, Any], tmp_path: Path) -> None:
    source = make_convs(tmp_path / "m.onnx", opset=13)
    model, result = quantize(source, tmp_path / "q", **FULL, weights="int4", **settings)
    assert "uint8 x int4" in result.summary
    assert (
        sum(
            initializer.data_type == onnx.TensorProto.INT4 and bool(initializer.dims)
            for initializer in model.graph.initializer
        )
        >= 4
    )
    assert snr(run(source), run(tmp_path / "q/out/model.onnx")) > 12


def test_a_transposed_convolution_is_for_tensorrt_only(tmp_path: Path) -> None:
    b = GraphBuilder(0)
    h = b.op("ConvTranspose", b.op("Conv", "x", b.weight(8, 8, 1, 1)), b.weight(8, 8, 2, 2), strides=[2, 2])
    rename_output(b, h, "y")
    source = save(b.model([tensor("x", [1, 8, 4, 4])], [tensor("y", [1, 8, 8, 8])]), tmp_path / "m.onnx")
    _, on_cpu = quantize(source, tmp_path / "q", {}, **EVERYTHING)
    assert "1 of 1 layers" in on_cpu.summary
    _, elsewhere = quantize(source, tmp_path / "r", {}, target="tensorrt")
    assert "2 of 2 layers" in elsewhere.summary


def test_operators_without_a_gain_are_not_quantized(tmp_path: Path, check_message: CheckMessage) -> None:
    """Eight channels are 4 multiply-accumulates an element."""
    with pytest.raises(RequestError) as caught:
        quantize(make_convs(tmp_path / "m.onnx"), tmp_path / "p")
    check_message(caught.value)
    model, result = quantize(make_convs(tmp_path / "m.onnx"), tmp_path / "q", allow_empty=True)
    assert result.metrics["layers"] == 0
    assert "0 of 4 layers" in result.summary
    assert model == onnx.load(tmp_path / "m.onnx")
    some, _ = quantize(make_convs(tmp_path / "n.onnx"), tmp_path / "r", min_intensity=4)
    assert operators(some)["QuantizeLinear"] > 0


def test_depthwise_convolutions_are_not_quantized(tmp_path: Path) -> None:
    b = GraphBuilder(0)
    h = b.op("Conv", "x", b.weight(128, 128, 1, 1), kernel_shape=[1, 1])
    h = b.op("Conv", h, b.weight(128, 1, 3, 3), group=128, kernel_shape=[3, 3])
    rename_output(b, h, "y")
    source = save(b.model([tensor("x", [1, 128, 8, 8])], [tensor("y", [1, 128, 6, 6])]), tmp_path / "m.onnx")
    _, result = quantize(source, tmp_path / "q", {})
    assert result.metrics["layers"] == 1


def test_excluded_nodes_are_not_quantized(tmp_path: Path, check_message: CheckMessage) -> None:
    source = make_convs(tmp_path / "m.onnx")
    names = [node.name for node in onnx.load(source).graph.node if node.op_type == "Conv"]
    _, result = quantize(source, tmp_path / "q", **FULL, exclude={"nodes": [names[1]]})
    assert result.metrics["layers"] == 3
    model, _ = quantize(source, tmp_path / "r", **FULL, exclude={"op_types": ["Conv"]}, allow_empty=True)
    assert model == onnx.load(source)
    with pytest.raises(RequestError, match=r"exclude\.nodes"):
        quantize(source, tmp_path / "s", **FULL, exclude={"nodes": ["nothing*"]})
    with pytest.raises(RequestError) as caught:
        quantize(source, tmp_path / "t", **FULL, op_types=["Convv"])
    check_message(caught.value)


def test_other_readers_keep_their_inputs(tmp_path: Path) -> None:
    """A sum in parallel to a quantized convolution reads the tensor itself, not its rounded copy."""
    b = GraphBuilder(0)
    h = b.op("Conv", b.op("Sigmoid", "x"), b.weight(8, 8, 1, 1), kernel_shape=[1, 1])
    sigmoid = next(node.output[0] for node in b.nodes if node.op_type == "Sigmoid")
    rename_output(b, b.op("Sub", h, sigmoid), "y")
    source = save(b.model([tensor("x", [1, 8, 4, 4])], [tensor("y", [1, 8, 4, 4])]), tmp_path / "m.onnx")
    model, _ = quantize(source, tmp_path / "q", {}, **EVERYTHING)
    subtraction = next(node for node in model.graph.node if node.op_type == "Sub")
    assert subtraction.input[1] == sigmoid


def test_weights_alone_can_be_quantized(tmp_path: Path) -> None:
    b = GraphBuilder(0)
    rename_output(b, b.op("MatMul", "x", b.weight(32, 16)), "y")
    source = save(b.model([tensor("x", [4, 32])], [tensor("y", [4, 16])]), tmp_path / "m.onnx")
    model, result = quantize(source, tmp_path / "q", {}, mode="dynamic")
    assert operators(model)["MatMulInteger"] == 1
    assert snr(run(source), run(tmp_path / "q/out/model.onnx")) > 25
    assert result.summary.startswith("dynamic int8: 1 of 1 layers")
    assert Quantize(mode="dynamic").used_input(InputSpec()) is None


def test_tensors_without_a_range_are_reported(tmp_path: Path) -> None:
    b = GraphBuilder(0)
    h = b.op("Conv", b.op("Log", "x"), b.weight(8, 8, 1, 1), kernel_shape=[1, 1])
    rename_output(b, b.op("Conv", b.op("Relu", h), b.weight(8, 8, 1, 1), kernel_shape=[1, 1]), "y")
    source = save(b.model([tensor("x", [1, 8, 4, 4])], [tensor("y", [1, 8, 4, 4])]), tmp_path / "m.onnx")
    _, result = quantize(source, tmp_path / "q", {"x": {"data": "zeros"}}, **EVERYTHING, allow_empty=True)
    assert result.metrics["layers"] == 0
    assert any("NaN or infinity" in note for note in result.change.notes)


def test_external_data_stays_external(tmp_path: Path) -> None:
    source = make_ext(tmp_path / "m.onnx")
    _, result = quantize(source, tmp_path / "q", {}, **EVERYTHING)
    assert result.metrics["layers"] > 0
    run(tmp_path / "q/out/model.onnx")


@pytest.mark.thorough
def test_equal_settings_give_equal_bytes_and_no_temporary_files(tmp_path: Path) -> None:
    source = make_convs(tmp_path / "m.onnx")
    script = (
        "import logging, sys; from pathlib import Path; from ndld_flow.steps.quantize import Quantize\n"
        "logging.getLogger('ndld_flow').addHandler(logging.NullHandler())\n"
        "from tests.support.models_run import run_step; from tests.quantize.test_quantize import FULL, SIGNED\n"
        "run_step(Quantize, Path(sys.argv[1]), Path(sys.argv[2]), FULL | {'method': 'percentile'}, SIGNED)"
    )
    work = tmp_path / "work"
    work.mkdir()
    seed = "2" if os.environ.get("PYTHONHASHSEED") == "1" else "1"
    environment = {**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": str(Path(__file__).parent.parent.parent)}
    command = [sys.executable, "-c", script, str(source), str(tmp_path / "there")]
    done = subprocess.run(command, cwd=work, env=environment, capture_output=True, text=True, check=True)
    assert done.stdout == done.stderr == ""
    assert not list(work.iterdir())
    quantize(source, tmp_path / "here", **FULL, method="percentile")
    result = [(tmp_path / text / "out/model.onnx").read_bytes() for text in ("here", "there")]
    assert result[0] == result[1]


def test_the_root_logger_is_restored(tmp_path: Path, capsys: Any) -> None:
    before = list(logging.getLogger().handlers)
    quantize(make_convs(tmp_path / "m.onnx"), tmp_path / "q", **FULL, method="entropy")
    assert logging.getLogger().handlers == before
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize(
    "settings",
    [
        {"target": "tensorrt", "mode": "dynamic"},
        {"target": "tensorrt", "activations": "uint8"},
        {"target": "tensorrt", "weights": "int4"},
        {"mode": "dynamic", "weights": "int4"},
        {"block_size": 64},
        {"mode": "weight_only", "target": "tensorrt"},
        {"mode": "weight_only", "weights": "uint8"},
        {"mode": "weight_only", "op_types": ("Conv",)},
        {"mode": "weight_only", "algorithm": "hqq"},
        {"mode": "weight_only", "algorithm": "hqq", "weights": "int4", "symmetric": True},
    ],
)
def test_contradictory_settings_are_refused(settings: dict[str, Any], check_message: CheckMessage) -> None:
    with pytest.raises(ValidationError) as caught:
        Quantize.model_validate(settings)
    check_message(caught.value)


@pytest.mark.thorough
def test_a_search_keeps_the_layer_that_int8_breaks(tmp_path: Path) -> None:
    source = make_convs(tmp_path / "m.onnx", layers=5, loud=2)
    convs = [node for node in onnx.load(source).graph.node if node.op_type == "Conv"]
    asked = {"precision": "int8", "tolerance": {"snr_db": 20}, "samples": 2, "int8": EVERYTHING}
    step = run_step(FindPrecision, source, tmp_path / "f", asked, SIGNED)
    search = PrecisionSearch.model_validate_json((tmp_path / "f/out/precision.json").read_text())
    assert search.passed, step.result.summary
    assert search.metrics_whole["snr_db"] < 15
    assert [kept.outputs[0] for kept in search.kept] == [convs[2].output[0]]
    artifact = PrecisionDocument(tmp_path / "f/out/precision.json", "search", "digest")
    settings = {"samples": 2, **EVERYTHING, "found_by": "search"}
    ran = run_step(Quantize, source, tmp_path / "q", settings, SIGNED, artifacts={"found_by": artifact})
    assert ran.result.metrics["layers"] == 4
    assert snr(run(source), run(tmp_path / "q/out/model.onnx")) > 18


def test_a_search_for_fp16_is_refused(tmp_path: Path, check_message: CheckMessage) -> None:
    source = make_convs(tmp_path / "m.onnx")
    run_step(FindPrecision, source, tmp_path / "f", {"precision": "fp16"}, SIGNED)
    artifact = PrecisionDocument(tmp_path / "f/out/precision.json", "search", "digest")
    with pytest.raises(RequestError) as caught:
        run_step(Quantize, source, tmp_path / "q", {"found_by": "s"}, SIGNED, artifacts={"found_by": artifact})
    check_message(caught.value)


@pytest.mark.thorough
@pytest.mark.skipif(not find_library("tensorrt_rtx").found, reason="builds with TensorRT-RTX")
def test_tensorrt_builds_models_quantized_for_it(tmp_path: Path) -> None:
    from ndld_flow.steps.build_engine import BuildEngine

    source = make_convs(tmp_path / "m.onnx")
    model, _ = quantize(source, tmp_path / "q", **FULL, target="tensorrt")
    zeros = [initializer for initializer in model.graph.initializer if initializer.name.endswith("zero_point")]
    assert zeros and all(not onnx.numpy_helper.to_array(item).any() for item in zeros)
    pairs = {node.input[0] for node in model.graph.node if node.op_type == "QuantizeLinear"}
    assert not pairs & {node.output[0] for node in model.graph.node if node.op_type == "Conv"}
    settings = {"backend": "tensorrt_rtx", "compute_capabilities": ["8.6"]}
    run_step(BuildEngine, tmp_path / "q/out/model.onnx", tmp_path / "e", settings, SIGNED)
    assert (tmp_path / "e/out/model.engine").stat().st_size > 0


def test_openvino_gets_integers_on_inputs_of_layers_only(tmp_path: Path) -> None:
    model, _ = quantize(make_convs(tmp_path / "m.onnx"), tmp_path / "q", target="openvino", **FULL)
    pairs = {node.input[0] for node in model.graph.node if node.op_type == "QuantizeLinear"}
    assert pairs and not pairs & {node.output[0] for node in model.graph.node if node.op_type == "Conv"}
    zeros = {node.input[2] for node in model.graph.node if node.op_type == "QuantizeLinear"}
    types = {initializer.data_type for initializer in model.graph.initializer if initializer.name in zeros}
    assert types == {onnx.TensorProto.UINT8}


@pytest.mark.parametrize(
    ("settings", "is_symmetric"),
    [
        ({}, False),
        ({"target": "openvino"}, False),
        ({"symmetric": True}, True),
        ({"symmetric": False}, False),
        ({"target": "tensorrt"}, True),
        ({"target": "tensorrt", "symmetric": True}, True),
    ],
)
def test_activations_are_symmetric_on_request_and_for_tensorrt(settings: dict[str, Any], is_symmetric: bool) -> None:
    assert Quantize(**settings).symmetric_activations == is_symmetric
