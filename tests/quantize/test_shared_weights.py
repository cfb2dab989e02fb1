"""Weights that several nodes read, in bodies and outside: the file gets no larger and stays right."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import numpy_helper

from ndld_flow.records.measurement import NOT_SMALLER
from ndld_flow.steps.quantize import Quantize
from tests.support.models_run import Ran, run_step, write_model

Array = np.ndarray[Any, Any]
LOOP = """<body = l (int64 i, bool c, float[4, 200] s, float[200, 200] w) =>
    (bool d, float[4, 200] t, float[200, 200] v) {
    d = Identity(c) m = MatMul(s, w) t = Tanh(m) v = Identity(w)
}>"""
CASES = {
    "a state of a Loop": f"a = MatMul(x, W)  y, u = Loop(three, yes, a, W){LOOP}",
    "a transposed state of a Loop": f"T = Transpose(W)  a = MatMul(x, T)  y, u = Loop(three, yes, a, T){LOOP}",
    "a state of a Loop that is read after it": f"b, u = Loop(three, yes, x, W){LOOP}  y = MatMul(b, u)",
    "a state of a Loop in a Loop": """a = MatMul(x, W)
        y, u = Loop(three, yes, a, W)<body =
            o (int64 k, bool e, float[4, 200] p, float[200, 200] q) => (bool f, float[4, 200] g, float[200, 200] r) {
                f = Identity(e)  r = Identity(q)  g, z = Loop(three, yes, p, q)"""
    + LOOP
    + "}>",
    "a state of a Scan": """a = MatMul(x, W)
        u, y = Scan<num_scan_inputs = 1,
            body = l (float[200, 200] w, float[200] s) => (float[200, 200] v, float[200] t) {
                v = Identity(w)  m = MatMul(s, w)  t = Tanh(m)
            }>(W, a)""",
    "the body of a Loop": """a = MatMul(x, W)
        y = Loop(three, yes, a)<body = l (int64 i, bool c, float[4, 200] s) => (bool d, float[4, 200] t) {
            d = Identity(c)  w = Transpose(W)  m = MatMul(s, w)  t = Tanh(m)
        }>""",
    "branches of an If": """a = MatMul(x, W)  w = Identity(W)
        y = If(yes)<
            then_branch = p () => (float[4, 200] q) { q = MatMul(a, w) },
            else_branch = n () => (float[4, 200] r) { v = Neg(W) r = MatMul(a, v) }
        >""",
    "a sum": "a = MatMul(x, W)  b = ReduceSum<keepdims = 0>(W)  y = Add(a, b)",
    "both orientations": "a = MatMul(x, W)  T = Transpose(W)  b = MatMul(a, T)  c = Neg(T)  y = MatMul(b, c)",
    "factors": "a = Gemm<alpha = 0.5>(x, W)  b = Neg(W)  y = MatMul(a, b)",
    "a table": "e = Gather(W, ids)  T = Transpose(W)  a = Add(e, x)  y = MatMul(a, T)",
}
MODES: dict[str, dict[str, Any]] = {
    "static": {"min_intensity": 0, "samples": 8},
    "dynamic": {"mode": "dynamic"},
    "tensorrt": {"target": "tensorrt", "samples": 8},
    "weight_only": {"mode": "weight_only", "weights": "int8"},
}
X = np.random.default_rng(3).uniform(-1, 1, (4, 200)).astype(np.float32)


def write(case: str, path: Path) -> Path:
    write_model(path, f"g (float[4, 200] x) => (float[4, 200] y) {{ {CASES[case]} }}")
    model = onnx.load(path)
    weights = {
        "W": np.random.default_rng(1).normal(0, 0.06, (200, 200)).astype(np.float32),
        "three": np.array(3),
        "yes": np.array(True),
        "ids": np.array([1, 7, 20, 33]),
    }
    model.graph.initializer.extend(numpy_helper.from_array(value, name) for name, value in weights.items())
    for node in model.graph.node:
        node.name = f"{node.op_type}_{node.output[0]}"
    onnx.save(model, path)
    return path


def quantize(source: Path, folder: Path, **settings: Any) -> Ran:
    given = {"x": {"shape": [4, 200], "range": [-1.0, 1.0]}}
    return run_step(Quantize, source, folder, {"allow_empty": True, **settings}, given)


def computed(path: Path, **others: Array) -> Array:
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    [y] = ort.InferenceSession(path, options, providers=["CPUExecutionProvider"]).run(None, {"x": X, **others})
    return np.asarray(y)


def float_bytes(path: Path) -> int:
    """Return the bytes of all weights in floats, in bodies too."""
    total, graphs = 0, [onnx.load(path).graph]
    while graphs:
        graph = graphs.pop()
        total += sum(
            4 * math.prod(initializer.dims)
            for initializer in graph.initializer
            if initializer.data_type == onnx.TensorProto.FLOAT
        )
        graphs += [attribute.g for node in graph.node for attribute in node.attribute if attribute.HasField("g")]
    return total


@pytest.mark.representatives("a state of a Loop-dynamic", "a state of a Loop-static", "a table-static")
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("case", CASES)
def test_no_file_becomes_larger(case: str, mode: str, tmp_path: Path) -> None:
    source = write(case, tmp_path / "m.onnx")
    step = quantize(source, tmp_path / "q", **MODES[mode])
    result = step.out / "model.onnx"
    small = 20_000  # scales and nodes, where nothing was quantized
    assert result.stat().st_size < source.stat().st_size + small
    right = computed(source)
    assert np.linalg.norm(computed(result) - right) < 0.08 * np.linalg.norm(right)
    assert step.result.change is not None
    if mode == "dynamic" and case != "factors":
        assert float_bytes(result) < small
    if mode in ("static", "tensorrt") and case not in ("factors", "a table"):
        assert float_bytes(result) < small
        assert not [note for note in step.result.change.notes if NOT_SMALLER in note]


def test_a_layer_that_is_excluded_keeps_its_weight(tmp_path: Path) -> None:
    source = write("both orientations", tmp_path / "m.onnx")
    step = quantize(source, tmp_path / "q", **MODES["static"], exclude={"nodes": ["MatMul_b", "MatMul_y"]})
    assert step.result.change is not None
    assert [note for note in step.result.change.notes if "(shared weight)" in note]
    assert float_bytes(step.out / "model.onnx") >= 160_000
    np.testing.assert_array_equal(computed(step.out / "model.onnx"), computed(source))


def test_constants_of_two_bodies_with_one_name_stay_apart(tmp_path: Path) -> None:
    text = """g (float[4, 200] x, bool c) => (float[4, 200] y) {
        a = MatMul(x, W)
        y = If(c)<
            then_branch = p () => (float[4, 200] q) { q = MatMul(a, V) },
            else_branch = n () => (float[4, 200] r) { r = MatMul(a, V) }
        >
    }"""
    model = onnx.load(write_model(tmp_path / "m.onnx", text))
    random = np.random.default_rng(2)
    body = [attribute.g for attribute in model.graph.node[-1].attribute]
    for graph, name in ((model.graph, "W"), (body[0], "V"), (body[1], "V")):
        values = random.normal(0, 0.06, (200, 200)).astype(np.float32)
        graph.initializer.append(numpy_helper.from_array(values, name))
    onnx.save(model, tmp_path / "m.onnx")
    given: dict[str, dict[str, Any]] = {"x": {"shape": [4, 200], "range": [-1.0, 1.0]}, "c": {"data": 1}}
    ran = run_step(Quantize, tmp_path / "m.onnx", tmp_path / "q", MODES["static"], given)
    for condition in (True, False):
        right, result = (
            computed(path, c=np.array(condition)) for path in (tmp_path / "m.onnx", ran.out / "model.onnx")
        )
        assert np.linalg.norm(result - right) < 0.08 * np.linalg.norm(right)
