"""The step `smooth_activations`: the same function, and less noise in INT8."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper, numpy_helper

from ndld_flow.accuracy.inside.capture import capture, capture_in_parts, capture_with_inputs
from ndld_flow.runtimes.onnxruntime.request import OnnxruntimeRequest
from ndld_flow.steps.quantize import Quantize
from ndld_flow.steps.smooth_activations import SmoothActivations
from tests.support.models import GraphBuilder, rename_output, save, tensor
from tests.support.models_run import Ran, run_step
from tests.support.text_facts import numbers_in

_CHANNELS = 16
_INPUTS = {"x": {"shape": [1, 12, _CHANNELS], "range": [-1.0, 1.0]}}


def gain(loud: int = 200) -> np.ndarray[Any, np.dtype[np.float32]]:
    """Return channel factors: `loud` for the third channel and 1 for the others."""
    factors = np.ones(_CHANNELS, np.float32)
    factors[2] = loud
    return factors


def make_block(path: Path, loud: int = 200, *, normalized: bool = True, kept: bool = False) -> Path:
    """Write a LayerNormalization with one loud channel, two MatMuls on it, and a Gemm on a computed activation.

    `kept` returns the loud activation too. Without `normalized` a Mul makes it.
    """
    b = GraphBuilder(5)
    scale = b.initializer(gain(loud))
    h = b.op("LayerNormalization", "x", scale, b.weight(_CHANNELS)) if normalized else b.op("Mul", "x", scale)
    left, right = (b.op("MatMul", h, b.weight(_CHANNELS, 8)) for _ in range(2))
    added = b.op("Reshape", b.op("Add", left, right), b.ints(12, 8))
    loud_again = b.op("Mul", added, b.initializer(np.array([1, 1, 90, 1, 1, 1, 1, 1], np.float32)))
    y = b.op("Gemm", loud_again, b.weight(4, 8), b.weight(4), transB=1, alpha=0.5)
    rename_output(b, y, "y")
    outputs = [tensor("y", [12, 4])] + ([tensor(h, [1, 12, _CHANNELS])] if kept else [])
    return save(b.model([tensor("x", [1, 12, _CHANNELS])], outputs), path)


def smooth(model: Path, folder: Path, **settings: Any) -> tuple[onnx.ModelProto, Ran]:
    ran = run_step(SmoothActivations, model, folder, {"samples": 8, **settings}, _INPUTS)
    return onnx.load(folder / "out" / "model.onnx"), ran


def outputs_of(model: Path, count: int = 1) -> list[Any]:
    feeds = {"x": np.random.default_rng(count).uniform(-1, 1, (1, 12, _CHANNELS)).astype(np.float32)}
    return list(ort.InferenceSession(str(model), providers=["CPUExecutionProvider"]).run(None, feeds))


def operators(model: onnx.ModelProto) -> list[str]:
    return [node.op_type for node in model.graph.node]


@pytest.mark.representatives("True-1.0", "False-1.0")
@pytest.mark.parametrize("alpha", [None, 0.1, 0.5, 1.0])
@pytest.mark.parametrize("kept", [False, True])
def test_the_model_computes_the_same_function(tmp_path: Path, alpha: float | None, kept: bool) -> None:
    source = make_block(tmp_path / "m.onnx", kept=kept)
    smooth(source, tmp_path / "s", **({} if alpha is None else {"alpha": alpha}))
    for ours, theirs in zip(outputs_of(tmp_path / "s/out/model.onnx"), outputs_of(source), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=2e-5, atol=2e-5 * np.abs(theirs).max())


def test_factors_go_into_a_normalization_that_only_layers_read(tmp_path: Path) -> None:
    model, ran = smooth(make_block(tmp_path / "m.onnx"), tmp_path / "folded")
    assert operators(model).count("Mul") == 2, "one for the Gemm, beside that of the source"
    assert ran.result.metrics["smoothed"] == 2
    normalized = next(node for node in model.graph.node if node.op_type == "LayerNormalization")
    assert normalized.output[0].endswith("_smoothed"), "its values are others, and so is its name"
    returned, _ = smooth(make_block(tmp_path / "k.onnx", kept=True), tmp_path / "kept")
    assert operators(returned).count("Mul") == 3, "the output of the model keeps its values"


def noise(model: Path, folder: Path) -> float:
    """Return the error of INT8 relative to the outputs."""
    settings = {"samples": 8, "min_intensity": 0, "target": "openvino", "exclude": {"op_types": ["Gemm"]}}
    run_step(Quantize, model, folder, settings, _INPUTS)
    pairs = [(outputs_of(folder / "out/model.onnx", n)[0], outputs_of(model, n)[0]) for n in range(100, 120)]
    return float(np.sqrt(sum(((a - b) ** 2).sum() for a, b in pairs) / sum((b**2).sum() for _, b in pairs)))


def test_int8_has_less_noise(tmp_path: Path) -> None:
    source = make_block(tmp_path / "m.onnx", loud=40, normalized=False)
    smooth(source, tmp_path / "s")
    before, after = noise(source, tmp_path / "before"), noise(tmp_path / "s/out/model.onnx", tmp_path / "after")
    assert after < 0.5 * before


def test_activations_that_gain_little_stay_as_they_are(tmp_path: Path) -> None:
    """All channels are alike: a Mul would cost time and save nothing."""
    b = GraphBuilder(1)
    rename_output(b, b.op("MatMul", "x", b.weight(_CHANNELS, 8)), "y")
    source = save(b.model([tensor("x", [1, 12, _CHANNELS])], [tensor("y", [1, 12, 8])]), tmp_path / "m.onnx")
    model, ran = smooth(source, tmp_path / "s")
    assert operators(model) == ["MatMul"]
    assert (ran.result.metrics["activations"], ran.result.metrics["smoothed"]) == (1, 0)
    assert smooth(source, tmp_path / "given", alpha=0.5)[1].result.metrics["smoothed"] == 1


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_dead_channels_and_shared_weights(tmp_path: Path, dtype: type[np.floating[Any]]) -> None:
    """A channel that is always 0, a row of zeros, and a weight that is returned and read by two layers."""
    weight = np.random.default_rng(2).normal(0, 0.2, (4, 4)).astype(dtype)
    weight[3] = 0
    factors = np.array([1, 0, 300, 1], dtype)
    kind = TensorProto.FLOAT if dtype is np.float32 else TensorProto.FLOAT16
    nodes = [
        helper.make_node("Mul", ["x", "f"], ["h"]),
        helper.make_node("MatMul", ["h", "w"], ["y"]),
        helper.make_node("MatMul", ["x", "w"], ["z"]),
        helper.make_node("Identity", ["w"], ["v"]),
    ]
    values = [numpy_helper.from_array(weight, "w"), numpy_helper.from_array(factors, "f")]
    ends = [tensor("y", [6, 4], kind), tensor("z", [6, 4], kind), tensor("v", [4, 4], kind)]
    graph = helper.make_graph(nodes, "g", [tensor("x", [6, 4], kind)], ends, values)
    source = save(helper.make_model(graph, ir_version=8, opset_imports=[helper.make_opsetid("", 17)]), tmp_path / "m")
    given = {"x": {"shape": [6, 4], "range": [-1.0, 1.0]}}
    run_step(SmoothActivations, source, tmp_path / "s", {"samples": 4, "alpha": 0.5}, given)
    x = np.random.default_rng(0).uniform(-1, 1, (6, 4)).astype(dtype)
    providers = ["CPUExecutionProvider"]
    ours, theirs = (
        ort.InferenceSession(str(path), providers=providers).run(None, {"x": x})
        for path in (tmp_path / "s/out/model.onnx", source)
    )
    for mine, right in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(mine, right, rtol=1e-2 if dtype is np.float16 else 1e-5, atol=1e-2)
    assert np.array_equal(ours[2], weight), "the weight itself stays"


def test_a_model_without_products_stays_as_it_is(tmp_path: Path) -> None:
    b = GraphBuilder(1)
    rename_output(b, b.op("Relu", "x"), "y")
    shape: list[int | str | None] = [1, 12, _CHANNELS]
    source = save(b.model([tensor("x", shape)], [tensor("y", shape)]), tmp_path / "m.onnx")
    model, ran = smooth(source, tmp_path / "s")
    assert operators(model) == ["Relu"]
    assert numbers_in(ran.result.summary) == [0, 0, 0]


def test_computed_tensors_belong_to_their_sample_if_they_exceed_the_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All samples run before the first is yielded: ranges of inputs were those of the last sample alone."""
    monkeypatch.setattr("ndld_flow.accuracy.inside.capture.capture", partial(capture, budget=1))
    model = make_block(tmp_path / "m.onnx", normalized=False)
    inside = [node.output[0] for node in onnx.load(model).graph.node if node.op_type in ("Mul", "MatMul")]
    samples = [{"x": np.full((1, 12, _CHANNELS), value, np.float32)} for value in (1.0, 2.0, 3.0)]
    found = [*capture_with_inputs(model, inside, iter(samples), OnnxruntimeRequest().unfused(), tmp_path)]
    assert [tensors["x"].max() for tensors in found] == [1.0, 2.0, 3.0]
    assert [tensors[inside[0]].flat[0] / tensors["x"].flat[0] for tensors in found] == [1.0, 1.0, 1.0]


@pytest.mark.parametrize("budget", [1, 2**29])
def test_statistics_see_each_tensor_of_each_sample_once(tmp_path: Path, budget: int) -> None:
    """Calibration stored every value of every sample: 60 GB for 32 samples of a detector, which filled the disk."""
    model = make_block(tmp_path / "m.onnx", normalized=False)
    inside = [node.output[0] for node in onnx.load(model).graph.node if node.op_type in ("Mul", "MatMul")]
    samples = [{"x": np.full((1, 12, _CHANNELS), value, np.float32)} for value in (1.0, 2.0, 3.0)]
    seen: dict[str, list[float]] = {}
    for number, tensors in capture_in_parts(model, inside, iter(samples), OnnxruntimeRequest().unfused(), budget):
        assert all(value.flat[0] == number for name, value in tensors.items() if name == "x")
        for name, value in tensors.items():
            seen.setdefault(name, []).append(float(value.flat[0]))
    assert seen.keys() == {"x", *inside}
    assert seen["x"] == [1.0, 2.0, 3.0]
    assert all(len(values) == len(samples) for values in seen.values())
    assert [*capture_in_parts(model, [], iter(samples), OnnxruntimeRequest())][-1] == (3, samples[-1])
