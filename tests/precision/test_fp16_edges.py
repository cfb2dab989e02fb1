"""convert_fp16 on graphs that are legal and unusual."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.parser
import onnx_ir as ir
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper, numpy_helper

from ndld_flow.base.errors import RequestError
from ndld_flow.models.files import load_model
from ndld_flow.models.shape_inference import drop_stale_sizes
from ndld_flow.precision.emulation import emulate_stored
from ndld_flow.precision.fp16 import choice
from ndld_flow.steps.apply_precision import ApplyPrecision
from ndld_flow.steps.constrain_precision import ConstrainPrecision
from ndld_flow.steps.convert_fp16 import ConvertFp16
from tests.precision.test_convert_fp16 import CASES
from tests.support import models, models_fp16
from tests.support.fp16_checks import agree, check, convert, count, kinds, normal, parse_strongly_typed, run
from tests.support.message_files import CheckMessage
from tests.support.models import GraphBuilder, rename_output, tensor
from tests.support.models_engine import SEVERAL_FREE, SHAPE_TENSOR, make_fp8
from tests.support.models_run import run_step, write_model
from tests.support.representatives import thorough_except

FLOAT, HALF = TensorProto.FLOAT, TensorProto.FLOAT16


@pytest.mark.parametrize("keep_io", ["true", "false"])
def test_an_input_that_is_an_output_is_converted(keep_io: str, tmp_path: Path) -> None:
    b = GraphBuilder()
    rename_output(b, b.op("Tanh", "x"), "y")
    model = b.model([tensor("x", [4])], [tensor("x", [4]), tensor("y", [4])])
    path, _ = convert(model, tmp_path, f'{{"keep_io": {keep_io}}}')
    converted = check(path)
    assert kinds(converted.graph.output) == [FLOAT if keep_io == "true" else HALF] * 2


@pytest.mark.parametrize("keep_io", ["true", "false"])
def test_an_output_that_nodes_read_is_converted(keep_io: str, tmp_path: Path) -> None:
    b = GraphBuilder()
    b.nodes.append(helper.make_node("Tanh", ["x"], ["mid"], name="tanh"))
    branches = {
        name: helper.make_graph([helper.make_node(op, ["mid"], [name])], name, [], [tensor(name, None)])
        for name, op in (("then_branch", "Exp"), ("else_branch", "Neg"))
    }
    rename_output(b, b.op("If", b.op("Greater", b.op("ReduceSum", "mid", keepdims=0), b.floats(0.0)), **branches), "y")
    model = b.model([tensor("x", [4])], [tensor("mid", [4]), tensor("y", [4])])
    path, _ = convert(model, tmp_path, f'{{"keep_io": {keep_io}, "block": {{"op_types": ["Exp"]}}}}')
    check(path)
    agree(tmp_path / "source.onnx", path, {"x": normal(4)}, 5e-3)


def test_a_loop_in_a_branch_reads_two_scopes_up(tmp_path: Path) -> None:
    b = GraphBuilder()
    outer = b.op("Exp", "x")  # kept in fp32: one Cast of it must serve the innermost body
    body = GraphBuilder(prefix="body_")
    inner = body.op("Add", "state", body.op("Mul", outer, body.floats(0.1)))
    go_on = body.op("Identity", "go")
    loop_inputs = [tensor("i", [], TensorProto.INT64), tensor("go", [], TensorProto.BOOL), tensor("state", None)]
    loop_outputs = [tensor(go_on, [], TensorProto.BOOL), tensor(inner, None)]
    loop = helper.make_graph(body.nodes, "body", loop_inputs, loop_outputs)
    then = GraphBuilder(prefix="then_")
    looped = then.op("Loop", then.const(3, np.int64), "", outer, body=loop)
    other = GraphBuilder(prefix="else_")
    rest = other.op("Identity", outer)
    h = b.op(
        "If",
        "flag",
        then_branch=helper.make_graph(then.nodes, "then", [], [tensor(looped, None)]),
        else_branch=helper.make_graph(other.nodes, "else", [], [tensor(rest, None)]),
    )
    rename_output(b, b.op("Tanh", h), "y")
    model = b.model([tensor("x", [4]), tensor("flag", [], TensorProto.BOOL)], [tensor("y", [4])])
    path, _ = convert(model, tmp_path, '{"block": {"op_types": ["Exp"]}}')
    check(path)
    for flag in (True, False):
        agree(tmp_path / "source.onnx", path, {"x": normal(4), "flag": np.array(flag)}, 5e-3)


def test_unordered_nodes_are_sorted(tmp_path: Path) -> None:
    b = GraphBuilder()
    rename_output(b, b.op("Tanh", b.op("Relu", "x")), "y")
    model = b.model([tensor("x", [4])], [tensor("y", [4])])
    nodes = list(reversed(model.graph.node))
    del model.graph.node[:]
    model.graph.node.extend(nodes)
    path, _ = convert(model, tmp_path)
    check(path)
    np.testing.assert_allclose(run(path, {"x": np.ones(4, np.float32)})["y"], np.tanh(1.0), atol=1e-3)


def test_an_initializer_that_may_be_overridden_is_converted(tmp_path: Path) -> None:
    """It is one value with one type: fp16, cast for who needs fp32."""
    b = GraphBuilder()
    weight = b.weight(4)
    h = b.op("Add", b.op("Mul", "x", weight), b.op("Exp", b.op("Neg", weight)))
    rename_output(b, h, "y")
    model = b.model([tensor("x", [4]), tensor(weight, [4])], [tensor("y", [4])])
    path, _ = convert(model, tmp_path)
    converted = check(path)
    assert kinds(converted.graph.input) == [FLOAT, HALF]
    agree(tmp_path / "source.onnx", path, {"x": normal(4)}, 5e-3)
    agree(tmp_path / "source.onnx", path, {"x": normal(4), weight: normal(4)}, 5e-3)


@pytest.mark.parametrize("kind", [TensorProto.DOUBLE, TensorProto.BFLOAT16, TensorProto.FLOAT16])
def test_other_precisions_are_kept(kind: int, tmp_path: Path) -> None:
    b = GraphBuilder()
    b.initializers.append(helper.make_tensor("w", kind, [2], [1.0, 2.0]))
    rename_output(b, b.op("Mul", b.op("Mul", "x", "w"), "x"), "y")
    model = b.model([tensor("x", [2], kind)], [tensor("y", [2], kind)])
    path, result = convert(model, tmp_path)
    assert result.metrics["casts_added"] == 0
    assert check(path).graph.initializer == model.graph.initializer


def test_existing_casts_take_the_new_precision(tmp_path: Path) -> None:
    """double -> fp32 becomes double -> fp16, fp32 -> double reads fp16, fp16 islands merge with what is around."""
    b = GraphBuilder()
    h = b.op("Relu", b.op("Cast", "x", to=FLOAT))
    h = b.op("Cast", b.op("Tanh", b.op("Cast", h, to=HALF)), to=FLOAT)
    rename_output(b, b.op("Cast", b.op("Neg", h), to=TensorProto.DOUBLE), "y")
    model = b.model([tensor("x", [4], TensorProto.DOUBLE)], [tensor("y", [4], TensorProto.DOUBLE)])
    path, result = convert(model, tmp_path)
    assert count(check(path), "Cast") == 2
    assert result.metrics["casts_added"] == 0
    agree(tmp_path / "source.onnx", path, {"x": normal(4).astype(np.float64)}, 5e-3)


def test_a_cast_read_in_both_precisions_is_not_cast_again(tmp_path: Path) -> None:
    b = GraphBuilder()
    h = b.op("Cast", "x", to=FLOAT)
    rename_output(b, b.op("Add", b.op("Exp", h), b.op("Tanh", h)), "y")
    model = b.model([tensor("x", [4], TensorProto.INT64)], [tensor("y", [4])])
    path, _ = convert(model, tmp_path, '{"block": {"op_types": ["Exp"]}}')
    casts = [n for n in check(path).graph.node if n.op_type == "Cast" and n.input[0] == "x"]
    assert sorted(n.attribute[0].i for n in casts) == [FLOAT, HALF]
    agree(tmp_path / "source.onnx", path, {"x": np.arange(4)}, 5e-3)


def test_a_constant_that_is_cast_elsewhere_stays_exact_there(tmp_path: Path) -> None:
    b = GraphBuilder()
    third = b.weight(4)
    wide = b.op("Cast", third, to=TensorProto.DOUBLE)
    rename_output(b, b.op("Tanh", b.op("Mul", "x", third)), "y")
    rename_output(b, wide, "z")
    model = b.model([tensor("x", [4])], [tensor("y", [4]), tensor("z", [4], TensorProto.DOUBLE)])
    path, _ = convert(model, tmp_path)
    check(path)
    np.testing.assert_array_equal(run(path, {"x": normal(4)})["z"], numpy_helper.to_array(model.graph.initializer[0]))


def test_constants_in_all_forms_are_converted(tmp_path: Path) -> None:
    b = GraphBuilder()
    result, many = b.op("Constant", value_float=2.0), b.op("Constant", value_floats=[1.0, 2.0, 3.0, 4.0])
    rename_output(b, b.op("Add", b.op("Mul", "x", result), many), "y")
    path, _ = convert(b.model([tensor("x", [4])], [tensor("y", [4])]), tmp_path)
    constants = [n.attribute[0] for n in check(path).graph.node if n.op_type == "Constant"]
    assert [a.name for a in constants] == ["value", "value"]
    assert [a.t.data_type for a in constants] == [HALF, HALF]
    assert [list(a.t.dims) for a in constants] == [[], [4]]
    agree(tmp_path / "source.onnx", path, {"x": normal(4)}, 5e-3)


def test_wrong_value_info_does_not_mislead(tmp_path: Path) -> None:
    model = models.cnn_model()
    for node in model.graph.node:
        if node.op_type in ("Shape", "Conv"):
            wrong = FLOAT if node.op_type == "Shape" else TensorProto.INT64
            model.graph.value_info.append(helper.make_tensor_value_info(node.output[0], wrong, None))
    path, result = convert(model, tmp_path)
    assert {i.data_type for i in onnx.load(path).graph.initializer} == {HALF}
    assert result.metrics["casts_added"] == 2


def test_an_unused_weight_is_kept(tmp_path: Path) -> None:
    model = models.cnn_model()
    model.graph.initializer.append(numpy_helper.from_array(np.ones(3, np.float32), "unread"))
    path, _ = convert(model, tmp_path)
    (unread,) = [i for i in check(path).graph.initializer if i.name == "unread"]
    assert unread.data_type == FLOAT


OLD = '<ir_version: 3, opset_import: ["" : 6]> g (float[1, 4] x, float[4] c) => (float[1, 4] y) { BODY }'


def test_opsets_before_7_are_raised_first(tmp_path: Path) -> None:
    body = "a = Add<axis = 1, broadcast = 1>(x, c) b = Cast<to = 1>(a) y = Mul(b, b)"
    path, result = convert(onnx.parser.parse_model(OLD.replace("BODY", body)), tmp_path)
    assert check(path).opset_import[0].version == 7
    assert result.metrics["kept_fp32"] == 0
    assert result.change is not None
    assert any(note.startswith("opset 6 -> 7 first") for note in result.change.notes)
    x, c = np.ones((1, 4), np.float32), np.arange(4, dtype=np.float32)
    (y,) = ort.InferenceSession(path).run(None, {"x": x, "c": c})
    np.testing.assert_allclose(y, np.square(x + c))


@pytest.mark.parametrize("opset", [1, 6])
def test_old_models_without_reduced_types_are_emulated_as_they_are(opset: int, tmp_path: Path) -> None:
    text = OLD.replace("6]", f"{opset}]").replace("BODY", "y = Relu(x)")
    onnx.save(onnx.parser.parse_model(text), tmp_path / "old.onnx")
    assert emulate_stored(tmp_path / "old.onnx", tmp_path / "emulated.onnx") is None


def test_constraints_are_applied_to_old_opsets(tmp_path: Path) -> None:
    body = "a = Add<axis = 1, broadcast = 1>(x, c) y = Relu(a)"
    model = onnx.parser.parse_model(OLD.replace("BODY", body))
    model.graph.node[0].name, model.graph.node[1].name = "add", "relu"
    onnx.save(model, tmp_path / "old.onnx")
    asked = run_step(ConstrainPrecision, tmp_path / "old.onnx", tmp_path / "asked", {"op_types": {"Relu": "fp16"}})
    done = run_step(ApplyPrecision, asked.out / "model.onnx", tmp_path / "applied", {})
    assert done.result.change is not None
    assert any(note.startswith("opset 6 -> 7 first") for note in done.result.change.notes)
    written = check(done.out / "model.onnx")
    assert count(written, "Cast") == 2
    x, c = np.ones((1, 4), np.float32), np.arange(4, dtype=np.float32)
    (y,) = ort.InferenceSession(done.out / "model.onnx").run(None, {"x": x, "c": c})
    np.testing.assert_array_equal(y, x + c)


def test_an_old_operator_that_cannot_be_raised_is_refused_with_the_reason(
    tmp_path: Path, check_message: CheckMessage
) -> None:
    body = "y = BatchNormalization<is_test = 0>(x, c, c, c, c)"
    with pytest.raises(RequestError) as caught:
        convert(onnx.parser.parse_model(OLD.replace("BODY", body)), tmp_path)
    check_message(caught.value)


UNKNOWN_TO_RTX = {"contrib", "sequence", "sparse"}
MORE_FOR_RTX: dict[str, Callable[[Path], Path]] = {
    "sensitive": lambda path: models.save(models_fp16.sensitive_batch_norm_model(), path),
    "doubled_names": lambda path: models.save(models_fp16.doubled_names_model(), path),
    "external": lambda path: models.make_ext(path, width=32),
    "fp8": make_fp8,
    "shape_tensor": lambda path: write_model(path, SHAPE_TENSOR),
    "several_free": lambda path: write_model(path, SEVERAL_FREE),
}
"""Models that no other test converts."""


def make_for_rtx(name: str, path: Path) -> Path:
    return MORE_FOR_RTX[name](path) if name in MORE_FOR_RTX else models.save(CASES[name][0](), path)


@pytest.mark.representatives("fp8-true", "scan-true")
@pytest.mark.parametrize("keep_io", ["true", "false"])
@pytest.mark.parametrize("name", [*(name for name in CASES if name not in UNKNOWN_TO_RTX), *MORE_FOR_RTX])
def test_tensorrt_rtx_parses_the_result(name: str, keep_io: str, tmp_path: Path) -> None:
    path, _ = convert(make_for_rtx(name, tmp_path / "model.onnx"), tmp_path, f'{{"keep_io": {keep_io}}}')
    parse_strongly_typed(path)


@pytest.mark.parametrize(
    "settings", thorough_except(["{}", '{"block": {"op_types": ["BatchNormalization", "Softmax"]}}'], "{}")
)
@pytest.mark.parametrize("name", thorough_except(["det", "rec"], "det"))
def test_tensorrt_rtx_parses_real_models(
    name: str, settings: str, sample_model: Callable[[str], Path], tmp_path: Path
) -> None:
    path, result = convert(sample_model(name), tmp_path, settings)
    assert result.metrics["casts_added"]
    parse_strongly_typed(path)


def test_sizes_are_followed_past_inputs_that_are_left_out() -> None:
    proto = onnx.parser.parse_model(
        """<ir_version: 8, opset_import: ["": 17]> g (float[n, 4] x) => (float[n, 4] y) <float most = {9.0}> {
            sizes = Shape (x)  exact = Cast <to = 1> (sizes)  clipped = Clip (exact, , most)
            mixed = Mul (x, clipped)  y = Relu (mixed)
        }"""
    )
    derived = choice._size_derived(ir.serde.deserialize_model(proto))
    assert {value.name for value in derived} == {"sizes", "exact", "clipped"}


def _converted(text: str, folder: Path, **weights: Any) -> tuple[onnx.ModelProto, Path]:
    model = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["": 17]> {text}')
    model.graph.initializer.extend(numpy_helper.from_array(value, name) for name, value in weights.items())
    path, _ = convert(model, folder)
    return check(path), path


WEIGHT = np.random.default_rng(0).normal(size=(64, 64)).astype(np.float32)
ZERO, ONE = np.zeros(1, np.float32), np.ones(1, np.int64)


@pytest.mark.parametrize(
    "state",
    [
        "h = Expand (zero, size)",
        "h = ConstantOfShape <value = float[1] {0.0}> (size)",
        "z = ConstantOfShape <value = float[1] {0.0}> (size) h = Tanh (z)",
        "p = NonZero (lens) h0 = Gather (rows, i0) h1 = Unsqueeze (h0, i1) h = Expand (h1, size)",
        "f = Cast <to = 1> (n) c = Less (f, limit) h0 = Where (c, zero, zero) h = Expand (h0, size)",
    ],
)
def test_the_first_state_of_an_lstm_is_data(state: str, tmp_path: Path) -> None:
    """The weights of the first step are those of the others: kept in fp32 they would be written twice."""
    text = f"""g (float[B, 64] x) => (float[B, 64] y) {{
        s = Shape (x) n = Gather (s, i0) n1 = Unsqueeze (n, i1) size = Concat <axis = 0> (n1, width)
        lens = Shape (x) {state}
        a = MatMul (h, W) b = Add (a, x) t = Tanh (b) c2 = MatMul (t, W) y = Add (c2, x)
    }}"""
    i = {"i0": np.array(0), "i1": np.array([0]), "width": np.array([64]), "limit": np.float32(9)}
    converted, path = _converted(text, tmp_path, W=WEIGHT, zero=ZERO, rows=WEIGHT, **i)
    assert [tuple(w.dims) for w in converted.graph.initializer].count((64, 64)) <= 2
    weights = [w for w in converted.graph.initializer if w.name.startswith("W")]
    assert [w.data_type for w in weights] == [HALF]
    agree(tmp_path / "source.onnx", path, {"x": normal(3, 64)}, 2e-2)


@pytest.mark.parametrize(
    "angles",
    [
        "a = MatMul (position, frequencies)",
        "o = ConstantOfShape <value = float[1] {1.0}> (t1) k = Unsqueeze (o, i1) q = Mul (position, k) "
        "e = Expand (frequencies, i11) a = MatMul (q, e)",
        "p2 = Expand (position, i11) a = Mul (p2, frequencies)",
    ],
)
def test_positions_are_not_data(angles: str, tmp_path: Path) -> None:
    text = f"""g (float[T, 8] x) => (float[T, 8] y) {{
        s = Shape (x) t = Gather (s, i0) t1 = Unsqueeze (t, i0v) r = Range (i0, t, i1s) f = Cast <to = 1> (r)
        position = Unsqueeze (f, i1) {angles} w = Sin (a) y = Add (x, w)
    }}"""
    frequencies = (10000.0 ** -(np.arange(8) / 8)).astype(np.float32)[None]
    i = {"i0": np.array(0), "i0v": np.array([0]), "i1s": np.array(1), "i1": np.array([1]), "i11": np.array([1, 1])}
    _, path = _converted(text, tmp_path, frequencies=frequencies, **i)
    # 4,001 is 4,000 in fp16, and sin(4000) is -0.68 where sin(4001) is 0.27
    agree(tmp_path / "source.onnx", path, {"x": np.zeros((5000, 8), np.float32)}, 5e-3)


@pytest.mark.parametrize(
    "nodes",
    [
        "e = Transpose <perm = [1, 0, 2]> (x) y = MatMul (e, W)",
        "a = Tanh (x) e = Transpose <perm = [1, 0, 2]> (a) i = Identity (e) b = MatMul (i, W) y = Tanh (b)",
        "a = Transpose <perm = [2, 0, 1]> (x) e = Transpose <perm = [2, 1, 0]> (a) y = MatMul (e, W)",
        "e = Transpose <perm = [1, 0, 2]> (x) c = Concat <axis = 0> (e, e) y = MatMul (c, W)",
        "e = Transpose <perm = [1, 0, 2]> (x) s = Mul (e, two) y = MatMul (s, W)",
        "e = Transpose <perm = [1, 2, 0]> (x) y = MatMul (e, W)",
    ],
)
def test_matmuls_that_crash_onnx_runtime_stay_fp32(nodes: str, tmp_path: Path) -> None:
    text = f"g (float[8, 8, 8] x) => (float[t, n, 8] y) {{ {nodes} }}"
    weight = np.random.default_rng(0).normal(size=(8, 8)).astype(np.float32)
    converted, path = _converted(text, tmp_path, W=weight, two=np.full(1, 2, np.float32))
    [weights] = [w.data_type for w in converted.graph.initializer if w.name == "W"]
    assert weights == FLOAT
    agree(tmp_path / "source.onnx", path, {"x": normal(8, 8, 8)}, 2e-2)


def test_other_transposes_do_not_keep_matmuls_in_fp32(tmp_path: Path) -> None:
    text = """g (float[2, 3, 8, 8] x) => (float[2, 8, 3, 8] y) {
        e = Transpose <perm = [0, 2, 1, 3]> (x) f = Tanh (e) g = MatMul (f, W) y = Tanh (g)
    }"""
    converted, path = _converted(text, tmp_path, W=np.eye(8, dtype=np.float32))
    assert [w.data_type for w in converted.graph.initializer] == [HALF]
    agree(tmp_path / "source.onnx", path, {"x": normal(2, 3, 8, 8)}, 2e-2)


@pytest.mark.parametrize("declared", [[1, 8, 40, 40], [1, 8, "P", 40], [8, 40]], ids=str)
def test_stale_sizes_of_inner_tensors_are_not_written(tmp_path: Path, declared: list[int | str]) -> None:
    text = """g (float[1, 8, H, W] x) => (float[1, 8, P, Q] y) {
        d = Slice(x, start, end, axes, step)
        b = Relu(d)
        y = Sqrt(b)
    }"""
    model = onnx.load(write_model(tmp_path / "model.onnx", text))
    vectors = {"start": [0, 0], "end": [2**31, 2**31], "axes": [2, 3], "step": [2, 2]}
    model.graph.initializer.extend(numpy_helper.from_array(np.array(item), name) for name, item in vectors.items())
    model.graph.value_info.extend(helper.make_tensor_value_info(name, TensorProto.FLOAT, declared) for name in "db")
    onnx.save(model, tmp_path / "model.onnx")
    ran = run_step(ConvertFp16, tmp_path / "model.onnx", tmp_path / "half", {})
    written = onnx.load(ran.out / "model.onnx").graph.value_info
    sizes = {item.name: [dim.dim_value for dim in item.type.tensor_type.shape.dim] for item in written}
    assert sizes["b"] == ([1, 8, 0, 0] if len(declared) == 4 else [0, 0, 0, 0])
    assert not any(40 in size for size in sizes.values())


def test_sizes_behind_an_unknown_operator_stay(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    write_model(path, "g (float[1, N] x) => (float[1, M] z) { y = Relu(x) u = of.others.Op(y) v = Relu(u) z = Neg(v) }")
    model = onnx.load(path)
    model.opset_import.add(domain="of.others", version=1)
    for name in ("u", "v"):
        model.graph.value_info.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, 7]))
    onnx.save(model, path)
    loaded = load_model(path)
    drop_stale_sizes(loaded)
    shapes = {value.name: value.shape for node in loaded.graph for value in node.outputs}
    assert shapes["u"] == shapes["v"] == [1, 7]
