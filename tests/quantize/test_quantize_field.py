"""Models that quantizers got wrong elsewhere: each result computes what its source does, or a layer is left with its
reason."""

from __future__ import annotations

import functools
import os
import runpy
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import numpy_helper
from onnxruntime.quantization.qdq_quantizer import QDQQuantizer

from ndld_flow.base.errors import ModelError, RequestError
from ndld_flow.steps.quantize import Quantize
from tests.support.message_files import CheckMessage
from tests.support.models_run import run_step

FIELD = Path(__file__).parents[3] / "shared/field"
Array = np.ndarray[Any, Any]


@functools.cache
def case(name: str) -> dict[str, Any]:
    """Return the functions of a case; skip where the collection is not."""
    if not (FIELD / f"{name}.py").exists():
        pytest.skip(f"needs {FIELD}")
    sys.path.insert(0, os.fspath(FIELD))
    try:
        return runpy.run_path(os.fspath(FIELD / f"{name}.py"))
    finally:
        sys.path.remove(os.fspath(FIELD))


def outputs(model: Path, feeds: Mapping[str, Array]) -> dict[str, Array]:
    """Run a model without optimization: on a CPU without VNNI, integer kernels saturate."""
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = ort.InferenceSession(str(model), options, providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    return dict(zip(names, map(np.asarray, session.run(None, dict(feeds))), strict=True))


def errors(source: Path, result: Path, feeds: Mapping[str, Array]) -> dict[str, float]:
    """Return each output's largest difference, relative to its largest value."""
    right, computed = outputs(source, feeds), outputs(result, feeds)
    assert right.keys() == computed.keys()
    return {
        name: float(np.abs(computed[name] - values).max() / np.abs(values).max())
        for name, values in right.items()
        if values.size
    }


VARIANTS = [
    (name, variant)
    for name, variants in {
        "bias_overflow_quant": ("cpu", "ov", "trt", "pt", "gemm"),
        "convtranspose_quant": ("ov", "trt", "cpu"),
        "empty_slice_quant": ("int8", "int8_trt", "int8_entropy"),
        "gemm_column_bias": ("cpu", "ov"),
        "relu_preactivation_output": ("cpu",),
        "weight3d_quant": ("dyn", "static", "w4", "w8", "ov"),
    }.items()
    for variant in variants
]


@pytest.mark.representatives("gemm_column_bias-cpu", "relu_preactivation_output-cpu", "convtranspose_quant-cpu")
@pytest.mark.parametrize(("name", "variant"), VARIANTS, ids=[f"{name}-{variant}" for name, variant in VARIANTS])
def test_models_of_the_field_stay_right(name: str, variant: str, tmp_path: Path) -> None:
    found = case(name)
    (settings,) = (dict(step) for step in found["VARIANTS"][variant].values())
    del settings["step"]
    settings["allow_empty"] = name == "gemm_column_bias"  # both of its layers are left with a reason
    onnx.save(found["model"](), tmp_path / "m.onnx")
    given = {}
    for input_name, values in found["feeds"]().items():
        np.save(tmp_path / f"{input_name}.npy", values)
        given[input_name] = {"shape": list(values.shape), "data": str(tmp_path / f"{input_name}.npy")}
    step = run_step(Quantize, tmp_path / "m.onnx", tmp_path / "q", settings, given)
    found_errors = errors(tmp_path / "m.onnx", step.out / "model.onnx", found["feeds"]())
    assert max(found_errors.values()) < (0.1 if variant == "w4" else 0.03), found_errors


def quantized(model: Path, folder: Path, given: Any = None, **settings: Any) -> tuple[Path, str]:
    """Quantize all that can be; return the result, and the notes."""
    step = run_step(Quantize, model, folder, {"min_intensity": 0, "samples": 8, **settings}, given or {})
    assert step.result.change is not None
    return step.out / "model.onnx", "; ".join(step.result.change.notes)


def parsed(path: Path, text: str, **weights: Any) -> Path:
    """Write a model from ONNX's text form, with weights."""
    model = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["": 17]> {text}')
    model.graph.initializer.extend(numpy_helper.from_array(np.asarray(value), name) for name, value in weights.items())
    onnx.save(model, path)
    return path


def numbers(*shape: int, seed: int = 1) -> Array:
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


SIGNED = {"x": {"shape": [4, 8], "range": [-1.0, 1.0]}}
X = np.random.default_rng(3).uniform(-1, 1, (4, 8)).astype(np.float32)


@pytest.mark.parametrize("shape", [(8,), (1, 8), (1,), (1, 1), (), (4, 1), (4, 8)], ids=str)
@pytest.mark.parametrize("target", ["cpu", "openvino"])
def test_a_bias_of_any_shape_is_added_where_the_source_adds_it(
    target: str, shape: tuple[int, ...], tmp_path: Path
) -> None:
    text = "g (float[4, 8] x) => (float[4, 8] y, float[4, 8] z) { y = MatMul(x, V)  z = Gemm(x, W, C) }"
    weights = {"W": numbers(8, 8), "V": numbers(8, 8, seed=2), "C": 5 * numbers(*shape, seed=4)}
    source = parsed(tmp_path / "m.onnx", text, **weights)
    result, notes = quantized(source, tmp_path / "q", SIGNED, target=target)
    assert max(errors(source, result, {"x": X}).values()) < 0.03
    assert ("weight shape" in notes) == (len(shape) == 2 and shape[0] == 4)


def test_a_column_that_a_transpose_turns_is_no_bias(tmp_path: Path) -> None:
    """The constant is [1, 8], and what is added to the 8 rows is [8, 1]."""
    text = """g (float[8, 8] x) => (float[8, 8] y, float[8, 8] z) {
        y = MatMul(x, W)
        c = Transpose(C)
        z = Gemm(x, W, c)
    }"""
    source = parsed(tmp_path / "m.onnx", text, W=numbers(8, 8), C=5 * numbers(1, 8, seed=4))
    given = {"x": {"shape": [8, 8], "range": [-1.0, 1.0]}}
    result, notes = quantized(source, tmp_path / "q", given)
    assert max(errors(source, result, {"x": np.concatenate([X, -X])}).values()) < 0.03
    assert "1 layer not quantized" in notes


CONVS = """g (float[1, 8, 6, 6] x, bool c) => (float[1, 8, 6, 6] y{output}) {{
    pre = Conv<kernel_shape = [1, 1]>(x, W)
    r = {activation}
    y0 = Conv<kernel_shape = [1, 1]>(r, V)
    y = {body}
}}"""
BODY = "If(c)<then_branch = t () => (float[1, 8, 6, 6] a) {{ a = Neg({0}) }}, "
BODY += "else_branch = e () => (float[1, 8, 6, 6] b) {{ b = Sub({1}, y0) }}>"
RELUS = ["Relu(pre)", "Clip(pre, low, high)"]


@pytest.mark.parametrize("activation", RELUS)
@pytest.mark.parametrize(
    ("output", "body"),
    [
        (", float[1, 8, 6, 6] pre", "Identity(y0)"),
        ("", BODY.format("pre", "pre")),
        ("", BODY.format("r", "pre")),
        (", float[1, 8, 6, 6] r", BODY.format("pre", "r")),
        (", float[1, 8, 6, 6] pre", BODY.format("r", "r")),
    ],
)
def test_negative_values_stay_where_more_than_a_relu_reads_them(
    output: str, body: str, activation: str, tmp_path: Path
) -> None:
    text = CONVS.format(output=output, activation=activation, body=body)
    weights = {"W": numbers(8, 8, 1, 1), "V": numbers(8, 8, 1, 1, seed=2)}
    bounds = {"low": np.float32(0), "high": np.float32(1e6)} if activation != "Relu(pre)" else {}
    source = parsed(tmp_path / "m.onnx", text, **weights, **bounds)
    given = {"x": {"shape": [1, 8, 6, 6], "range": [-1.0, 1.0]}, "c": {"data": 1}}
    result, _ = quantized(source, tmp_path / "q", given)
    x = np.random.default_rng(3).uniform(-1, 1, (1, 8, 6, 6)).astype(np.float32)
    for condition in (True, False):
        assert max(errors(source, result, {"x": x, "c": np.array(condition)}).values()) < 0.06


def test_biases_of_transposed_convolutions_in_groups_stay_in_floats(tmp_path: Path) -> None:
    text = """g (float[1, 4, 5, 5] x) => (float[1, 6, a, b] y) {
        y = ConvTranspose<kernel_shape = [3, 3], group = 2>(x, W, B)
    }"""
    source = parsed(tmp_path / "m.onnx", text, W=numbers(4, 3, 3, 3), B=numbers(6))
    given = {"x": {"shape": [1, 4, 5, 5], "range": [-1.0, 1.0]}}
    result, _ = quantized(source, tmp_path / "q", given, op_types=["ConvTranspose"])
    x = np.random.default_rng(3).uniform(-1, 1, (1, 4, 5, 5)).astype(np.float32)
    assert max(errors(source, result, {"x": x}).values()) < 0.03
    kinds = {initializer.name: initializer.data_type for initializer in onnx.load(result).graph.initializer}
    assert kinds["W_quantized"] == onnx.TensorProto.INT8
    assert kinds["B"] == onnx.TensorProto.FLOAT


def test_a_failure_of_the_quantizer_names_its_node(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, check_message: CheckMessage
) -> None:
    text = "g (float[4, 8] x) => (float[4, 8] y) { a = MatMul(x, U)  b = MatMul(a, V)  c = MatMul(b, W)  y = Tanh(c) }"
    source = parsed(tmp_path / "m.onnx", text, U=numbers(8, 8), V=numbers(8, 8), W=numbers(8, 8))
    whole = QDQQuantizer.quantize_weight_tensor_per_channel

    def failing(self: QDQQuantizer, name: str, axis: int) -> None:
        if name == "V":
            raise ValueError("operands could not be broadcast")
        whole(self, name, axis)

    monkeypatch.setattr(QDQQuantizer, "quantize_weight_tensor_per_channel", failing)
    with pytest.raises(RequestError) as caught:
        quantized(source, tmp_path / "q", SIGNED)
    check_message(caught.value)


@pytest.mark.parametrize("settings", [{}, {"mode": "dynamic"}, {"mode": "weight_only", "block_size": 16}], ids=str)
@pytest.mark.parametrize("value", [-np.inf, np.nan])
def test_weights_that_are_not_finite_are_left_out(settings: dict[str, Any], value: float, tmp_path: Path) -> None:
    text = "g (float[4, 64] x) => (float[4, 64] y, float[4, 64] z) { y = MatMul(x, V)  z = Gemm(x, W, C) }"
    weights = {"V": numbers(64, 64), "W": numbers(64, 64), "C": numbers(64)}
    weights["W"][63, 63] = value
    source = parsed(tmp_path / "m.onnx", text, **weights)
    given = {"x": {"shape": [4, 64], "range": [-1.0, 1.0]}}
    result, notes = quantized(source, tmp_path / "q", given, **settings)
    assert "1 layer not quantized" in notes
    x = np.tile(X, 8)
    right, computed = (outputs(path, {"x": x}) for path in (source, result))
    np.testing.assert_allclose(computed["z"], right["z"], rtol=1e-4, atol=1e-4)
    assert np.abs(computed["y"] - right["y"]).max() < 0.05 * np.abs(right["y"]).max()


def test_only_static_quantization_leaves_a_layer_for_its_bias(tmp_path: Path) -> None:
    text = "g (float[4, 64] x) => (float[4, 64] y, float[4, 64] z) { y = MatMul(x, V)  z = Gemm(x, W, C) }"
    bias = numbers(64)
    bias[3] = -np.inf
    source = parsed(tmp_path / "m.onnx", text, V=numbers(64, 64), W=numbers(64, 64), C=bias)
    given = {"x": {"shape": [4, 64], "range": [-1.0, 1.0]}}
    for settings, left in (({}, True), ({"mode": "dynamic"}, False)):
        result, notes = quantized(source, tmp_path / str(left), given, **settings)
        assert ("weight not finite" in notes) == left
        right, computed = (outputs(path, {"x": np.tile(X, 8)})["z"] for path in (source, result))
        finite = np.isfinite(right)
        np.testing.assert_array_equal(finite, np.isfinite(computed))
        assert np.abs(computed[finite] - right[finite]).max() < 0.05 * np.abs(right[finite]).max()


def test_an_embedding_with_infinity_is_left_out(tmp_path: Path) -> None:
    """ONNX Runtime's quantizer makes every output NaN."""
    text = "g (int64[n] x) => (float[n, 64] y) { e = Gather(T, x)  y = MatMul(e, W) }"
    table = numbers(100, 64)
    table[7, 3] = -np.inf
    source = parsed(tmp_path / "m.onnx", text, T=table, W=numbers(64, 64))
    result, notes = quantized(source, tmp_path / "q", mode="dynamic")
    assert "Gather" in notes
    assert "weight not finite" in notes
    assert max(errors(source, result, {"x": np.array([1, 2])}).values()) < 0.05


def test_a_result_that_computes_nan_where_its_source_does_not_is_an_error(
    tmp_path: Path, check_message: CheckMessage
) -> None:
    """The columns of a product share a scale: those that are far smaller than the others become 0, which divides."""
    text = "g (float[4, 8] x) => (float[4, 8] y, float[4, 8] z) { y = MatMul(x, V) h = MatMul(x, W) z = Reciprocal(h) }"
    weights = numbers(8, 8)
    weights[:, 0] *= 1e6
    source = parsed(tmp_path / "m.onnx", text, V=numbers(8, 8), W=weights)
    with pytest.raises(ModelError) as caught:
        quantized(source, tmp_path / "q", SIGNED)
    check_message(caught.value)
    result, _ = quantized(source, tmp_path / "r", SIGNED, target="tensorrt")  # outputs stay in floats
    assert np.isfinite(outputs(result, {"x": X})["z"]).all()


def test_infinity_that_the_source_computes_too_is_none(tmp_path: Path) -> None:
    text = "g (float[4, 8] x) => (float[4, 8] y, float[4, 8] z) { y = MatMul(x, V)  z = Add(y, M) }"
    mask = np.zeros((1, 8), np.float32)
    mask[0, 2] = -np.inf
    source = parsed(tmp_path / "m.onnx", text, V=numbers(8, 8), M=mask)
    result, _ = quantized(source, tmp_path / "q", SIGNED)
    assert np.isinf(outputs(result, {"x": X})["z"][:, 2]).all()


def test_the_error_names_the_operation_that_makes_weights_constant(tmp_path: Path, check_message: CheckMessage) -> None:
    text = "g (float[4, 8] x, float[8, 8] W) => (float[4, 8] y) { y = MatMul(x, W) }"
    source = parsed(tmp_path / "m.onnx", text, W=numbers(8, 8))
    with pytest.raises(RequestError) as failure:
        quantized(source, tmp_path / "q", SIGNED)
    check_message(failure.value)
    assert "allow_empty" not in str(failure.value)


IN_A_LOOP = """g (float[4, 64] x) => (float[4, 64] y) {
    first = MatMul(x, W)
    last = Loop(three, yes, first)<body = step (int64 i, bool c, float[4, 64] s) => (bool d, float[4, 64] t) {
        d = Identity(c)
        a = MatMul(s, W)
        h = MatMul(s, V)
        m = Tanh(h)
        e = Add(a, m)
        t = Gemm<transB = 1, alpha = 0.5>(e, U, B)
    }>
    y = If(c)<
        then_branch = p () => (float[4, 64] q) { q = MatMul(last, W) },
        else_branch = n () => (float[4, 64] r) { r = MatMul(last, V) }
    >
}"""


def in_a_loop(path: Path) -> Path:
    """Write a model with layers in a Loop and in both branches of an If, one of which is the branch's only node."""
    text = IN_A_LOOP.replace("(float[4, 64] x)", "(float[4, 64] x, bool c)")
    weights = {name: 0.1 * numbers(64, 64, seed=seed) for seed, name in enumerate("WVU")}
    return parsed(path, text, **weights, B=numbers(64), three=np.array(3), yes=np.array(True))


def test_dynamic_quantization_reaches_bodies(tmp_path: Path) -> None:
    source = in_a_loop(tmp_path / "m.onnx")
    result, notes = quantized(source, tmp_path / "q", mode="dynamic")
    assert "body" not in notes
    assert result.stat().st_size < 0.5 * source.stat().st_size
    for condition in (True, False):
        feeds = {"x": np.tile(X, 8), "c": np.array(condition)}
        assert max(errors(source, result, feeds).values()) < 0.03
    model = onnx.load(result)
    assert [value.name for value in model.graph.input] == ["x", "c"]
    assert [output.name for output in model.graph.output] == ["y"]
    nodes = {node.op_type: node for node in model.graph.node}
    for node, count in (("Loop", 3), ("If", 1)):
        for body in (attribute.g for attribute in nodes[node].attribute):
            types = [node.op_type for node in body.node]
            assert types.count("MatMulInteger") == count
            assert types.count("MatMul") == types.count("Gemm") == 0
            assert types.count("Identity") == (node == "Loop")  # the condition's
            assert types.count("DynamicQuantizeLinear") == (2 if node == "Loop" else 1)  # `s` once


def test_static_quantization_says_that_bodies_stay_and_share_their_integers(tmp_path: Path) -> None:
    source = in_a_loop(tmp_path / "m.onnx")
    result, notes = quantized(source, tmp_path / "q", {"x": SIGNED["x"] | {"shape": [4, 64]}, "c": {"data": 1}})
    assert "5 layers not quantized (body)" in notes
    assert "1 weight stored in integers" in notes
    assert result.stat().st_size < source.stat().st_size
    for condition in (True, False):
        assert max(errors(source, result, {"x": np.tile(X, 8), "c": np.array(condition)}).values()) < 0.05


def test_a_half_precision_model_and_nested_bodies_are_reached_too(tmp_path: Path) -> None:
    text = """g (float16[4, 64] x, bool c) => (float16[4, 64] y) {
        y = If(c)<
            then_branch = p () => (float16[4, 64] q) {
                q = If(c)<
                    then_branch = k () => (float16[4, 64] l) { l = MatMul(x, W) },
                    else_branch = m () => (float16[4, 64] n) { n = Neg(x) }
                >
            },
            else_branch = s () => (float16[4, 64] r) { u = Relu(x) v = MatMul(u, W) r = Add(v, u) }
        >
    }"""
    source = parsed(tmp_path / "m.onnx", text, W=(0.1 * numbers(64, 64)).astype(np.float16))
    result, notes = quantized(source, tmp_path / "q", mode="dynamic")
    assert result.stat().st_size < source.stat().st_size, notes
    for condition in (True, False):
        feeds = {"x": np.tile(X, 8).astype(np.float16), "c": np.array(condition)}
        assert max(errors(source, result, feeds).values()) < 0.03


def test_what_a_body_reads_of_a_quantized_table_is_computed(tmp_path: Path) -> None:
    text = """g (int64[n] x, bool c) => (float[n, 64] y) {
        e = Gather(T, x)
        y = If(c)<
            then_branch = p () => (float[n, 64] q) { q = Neg(e) },
            else_branch = s () => (float[n, 64] r) { f = Gather(T, x) r = MatMul(f, W) }
        >
    }"""
    source = parsed(tmp_path / "m.onnx", text, T=numbers(100, 64), W=numbers(64, 64))
    result, _ = quantized(source, tmp_path / "q", mode="dynamic")
    for condition in (True, False):
        feeds = {"x": np.array([1, 2]), "c": np.array(condition)}
        assert max(errors(source, result, feeds).values()) < 0.03
