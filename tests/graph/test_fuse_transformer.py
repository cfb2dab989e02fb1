"""ONNX Runtime's fusions of transformers as an operation."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from ndld_flow.base.errors import RequestError
from ndld_flow.graph.edit import transformer_fusions
from ndld_flow.graph.edit.edit_file import Entry, edit_file
from ndld_flow.graph.edit.edited_model import EditedModel
from ndld_flow.graph.edit.operations.transformations import FuseTransformer
from ndld_flow.models.files import load_model
from ndld_flow.processes.launch import run_worker_module
from tests.support.message_files import CheckMessage
from tests.support.surgery_checks import assert_same, numbers, op_types, operate, outputs_of, parsed

_LAYER = """
    q0 = MatMul (x, wq)  q1 = Add (bq, q0)  q2 = Reshape (q1, heads)  q = Transpose <perm = [0, 2, 1, 3]> (q2)
    k0 = MatMul (x, wk)  k1 = Add (bk, k0)  k2 = Reshape (k1, heads)  k = Transpose <perm = [0, 2, 3, 1]> (k2)
    v0 = MatMul (x, wv)  v1 = Add (bv, v0)  v2 = Reshape (v1, heads)  v = Transpose <perm = [0, 2, 1, 3]> (v2)
    s0 = MatMul (q, k)
    s1 = Div (s0, root)
    p = Softmax <axis = 3> (s1)
    c0 = MatMul (p, v)
    c1 = Transpose <perm = [0, 2, 1, 3]> (c0)
    c2 = Reshape (c1, joined)
    c3 = MatMul (c2, wo)
    c4 = Add (bo, c3)
    a = Add (c4, x)
    m = ReduceMean <axes = [-1]> (a)
    d = Sub (a, m)
    d2 = Pow (d, two)
    var = ReduceMean <axes = [-1]> (d2)
    ve = Add (var, epsilon)
    sd = Sqrt (ve)
    n = Div (d, sd)
    ns = Mul (n, gamma)
    l = Add (ns, beta)
    f0 = MatMul (l, w1)
    f1 = Add (b1, f0)
    g0 = Div (f1, root2)
    g1 = Erf (g0)
    g2 = Add (g1, one)
    g3 = Mul (f1, g2)
    y = Mul (g3, half)
"""


def encoder(opset: int = 17) -> onnx.ModelProto:
    """A layer of a transformer as torch exports it: attention of 2 heads, LayerNormalization, Gelu."""
    weights: dict[str, Any] = {f"w{name}": numbers(8, 8, seed=seed) for seed, name in enumerate("qkvo1")}
    weights |= {f"b{name}": numbers(8, seed=seed) for seed, name in enumerate("qkvo1", 10)}
    return parsed(
        f"""<ir_version: 8, opset_import: ["": {opset}], producer_name: "pytorch">
        g (float[N, S, 8] x) => (float[N, S, 8] y)
        <int64[4] heads = {{0, 0, 2, 4}}, int64[3] joined = {{0, 0, 8}}, float root = {{2.0}}, float two = {{2.0}},
         float epsilon = {{0.00001}}, float root2 = {{1.4142135}}, float one = {{1.0}}, float half = {{0.5}}> {{
            {_LAYER}
        }}""",
        gamma=numbers(8, seed=20),
        beta=numbers(8, seed=21),
        **weights,
    )


def test_a_layer_becomes_fused_operators(capfd: pytest.CaptureFixture[str]) -> None:
    model = encoder()
    fused, _ = operate(model, FuseTransformer(model_type="vit", num_heads=2, hidden_size=8))
    assert op_types(fused) == ["Attention", "MatMul", "SkipLayerNormalization", "MatMul", "BiasGelu"]
    assert fused.producer_name == "pytorch"
    x = numbers(2, 5, 8)
    assert_same(outputs_of(model, {"x": x}), outputs_of(fused, {"x": x}), 1e-4)
    assert capfd.readouterr() == ("", "")


def test_only_requested_fusions_are_applied() -> None:
    model = encoder()
    fused, _ = operate(model, FuseTransformer(model_type="bert", fusions=("layer_norm",)))
    assert "LayerNormalization" in op_types(fused)
    assert {node.domain for node in fused.graph.node} == {""}
    fused, _ = operate(model, FuseTransformer(model_type="bert", without=("attention", "layer_norm", "bias_gelu")))
    assert "Gelu" in op_types(fused)
    assert "Softmax" in op_types(fused)
    x = numbers(2, 5, 8)
    assert_same(outputs_of(model, {"x": x}), outputs_of(fused, {"x": x}), 1e-4)


@pytest.mark.thorough
def test_nothing_fused_is_an_error_unless_allowed(check_message: CheckMessage) -> None:
    model = parsed('<ir_version: 8, opset_import: ["": 17]> g (float[N] x) => (float[N] y) { y = Relu (x) }')
    with pytest.raises(RequestError) as caught:
        operate(model, FuseTransformer(model_type="bert"))
    check_message(caught.value)
    same, _ = operate(model, FuseTransformer(model_type="bert", allow_empty=True))
    assert op_types(same) == ["Relu"]
    assert same.producer_name == ""


def rms_norm(opset: int) -> onnx.ModelProto:
    """RMSNorm as a language model's builder writes it, with x * x as the square, and another mean of squares."""
    return parsed(
        f"""<ir_version: 8, opset_import: ["": {opset}]>
        g (float[N, 8] x) => (float[N, 8] y, float[N, 1] energy)
        <float epsilon = {{0.000001}}, float one = {{1.0}}, int64[1] last = {{-1}}> {{
            s = Mul (x, x)  m = ReduceMean <keepdims = 1> (s, last)  e = Add (m, epsilon)  r = Sqrt (e)
            i = Div (one, r)  n = Mul (x, i)  l = Mul (n, gamma)
            y = MatMul (l, w)
            s2 = Mul (y, y)
            energy = ReduceMean <keepdims = 1> (s2, last)
        }}""",
        gamma=numbers(8, seed=1),
        w=numbers(8, 8, seed=2),
    )


def test_an_rms_norm_is_fused_and_other_squares_stay() -> None:
    """ONNX Runtime's fusion raises a TypeError for x * x."""
    model = rms_norm(23)
    fused, _ = operate(model, FuseTransformer(model_type="bert"))
    assert op_types(fused) == ["RMSNormalization", "MatMul", "Mul", "ReduceMean"]
    assert {tensor.name for tensor in fused.graph.initializer} == {"gamma", "w", "last"}
    x = numbers(2, 8)
    assert_same(outputs_of(model, {"x": x}), outputs_of(fused, {"x": x}), 1e-5)


def test_an_rms_norm_before_opset_23_becomes_an_operator_of_onnx_runtime(tmp_path: Path) -> None:
    source, target = tmp_path / "source.onnx", tmp_path / "target.onnx"
    onnx.save(rms_norm(18), source)
    edited = EditedModel(model=load_model(source), path=source)
    edit_file(edited, [Entry("operations[0]", FuseTransformer(model_type="bert"))], target)
    fused, x = onnx.load(target), numbers(2, 8)
    assert op_types(fused)[0] == "SimplifiedLayerNormalization"
    assert_same(outputs_of(onnx.load(source), {"x": x}), outputs_of(fused, {"x": x}), 1e-5)


def test_layer_normalization_before_opset_17_is_reported(check_message: CheckMessage) -> None:
    model = encoder(13)
    with pytest.raises(RequestError) as caught:
        operate(model, FuseTransformer(model_type="bert", fusions=("layer_norm",)))
    check_message(caught.value)


@pytest.mark.thorough
def test_external_weights_stay_external(tmp_path: Path) -> None:
    source, target = tmp_path / "source.onnx", tmp_path / "target.onnx"
    onnx.save(
        encoder(),
        source,
        save_as_external_data=True,
        location="source.data",
        size_threshold=0,
        all_tensors_to_one_file=True,
    )
    edited = EditedModel(model=load_model(source), path=source)
    edit_file(edited, [Entry("operations[0]", FuseTransformer(model_type="bert", fusions=("gelu",)))], target)
    kept = {
        name
        for name, value in edited.model.graph.initializers.items()
        if isinstance(value.const_value, ir.ExternalTensor)
    }
    assert {"wq", "wk", "wv", "wo", "w1", "gamma"} <= kept
    x = numbers(2, 5, 8)
    assert_same(outputs_of(onnx.load(source), {"x": x}), outputs_of(onnx.load(target), {"x": x}), 1e-4)


def test_sparse_and_large_weights_are_reported(monkeypatch: pytest.MonkeyPatch, check_message: CheckMessage) -> None:
    from ndld_flow.graph.edit import transformer_fusions

    monkeypatch.setattr(transformer_fusions, "INLINE_LIMIT_BYTES", 100)
    with pytest.raises(RequestError) as caught:
        operate(encoder(), FuseTransformer(model_type="bert"))
    check_message(caught.value)
    model = parsed('<ir_version: 8, opset_import: ["": 17]> g (float[3] x) => (float[3] y) { y = Add (x, w) }')
    values = onnx.numpy_helper.from_array(np.ones(1, np.float32), "w")
    model.graph.sparse_initializer.append(
        onnx.helper.make_sparse_tensor(values, onnx.numpy_helper.from_array(np.array([1])), [3])
    )
    with pytest.raises(RequestError) as caught:
        operate(model, FuseTransformer(model_type="bert"))
    check_message(caught.value)


def test_an_error_of_the_library_is_left_for_the_parent_process(tmp_path: Path) -> None:
    (tmp_path / transformer_fusions.JOB).write_text("{}")
    run_worker_module(transformer_fusions.__name__, tmp_path, lambda *_: None)
    assert (tmp_path / transformer_fusions.ERROR).read_text().startswith("KeyError: ")
