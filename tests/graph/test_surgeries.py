"""Named rewrites: Gemm, decompositions, Erf, no-ops and dynamic batches."""

from __future__ import annotations

import itertools
import re
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from ndld_flow.base.errors import RequestError
from ndld_flow.graph.edit.edit_file import Entry, edit_file
from ndld_flow.graph.edit.edited_model import EditedModel
from ndld_flow.graph.edit.operation import Operation
from ndld_flow.graph.edit.operations.nodes import RemoveNoops
from ndld_flow.graph.edit.operations.shapes import MakeBatchDynamic
from ndld_flow.graph.edit.operations.transformations import Decompose, FuseGemm, ReplaceErf
from ndld_flow.graph.edit.settings import NodeSelect
from ndld_flow.inputs import InputSpec
from ndld_flow.models.files import load_model
from tests.support.message_files import CheckMessage
from tests.support.surgery_checks import assert_same, numbers, op_types, operate, outputs_of, parsed

SPLIT_GEMM = Decompose(select=NodeSelect(op_type=("Gemm",)))


def _gemm(trans_a: int, trans_b: int, attributes: str = "", bias: str = ", c", opset: int = 17) -> onnx.ModelProto:
    a = "4, N" if trans_a else "N, 4"
    weights: dict[str, Any] = {"w": numbers(3, 4) if trans_b else numbers(4, 3), "c": numbers(3, seed=1)}
    if not bias:
        del weights["c"]
    return parsed(
        f"""<ir_version: 8, opset_import: ["": {opset}]>
        g (float[{a}] x) => (float[N, 3] y) {{
            y = Gemm <transA = {trans_a}, transB = {trans_b}{attributes}> (x, w{bias})
        }}""",
        **weights,
    )


@pytest.mark.representatives("--1-0", "--1-1", "-, beta = 2.0-1-0")
@pytest.mark.parametrize(("trans_a", "trans_b"), list(itertools.product((0, 1), (0, 1))))
@pytest.mark.parametrize("attributes", ["", ", alpha = 0.5", ", beta = 2.0", ", alpha = 0.5, beta = 0.0"])
@pytest.mark.parametrize("bias", [", c", ""])
def test_a_gemm_becomes_matmul_and_add(trans_a: int, trans_b: int, attributes: str, bias: str) -> None:
    model = _gemm(trans_a, trans_b, attributes, bias)
    split, _ = operate(model, SPLIT_GEMM)
    assert "Gemm" not in op_types(split)
    feeds = {"x": numbers(4, 5) if trans_a else numbers(5, 4)}
    assert_same(outputs_of(model, feeds), outputs_of(split, feeds), 1e-6)


def test_a_constant_factor_is_transposed_ahead_of_time() -> None:
    split, _ = operate(_gemm(0, 1), SPLIT_GEMM)
    assert op_types(split) == ["MatMul", "Add"]
    assert sorted(tuple(tensor.dims) for tensor in split.graph.initializer) == [(3,), (4, 3)]


def test_a_bias_without_effect_is_removed() -> None:
    split, _ = operate(_gemm(0, 1, ", beta = 0.0", ", c"), SPLIT_GEMM)
    assert op_types(split) == ["MatMul"]
    assert [tuple(tensor.dims) for tensor in split.graph.initializer] == [(4, 3)]


def test_a_shared_factor_of_gemms_is_transposed_once() -> None:
    model = parsed(
        """<ir_version: 8, opset_import: ["": 17]>
        g (float[N, 4] x) => (float[N, 4] y) { a = Gemm <transB = 1> (x, w) y = Gemm <transB = 1> (a, w) }""",
        w=numbers(4, 4),
    )
    split, _ = operate(model, SPLIT_GEMM)
    assert [tensor.name for tensor in split.graph.initializer] == ["w_transposed"]
    assert_same(outputs_of(model, {"x": numbers(5, 4)}), outputs_of(split, {"x": numbers(5, 4)}), 1e-6)


@pytest.mark.parametrize(
    ("op_type", "operation"),
    [
        ("Erf", ReplaceErf(by="tanh")),
        ("HardSwish", Decompose.model_validate({"select": {"op_type": "HardSwish"}})),
        ("Gemm", SPLIT_GEMM),
    ],
)
def test_a_tensor_that_is_two_outputs_stays_both(op_type: str, operation: Operation) -> None:
    inputs = "x, x" if op_type == "Gemm" else "x"
    model = parsed(
        f"""<ir_version: 8, opset_import: ["": 17]>
        g (float[4, 4] x) => (float[4, 4] y, float[4, 4] y) {{ y = {op_type} ({inputs}) }}"""
    )
    replaced, _ = operate(model, operation)
    assert op_type not in op_types(replaced)
    assert [value.name for value in replaced.graph.output] == ["y", "y"]
    assert_same(outputs_of(model, {"x": numbers(4, 4)}), outputs_of(replaced, {"x": numbers(4, 4)}), 1e-3)


@pytest.mark.representatives("11", "20")
@pytest.mark.parametrize("opset", [7, 8, 11, 13, 20, 22])
def test_gemms_are_split_at_every_opset_and_fused_again(opset: int) -> None:
    model = _gemm(0, 1, opset=opset)
    split, _ = operate(model, SPLIT_GEMM)
    again, _ = operate(split, FuseGemm())
    assert op_types(again) == ["Gemm"]
    feeds = {"x": numbers(5, 4)}
    for other in (split, again):
        assert_same(outputs_of(model, feeds), outputs_of(other, feeds), 1e-6)


def test_gemm_of_an_opset_without_broadcasting_is_refused(check_message: CheckMessage) -> None:
    with pytest.raises(RequestError) as caught:
        operate(_gemm(0, 0, opset=6), SPLIT_GEMM)
    check_message(caught.value)


def test_no_gemm_is_an_error_unless_allowed(check_message: CheckMessage) -> None:
    model = parsed('<ir_version: 8, opset_import: ["": 17]> g (float[N] x) => (float[N] y) { y = Relu (x) }')
    with pytest.raises(RequestError) as caught:
        operate(model, SPLIT_GEMM)
    check_message(caught.value)
    with pytest.raises(RequestError) as caught:
        operate(model, FuseGemm())
    check_message(caught.value)
    same, _ = operate(
        model, Decompose(select=NodeSelect(op_type=("Gemm",)), allow_empty=True), FuseGemm(allow_empty=True)
    )
    assert op_types(same) == ["Relu"]


_NOISE = """<ir_version: 8, opset_import: ["": 17]>
g (float[2, 3] x) => (float[2, 3] y) <int64[2] shape = {2, 3}, float one = {1.0}> {
    a = Identity (x)
    b = Dropout (a)
    c = Cast <to = 1> (b)
    d = Reshape (c, shape)
    e = Transpose <perm = [0, 1]> (d)
    f = Concat <axis = 0> (e)
    h = Mul (f, one)
    i = Relu (h)
    y = Identity (i)
}"""


def test_nodes_without_effect_are_removed() -> None:
    model = parsed(_NOISE)
    bare, _ = operate(model, RemoveNoops())
    assert op_types(bare) == ["Relu"]
    assert [value.name for value in bare.graph.output] == ["y"]
    feeds = {"x": numbers(2, 3)}
    assert_same(outputs_of(model, feeds), outputs_of(bare, feeds))


def test_only_the_requested_kinds_are_removed() -> None:
    bare, _ = operate(parsed(_NOISE), RemoveNoops(kinds=("dropout", "cast")))
    assert op_types(bare) == ["Identity", "Reshape", "Transpose", "Concat", "Mul", "Relu", "Identity"]
    same, notes = operate(parsed(_NOISE), RemoveNoops(kinds=("pad",)))
    assert op_types(same) == op_types(parsed(_NOISE))
    (note,) = notes
    assert "kinds pad" in note


def test_noops_in_branches_and_functions_are_removed() -> None:
    model = parsed(
        """<ir_version: 9, opset_import: ["": 17, "local": 1]>
        g (bool c, float[N] x) => (float[N] y) {
            a = If (c) <
                then_branch = t () => (float[N] p) { q = Identity (x)  p = Relu (q) },
                else_branch = e () => (float[N] r) { s = Dropout (x)  r = Neg (s) }
            >
            y = local.Twice (a)
        }
        <opset_import: ["": 17], domain: "local">
        Twice (v) => (w) { i = Identity (v)  w = Add (i, i) }"""
    )
    bare, _ = operate(model, RemoveNoops())
    text = onnx.printer.to_text(bare)
    assert "Identity" not in text
    assert "Dropout" not in text
    for condition in (True, False):
        feeds = {"c": np.array(condition), "x": numbers(4)}
        assert_same(outputs_of(model, feeds), outputs_of(bare, feeds))


def _unary(op_type: str, opset: int, shape: str, attributes: str = "", inputs: str = "x", **weights: Any) -> Any:
    return parsed(
        f"""<ir_version: 10, opset_import: ["": {opset}]>
        g ({shape} x) => ({shape} y) {{ y = {op_type} {attributes} ({inputs}) }}""",
        **weights,
    )


def test_wrong_value_info_is_not_trusted(tmp_path: Path) -> None:
    model = parsed(
        """<ir_version: 8, opset_import: ["": 17]>
        g (float[2, 3] x) => (float[2] y) <int64[2] shape = {3, 2}, float[2, 3] t> {
            t = Reshape (x, shape)
            y = ReduceSum <keepdims = 0> (t, axis)
        }""",
        axis=np.array([0]),
    )
    assert model.graph.value_info[0].name == "t"
    onnx.save(model, tmp_path / "model.onnx")
    edited = EditedModel(model=load_model(tmp_path / "model.onnx"), path=tmp_path / "model.onnx")
    RemoveNoops().apply(edited)
    assert [node.op_type for node in edited.model.graph] == ["Reshape", "ReduceSum"]
    (note,) = edited.notes
    assert "no node" in note


def test_weights_on_disk_are_transposed_when_they_are_written(tmp_path: Path) -> None:
    model = _gemm(0, 1)
    source, target = tmp_path / "source.onnx", tmp_path / "target.onnx"
    onnx.save(
        onnx.ModelProto.FromString(model.SerializeToString()), source, save_as_external_data=True, size_threshold=0
    )
    edited = EditedModel(model=load_model(source), path=source)
    edit_file(edited, [Entry("operations[0]", SPLIT_GEMM)], target)
    assert (tmp_path / "target.onnx.data").exists()
    feeds = {"x": numbers(5, 4)}
    assert_same(outputs_of(model, feeds), outputs_of(onnx.load(target), feeds), 1e-6)


def test_a_decomposition_leaves_no_unused_node() -> None:
    model = _unary("LayerNormalization", 17, "float[N, 6]", "<axis = 1>", "x, s", s=numbers(6))
    written, _ = operate(model, Decompose(select=NodeSelect(op_type=("LayerNormalization",))))
    read = {name for node in written.graph.node for name in node.input} | {"y"}
    assert all(read & set(node.output) for node in written.graph.node)


_WHOLE = {
    "LayerNormalization": (17, "float[N, 4, 6]", "<axis = -1, epsilon = 0.01>", {"s": numbers(6), "b": numbers(6)}),
    "GroupNormalization": (21, "float[2, 4, 6]", "<num_groups = 2>", {"s": numbers(4), "b": numbers(4)}),
    "Gelu": (20, "float[N, 6]", '<approximate = "tanh">', {}),
    "HardSwish": (14, "float[N, 6]", "", {}),
    "Softmax": (13, "float[N, 6]", "<axis = 1>", {}),
    "Clip": (13, "float[N, 6]", "", {"low": np.array(-0.5, np.float32), "high": np.array(0.5, np.float32)}),
    "Elu": (18, "float[N, 6]", "<alpha = 0.5>", {}),
    "LeakyRelu": (16, "float[N, 6]", "", {}),
    "RMSNormalization": (23, "float[N, 6]", "", {"s": numbers(6)}),
    "MeanVarianceNormalization": (13, "float[2, 4, 6, 6]", "", {}),
}


@pytest.mark.representatives("float-22-Gelu", "float-13-Gelu", "float-17-Clip")
@pytest.mark.parametrize("op_type", sorted(_WHOLE))
@pytest.mark.parametrize("opset", [13, 17, 20, 22, 24])
@pytest.mark.parametrize("dtype", ["float", "float16"])
def test_operators_are_decomposed(op_type: str, opset: int, dtype: str) -> None:
    first, shape, attributes, weights = _WHOLE[op_type]
    half = dtype == "float16"
    if opset < first or (half and op_type == "MeanVarianceNormalization"):  # ONNX defines that one for floats only
        return
    kind = np.float16 if half else np.float32
    cast = {name: array.astype(kind) for name, array in weights.items()}
    model = _unary(op_type, opset, shape.replace("float", dtype), attributes, ", ".join(("x", *cast)), **cast)
    written, _ = operate(model, Decompose(select=NodeSelect(op_type=(op_type,))))
    assert op_type not in op_types(written)
    x = numbers(*(3 if dim == "N" else int(dim) for dim in shape[6:-1].split(", "))).astype(kind)
    assert_same(outputs_of(model, {"x": x}), outputs_of(written, {"x": x}), 2e-2 if half else 1e-5)
    for node in written.graph.node:
        assert node.name.isidentifier()
        assert all(name.isidentifier() for name in node.output)


def test_a_definition_for_other_dtypes_is_refused(check_message: CheckMessage) -> None:
    model = _unary("MeanVarianceNormalization", 13, "float16[2, 4, 6, 6]")
    with pytest.raises(RequestError) as caught:
        operate(model, Decompose(select=NodeSelect(name=("*",))))
    check_message(caught.value)


def test_attention_is_decomposed() -> None:
    model = parsed(
        """<ir_version: 11, opset_import: ["": 23]>
        g (float[2, 4, 5, 8] q, float[2, 4, 5, 8] k, float[2, 4, 5, 8] v) => (float[2, 4, 5, 8] y) {
            y = Attention <is_causal = 1> (q, k, v)
        }"""
    )
    written, _ = operate(model, Decompose(select=NodeSelect(op_type=("Attention",))))
    assert "Attention" not in op_types(written)
    feeds = {name: numbers(2, 4, 5, 8, seed=seed) for seed, name in enumerate("qkv")}
    assert_same(outputs_of(model, feeds), outputs_of(written, feeds), 1e-5)


def test_the_opset_that_defines_an_operator_is_reported(check_message: CheckMessage) -> None:
    model = parsed('<ir_version: 8, opset_import: ["": 12]> g (float[2] x) => (float[2] y) { y = Elu (x) }')
    with pytest.raises(RequestError) as caught:
        operate(model, Decompose(select=NodeSelect(op_type=("Elu",))))
    check_message(caught.value)


def test_operators_without_a_definition_are_reported_with_the_supported_ones(check_message: CheckMessage) -> None:
    model = parsed(
        """<ir_version: 8, opset_import: ["": 17]>
        g (float[1, 3, 8, 8] x) => (float[1, 3, 1, 1] y) { y = GlobalAveragePool (x) }"""
    )
    with pytest.raises(RequestError) as caught:
        operate(model, Decompose(select=NodeSelect(name=("*",))))
    check_message(caught.value)


def test_nodes_in_branches_and_functions_are_decomposed() -> None:
    model = parsed(
        """<ir_version: 9, opset_import: ["": 17, "local": 1]>
        g (bool c, float[N, 6] x) => (float[N, 6] y) {
            a = If (c) <
                then_branch = t () => (float[N, 6] p) { p = HardSwish (x) },
                else_branch = e () => (float[N, 6] r) { r = LayerNormalization <axis = 1> (x, s) }
            >
            y = local.Swish (a)
        }
        <opset_import: ["": 17], domain: "local">
        Swish (v) => (w) { w = HardSwish (v) }""",
        s=numbers(6),
    )
    written, _ = operate(model, Decompose(select=NodeSelect(op_type=("HardSwish", "LayerNormalization"))))
    assert "HardSwish (" not in onnx.printer.to_text(written)
    assert "LayerNormalization <" not in onnx.printer.to_text(written)
    for condition in (True, False):
        feeds = {"c": np.array(condition), "x": numbers(4, 6)}
        assert_same(outputs_of(model, feeds), outputs_of(written, feeds), 1e-5)


@pytest.mark.representatives("20-tanh-0.00036-3.6e-04", "13-tanh-0.00036-3.6e-04", "17-tanh-0.00036-3.6e-04")
@pytest.mark.parametrize(("by", "error", "message"), [("tanh", 3.6e-4, "3.6e-04"), ("polynomial", 6e-7, "1.5e-07")])
@pytest.mark.parametrize("opset", [9, 11, 13, 17, 20, 22])
def test_erf_is_replaced_by_a_formula(by: Any, error: float, message: str, opset: int) -> None:
    model = _unary("Erf", opset, "float[N]")
    replaced, notes = operate(model, ReplaceErf(by=by))
    assert "Erf" not in op_types(replaced)
    x = np.linspace(-6, 6, 100001, dtype=np.float32)
    [expected], [result] = outputs_of(model, {"x": x}), outputs_of(replaced, {"x": x})
    assert np.abs(expected - result).max() < error
    (note,) = notes
    assert note.startswith("1 Erf ") and f" {by} formula: " in note and note.endswith(f" {message}")


def test_erf_is_replaced_in_fp16() -> None:
    model = _unary("Erf", 17, "float16[N]")
    x = np.linspace(-4, 4, 1001).astype(np.float16)
    for by in ("tanh", "polynomial"):
        replaced, _ = operate(model, ReplaceErf(by=by))
        [expected], [result] = outputs_of(model, {"x": x}), outputs_of(replaced, {"x": x})
        assert np.abs(expected.astype(np.float32) - result).max() < 4e-3


def _by_items(fixed: onnx.ModelProto, free: onnx.ModelProto, feeds: dict[str, Any], tolerance: float = 1e-5) -> None:
    """A batch of three gives what the fixed model gives for each of its items."""
    together = outputs_of(free, feeds)
    for item in range(3):
        alone = outputs_of(fixed, {name: array[item : item + 1] for name, array in feeds.items()})
        assert_same(alone, [output[item : item + 1] for output in together], tolerance)
        assert_same(alone, outputs_of(free, {name: array[item : item + 1] for name, array in feeds.items()}))


_EXPORTED = """<ir_version: 8, opset_import: ["": {}]>
g (float[1, 3, 4, 4] x) => (float[1, 12] y, float[1, 5, 8] z)
<int64[2] flat = {{1, -1}}, int64[3] steps = {{1, 4, 8}}, int64[3] back = {{4, 1, 8}}, int64[2] rows = {{4, 8}},
 int64[2] lstm = {{4, 8}}> {{
    f = Reshape (x, flat)
    h = MatMul (f, w)
    r = Reshape (h, steps)
    t = Transpose <perm = [1, 0, 2]> (r)
    l, last = LSTM <hidden_size = 8> (t, lw, lr, , , h0, c0)
    l2 = Reshape (l, rows)
    l3 = MatMul (l2, w3)
    l4 = Reshape (l3, back)
    b = Transpose <perm = [1, 0, 2]> (l4)
    z = Concat <axis = 1> (token, b)
    q = Reshape (b, flat)
    y = MatMul (q, w2)
}}"""


@pytest.mark.representatives("8", "11")
@pytest.mark.parametrize("opset", [8, 11, 13, 17, 20, 22])
def test_a_fixed_batch_becomes_dynamic(opset: int) -> None:
    model = parsed(
        _EXPORTED.format(opset),
        w=numbers(48, 32),
        w2=numbers(32, 12, seed=1),
        w3=numbers(8, 8, seed=2),
        lw=numbers(1, 32, 8, seed=3),
        lr=numbers(1, 32, 8, seed=4),
        h0=numbers(1, 1, 8, seed=5),
        c0=numbers(1, 1, 8, seed=6),
        token=numbers(1, 1, 8, seed=7),
    )
    free, notes = operate(model, MakeBatchDynamic())
    assert notes == []
    for value in (*free.graph.input, *free.graph.output):
        assert value.type.tensor_type.shape.dim[0].dim_param == "batch"
    _by_items(model, free, {"x": numbers(3, 3, 4, 4)})


def test_attention_with_fixed_reshapes_gets_a_dynamic_batch() -> None:
    model = parsed(
        """<ir_version: 8, opset_import: ["": 17]>
        g (float[1, 5, 8] x) => (float[1, 5, 8] y)
        <int64[4] heads = {1, 5, 2, 4}, int64[3] joined = {1, 5, 8}, int64[3] folded = {2, 5, 4},
         int64[4] unfolded = {1, 2, 5, 4}> {
            q0 = MatMul (x, wq)  q1 = Reshape (q0, heads)  q2 = Transpose <perm = [0, 2, 1, 3]> (q1)
            k0 = MatMul (x, wk)  k1 = Reshape (k0, heads)  k2 = Transpose <perm = [0, 2, 1, 3]> (k1)
            q = Reshape (q2, folded)
            k3 = Reshape (k2, folded)
            k = Transpose <perm = [0, 2, 1]> (k3)
            s = MatMul (q, k)
            p = Softmax <axis = -1> (s)
            o = MatMul (p, k3)
            u = Reshape (o, unfolded)
            v = Transpose <perm = [0, 2, 1, 3]> (u)
            y = Reshape (v, joined)
        }""",
        wq=numbers(8, 8),
        wk=numbers(8, 8, seed=1),
    )
    free, _ = operate(model, MakeBatchDynamic(name="n"))
    assert free.graph.output[0].type.tensor_type.shape.dim[0].dim_param == "n"
    _by_items(model, free, {"x": numbers(3, 5, 8)})


def test_reshapes_to_one_item_follow_a_batch_that_is_dynamic_already() -> None:
    model = parsed(
        """<ir_version: 8, opset_import: ["": 17]>
        g (float[rows, 4] x) => (float[1, 2, 2] y) <int64[3] one = {1, 2, 2}> { r = Relu (x)  y = Reshape (r, one) }"""
    )
    free, _ = operate(model, MakeBatchDynamic(name="n"))
    _by_items(model, free, {"x": numbers(3, 4)})


def test_a_resize_with_dynamic_sides_gets_a_dynamic_batch() -> None:
    model = parsed(
        """<ir_version: 8, opset_import: ["": 17]>
        g (float[1, 3, H, W] x) => (float[1, 3, 64] y) <int64[4] sizes = {1, 3, 8, 8}, int64[3] flat = {1, 3, -1}> {
            r = Resize <mode = "nearest"> (x, , , sizes)
            y = Reshape (r, flat)
        }"""
    )
    free, _ = operate(model, MakeBatchDynamic())
    _by_items(model, free, {"x": numbers(3, 3, 4, 5)})


def test_only_expands_that_fix_the_batch_change() -> None:
    model = parsed(
        """<ir_version: 8, opset_import: ["": 17]>
        g (float[2, 1, 3] x, int64[3] target) => (float[2, 4, 3] y, float[A, B, C] z)
        <float[1, 3] row = {1, 2, 3}, int64[2] rows = {4, 3}, int64[3] shape = {2, 4, 3}> {
            [fixed] a = Expand (x, shape)
            negated = Neg (row)
            [constant] b = Expand (negated, rows)
            y = Add (a, b)
            [given] z = Expand (x, target)
        }"""
    )
    free, _ = operate(model, MakeBatchDynamic(select=("x",), try_it=False))
    constants = {tensor.name: onnx.numpy_helper.to_array(tensor).tolist() for tensor in free.graph.initializer}
    shapes = {node.name: constants.get(node.input[1]) for node in free.graph.node if node.op_type == "Expand"}
    assert shapes == {"fixed": [1, 4, 3], "constant": [4, 3], "given": None}
    x = numbers(6, 1, 3)
    expected = [np.broadcast_to(x, (6, 4, 3)) - np.array([1, 2, 3], np.float32), np.broadcast_to(x, (6, 5, 3))]
    assert_same(expected, outputs_of(free, {"x": x, "target": np.array([1, 5, 1])}))


def test_a_batch_inside_a_branch_becomes_dynamic() -> None:
    model = parsed(
        """<ir_version: 8, opset_import: ["": 17]>
        g (bool c, float[1, 2, 3] x) => (float[1, 6] y) <int64[2] flat = {1, 6}> {
            y = If (c) <
                then_branch = t () => (float[1, 6] p) { p = Reshape (x, flat) },
                else_branch = e () => (float[1, 6] r) { n = Neg (x)  r = Reshape (n, flat) }
            >
        }"""
    )
    free, _ = operate(model, MakeBatchDynamic(select=("x",)))
    x = numbers(3, 2, 3)
    for condition, expected in ((True, x), (False, -x)):
        assert_same([expected.reshape(3, 6)], outputs_of(free, {"c": np.array(condition), "x": x}))


def test_a_batch_on_another_axis_becomes_dynamic() -> None:
    model = parsed(
        """<ir_version: 8, opset_import: ["": 17]>
        g (float[1, 4] x, float[2, 1, 4] state) => (float[2, 1, 4] next) <int64[3] shape = {2, 1, 4}> {
            s = Reshape (state, shape)
            next = Add (s, x)
        }"""
    )
    free, _ = operate(model, MakeBatchDynamic(axes={"state": 1}))
    x, state = numbers(3, 4), numbers(2, 3, 4)
    assert_same([state + x], outputs_of(free, {"x": x, "state": state}))
    assert [dim.dim_param for dim in free.graph.output[0].type.tensor_type.shape.dim] == ["", "batch", ""]


def test_nodes_that_prevent_a_dynamic_batch_are_named(check_message: CheckMessage) -> None:
    squeezed = '<ir_version: 8, opset_import: ["": 17]> g (float[1, 4] x) => (float[4] y) <int64[1] a = {0}> {%s}'
    model = parsed(squeezed % "[lonely] y = Squeeze (x, a)")
    with pytest.raises(RequestError) as caught:
        operate(model, MakeBatchDynamic())
    check_message(caught.value)
    model = parsed(squeezed % "[mixing] y = ReduceSum <keepdims = 0> (x, a)")
    with pytest.raises(RequestError) as caught:
        operate(model, MakeBatchDynamic())
    check_message(caught.value)
    with pytest.raises(RequestError) as caught:
        operate(model, MakeBatchDynamic(select=("image",)))
    check_message(caught.value)


def test_an_output_independent_of_the_batch_is_noted() -> None:
    model = parsed(
        """<ir_version: 8, opset_import: ["": 17]>
        g (float[1, 4] x) => (float[1, 4] y, float[1, 4] m) { y = Neg (x)  [mixing] m = ReduceMean <axes = [0]> (x) }"""
    )
    _, notes = operate(model, MakeBatchDynamic())
    (note,) = notes
    assert re.search(r": m; .*mixing \(ReduceMean\)$", note)


def test_a_batch_with_dependent_items_is_refused(check_message: CheckMessage) -> None:
    """Softmax over the items: one item alone is always 1."""
    model = parsed(
        """<ir_version: 8, opset_import: ["": 17]>
        g (float[1, 4] x) => (float[1, 4] y) { y = Softmax <axis = 0> (x) }"""
    )
    with pytest.raises(RequestError) as caught:
        operate(model, MakeBatchDynamic())
    check_message(caught.value)
    free, _ = operate(model, MakeBatchDynamic(try_it=False))
    assert free.graph.output[0].type.tensor_type.shape.dim[0].dim_param == "batch"


def test_the_dynamic_batch_is_checked_at_the_sizes_of_the_recipe(tmp_path: Path) -> None:
    model = parsed(
        '<ir_version: 8, opset_import: ["": 17]> g (float[1, L] x) => (float[1, 3] y) { y = MatMul (x, w) }',
        w=numbers(7, 3),
    )
    free, notes = operate(model, MakeBatchDynamic())
    (note,) = notes
    assert "not tested: " in note
    assert free.graph.output[0].type.tensor_type.shape.dim[0].dim_param == "batch"
    onnx.save(model, tmp_path / "model.onnx")
    path = tmp_path / "model.onnx"
    edited = EditedModel(model=load_model(path), path=path, inputs={"x": InputSpec(shape=(1, 7))})
    assert re.match("dynamic batch .*x, y; 0 nodes", MakeBatchDynamic().apply(edited))
    assert edited.notes == []


def test_a_batch_that_fails_only_at_run_time_is_refused(check_message: CheckMessage) -> None:
    """Shape inference does not look at the lengths of sequences."""
    model = parsed(
        """<ir_version: 8, opset_import: ["": 17]>
        g (float[4, 1, 2] x) => (float[4, 1, 1, 3] y) <int32[1] lengths = {4}> {
            y = RNN <hidden_size = 3> (x, w, r, , lengths)
        }""",
        w=numbers(1, 3, 2),
        r=numbers(1, 3, 3),
    )
    with pytest.raises(RequestError) as caught:
        operate(model, MakeBatchDynamic(axes={"x": 1}))
    check_message(caught.value)


def test_the_node_that_mixes_items_is_named(check_message: CheckMessage) -> None:
    model = parsed(
        """<ir_version: 8, opset_import: ["": 17]> g (float[1, 4] x) => (float[1, 4] y) {
            [before] a = Tanh (x)  [mixing] b = Softmax <axis = 0> (a)  [sum] c = Add (b, a)  [last] y = Relu (c)
        }"""
    )
    with pytest.raises(RequestError) as caught:
        operate(model, MakeBatchDynamic())
    check_message(caught.value)


def test_the_node_that_merges_the_batch_into_another_axis_is_named(check_message: CheckMessage) -> None:
    """The axis of its output has the items of each channel in turn, and no later node splits them right."""
    model = parsed(
        """<ir_version: 8, opset_import: ["": 17]> g (float[1, 4, 6] x) => (float[1, 6, 4] z)
            <int64[2] flat = {4, 6}, int64[3] apart = {1, 6, 4}> {
            [turn] a = Transpose <perm = [1, 0, 2]> (x)  [merge] b = Reshape (a, flat)
            [back] c = Transpose <perm = [1, 0]> (b)  [split] z = Reshape (c, apart)
        }"""
    )
    with pytest.raises(RequestError) as caught:
        operate(model, MakeBatchDynamic())
    check_message(caught.value)
    for node in model.graph.node:
        node.name = ""
    with pytest.raises(RequestError) as caught:
        operate(model, MakeBatchDynamic())
    check_message(caught.value)
