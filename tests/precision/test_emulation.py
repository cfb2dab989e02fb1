"""Emulated storage: fp32 arithmetic, every reduced tensor rounded as hardware stores it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
import onnx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from onnx import TensorProto
from onnx.reference import ReferenceEvaluator

from ndld_flow.base.errors import ModelError
from ndld_flow.precision.emulation import EmulatedModel, emulate_stored
from ndld_flow.runtimes.onnxruntime.onnxruntime_session import Optimization, SessionSettings, open_model
from tests.support import models, models_fp16
from tests.support.fp16_checks import check, convert, count, normal
from tests.support.message_files import CheckMessage
from tests.support.models_run import write_model
from tests.support.random_graphs import RandomGraph

Array = npt.NDArray[Any]
LEVELS: tuple[Optimization, ...] = ("disabled", "basic", "extended", "layout", "all")
BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
X = np.array([1.001, 3.3333, 300.0, 1e-4, -0.0], np.float32)


def emulate(path: Path) -> tuple[Path, EmulatedModel]:
    target = path.with_name("emulated.onnx")
    done = emulate_stored(path, target)
    assert done is not None
    return target, done


def run(path: Path, optimization: Optimization = "all", **feeds: Array) -> dict[str, Array]:
    bound = open_model(path, SessionSettings(optimization=optimization)).bind(feeds)
    bound.run()
    return {name: np.asarray(array) for name, array in bound.outputs().items()}


def overflowing(folder: Path) -> Path:
    """An fp16 model whose hidden tensor is 1000 times too large for fp16 and comes back to size."""
    return write_model(
        folder / "model.onnx",
        """g (float[n] x) => (float[n] y) {
            a = Cast<to=10>(x)
            exact = Constant<value=float[1] {20000.0}>()
            big = Cast<to=10>(exact)
            hidden = Mul(a, big)
            b = Div(hidden, big)
            y = Cast<to=1>(b)
        }""",
    )


@pytest.mark.parametrize("stored", [np.dtype(np.float16), BFLOAT16])
@pytest.mark.parametrize("level", LEVELS)
def test_onnx_runtime_rounds_at_every_optimization_level(
    tmp_path: Path, stored: np.dtype[Any], level: Optimization
) -> None:
    """Everything rests on this: it does not take a Cast there and back for nothing."""
    code = TensorProto.FLOAT16 if stored == np.float16 else TensorProto.BFLOAT16
    path = write_model(
        tmp_path / "pair.onnx",
        f"""g (float[n] x) => (float[n] y) {{
            square = Mul(x, x)
            short = Cast<to={code}>(square)
            back = Cast<to=1>(short)
            y = Add(back, x)
        }}""",
    )
    with np.errstate(over="ignore"):
        rounded = (X * X).astype(stored).astype(np.float32)
    np.testing.assert_array_equal(run(path, level, x=X)["y"], rounded + X)


@pytest.mark.parametrize("level", LEVELS)
def test_emulation_reveals_an_overflow_that_onnx_runtime_hides(tmp_path: Path, level: Optimization) -> None:
    path = overflowing(tmp_path)
    x = np.array([1.0, 4.0], np.float32)
    np.testing.assert_array_equal(run(path, "all", x=x)["y"], x)  # as ONNX Runtime has it
    emulated, done = emulate(path)
    np.testing.assert_array_equal(run(emulated, level, x=x)["y"], [1.0, np.inf])
    assert done == EmulatedModel(outputs={}, notes=())


EXACT = ("Add", "Mul", "Max", "Neg", "Relu", "Abs", "Identity", "Concat", "Split", "Where", "Cast", "Greater", "If")
"""Operators that numpy computes in fp16 as hardware does: in fp32, rounded once."""
BLOCKABLE = ("Add", "Mul", "Max", "If", "Concat")


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    st.data(),
    st.lists(st.sampled_from(EXACT), min_size=1, max_size=12),
    st.lists(st.sampled_from(BLOCKABLE), max_size=2, unique=True),
    st.booleans(),
    st.sampled_from(LEVELS),
)
def test_random_graphs_match_numpy_in_fp16_bit_for_bit(
    tmp_path_factory: pytest.TempPathFactory,
    data: st.DataObject,
    operators: list[str],
    blocked: list[str],
    keep_io: bool,
    level: Optimization,
) -> None:
    folder = tmp_path_factory.mktemp("graph")
    graph = RandomGraph(data)
    for operator in operators:
        graph.grow(operator if operator != "If" or data.draw(st.booleans()) else "Add")
    b = graph.builder
    models.rename_output(b, b.op("Mul", graph.floats[-1], b.floats(1.1)), "y")
    for node in b.nodes:  # numpy's tanh is not ONNX Runtime's
        for body in (a.g for a in node.attribute if a.type == onnx.AttributeProto.GRAPH):
            for inner in body.node:
                inner.op_type = "Abs" if inner.op_type == "Tanh" else inner.op_type
    model = b.model([models.tensor("x", [2, 4])], [models.tensor("y", [2, 4])])
    quoted = ", ".join(f'"{name}"' for name in blocked)
    asked = f'{{"keep_io": {str(keep_io).lower()}, "block": {{"op_types": [{quoted}]}}}}'
    path, _ = convert(model, folder, asked)
    done = emulate_stored(path, folder / "emulated.onnx")
    if done is None:
        assert not any(value.type.tensor_type.elem_type == 10 for value in all_types(path))
        return
    dtype = np.float32 if keep_io else np.float16
    x = (np.linspace(-200, 150, 8) * np.array([1, 1e-4] * 4)).reshape(2, 4).astype(dtype)
    with np.errstate(all="ignore"):
        outputs: Any = ReferenceEvaluator(onnx.load(path)).run(None, {"x": x})
    result = run(folder / "emulated.onnx", level, x=x)["y"]
    assert result.dtype == np.float32
    np.testing.assert_array_equal(result, outputs[0].astype(np.float32))
    check(folder / "emulated.onnx")


def all_types(path: Path) -> list[onnx.ValueInfoProto]:
    graph = onnx.shape_inference.infer_shapes(onnx.load(path)).graph
    return [*graph.input, *graph.output, *graph.value_info]


FEEDS: dict[Callable[[], onnx.ModelProto], dict[str, Array]] = {
    models.cnn_model: {"x": normal(1, 3, 16, 16)},
    models.ctrl_model: {"x": normal(2, 4)},
    models.func_model: {"x": normal(2, 8)},
    models_fp16.shared_constant_model: {"x": normal(2, 4)},
    models_fp16.sequence_model: {"x": normal(4, 3)},
    models_fp16.scan_model: {"x": normal(3, 3)},
    models_fp16.lstm_model: {"x": normal(2, 1, 4), "h0": normal(1, 1, 5), "c0": normal(1, 1, 5)},
    models_fp16.random_model: {"x": normal(4, 4)},
    models_fp16.contrib_model: {"x": normal(2, 3, 8)},
    models_fp16.resize_model: {"x": normal(1, 2, 4, 4)},
    models.sparse_model: {"x": normal(3, 4)},
    models_fp16.mask_model: {"x": normal(2, 4), "mask": np.array([[1, 0, 1, 1]] * 2, np.int64)},
}


@pytest.mark.representatives("false-cnn_model", "true-mask_model", "true-scan_model")
@pytest.mark.parametrize("make", list(FEEDS), ids=lambda make: make.__name__)
@pytest.mark.parametrize("keep_io", ["true", "false"])
def test_every_kind_of_model_is_emulated(tmp_path: Path, make: Callable[[], onnx.ModelProto], keep_io: str) -> None:
    path, _ = convert(make(), tmp_path, f'{{"keep_io": {keep_io}}}')
    emulated, done = emulate(path)
    written = check(emulated, strict=make is not models.sparse_model)  # inference knows no sparse initializers
    assert count(written, "Cast")
    declared = {value.name: value.type.tensor_type.elem_type for value in onnx.load(path).graph.input}
    feeds: dict[str, Any] = {
        name: array.astype(np.float16) if declared[name] == TensorProto.FLOAT16 else array
        for name, array in FEEDS[make].items()
    }
    expected, result = run(path, **feeds), run(emulated, **feeds)
    assert list(result) == list(expected)
    for name, array in expected.items():
        stored = "float16" if array.dtype == np.float16 else None
        assert done.outputs.get(name) == stored
        np.testing.assert_allclose(result[name], array.astype(result[name].dtype), rtol=0.02, atol=0.02)
        if stored:
            np.testing.assert_array_equal(result[name], result[name].astype(np.float16).astype(np.float32))


def test_omitted_outputs_stay_omitted(tmp_path: Path) -> None:
    graph = """g (float16[1, 2, 2, 8] q) => (float16[1, 2, 2, 8] y, float16[1, 2, 2, 2] scores)
    { y, "", "", scores = Attention<qk_matmul_output_mode = 3>(q, q, q) }"""
    path = write_model(tmp_path / "model.onnx", graph, opset=24)
    emulated, _ = emulate(path)
    assert list(check(emulated).graph.node[-1].output) != [""]
    q = np.linspace(-1, 1, 32, dtype=np.float16).reshape(1, 2, 2, 8)
    for name, value in run(path, q=q).items():
        np.testing.assert_allclose(run(emulated, q=q)[name], value, atol=2e-3)


def test_recurrent_state_is_reported(tmp_path: Path) -> None:
    path, _ = convert(models_fp16.lstm_model(), tmp_path)
    assert "in 1 recurrent node (lstm)" in emulate(path)[1].notes[0]


def test_a_model_in_fp32_has_nothing_to_emulate(tmp_path: Path) -> None:
    source = models.make_cnn(tmp_path / "cnn.onnx")
    assert emulate_stored(source, tmp_path / "emulated.onnx") is None
    assert not (tmp_path / "emulated.onnx").exists()


BF16 = """g (float[n] x) => (float[n] y, bfloat16[n] z) {
    a = Cast<to=16>(x)
    exact = Constant<value=float[1] {0.333}>()
    third = Cast<to=16>(exact)
    z = Mul(a, third)
    b = Add(z, third)
    y = Cast<to=1>(b)
}"""


def test_a_number_that_equals_that_of_a_type_does_not_name_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Reading the whole model, with its weights, took half of the time of every comparison of such a model."""
    text = "g (float[1,16,8,8] x, float[16,1,3,3] w) => (float[1,16,6,6] y) {y = Conv<group = 16>(x, w)}"
    source = tmp_path / "grouped.onnx"
    onnx.save(onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["": 16]> {text}'), source)
    monkeypatch.setattr("ndld_flow.precision.emulation.load_model", lambda _: pytest.fail("it was read"))
    assert emulate_stored(source, tmp_path / "emulated.onnx") is None


def test_bf16_is_rounded_as_bf16(tmp_path: Path) -> None:
    emulated, done = emulate(write_model(tmp_path / "model.onnx", BF16))
    assert done.outputs == {"z": "bfloat16"}

    def stored(array: Array) -> Array:
        return array.astype(BFLOAT16).astype(np.float32)

    third = stored(np.array([0.333], np.float32))
    z = stored(stored(X) * third)
    result = run(emulated, x=X)
    np.testing.assert_array_equal(result["z"], z)
    np.testing.assert_array_equal(result["y"], stored(z + third))


def test_bf16_in_opsets_without_it_is_refused(tmp_path: Path, check_message: CheckMessage) -> None:
    path = write_model(tmp_path / "model.onnx", BF16, opset=12)
    with pytest.raises(ModelError) as caught:
        emulate_stored(path, tmp_path / "emulated.onnx")
    check_message(caught.value)


def one_operator(folder: Path, body: str, output: str = "float[n] y", opset: int = 21) -> Path:
    text = f"g (float[n] x) => ({output}) {{ a = Cast<to=10>(x) {body} }}"
    return emulate(write_model(folder / "model.onnx", text, opset=opset))[0]


def test_clip_without_bounds_uses_those_of_its_dtype(tmp_path: Path) -> None:
    x = np.array([-1e6, 5.0, 1e6], np.float32)
    result = run(one_operator(tmp_path, "b = Clip(a) y = Cast<to=1>(b)"), x=x)
    np.testing.assert_array_equal(result["y"], [-65504, 5, 65504])


def test_bounds_of_old_clips_are_rounded_too(tmp_path: Path) -> None:
    result = run(one_operator(tmp_path, "b = Clip<min=0.1>(a) y = Cast<to=1>(b)", opset=10), x=X[:1] * 0)
    assert result["y"].tolist() == [float(np.float16(0.1))]


def test_overflow_becomes_infinite_on_request(tmp_path: Path) -> None:
    body = "b = Mul(a, a) i = IsInf(b) y = Cast<to=1>(i)"
    np.testing.assert_array_equal(run(one_operator(tmp_path, body), x=X)["y"], [0, 0, 1, 0, 0])


def test_bits_are_read_as_stored(tmp_path: Path) -> None:
    path = one_operator(tmp_path, "c = Neg(a) y = BitCast<to=4>(c)", "uint16[n] y", opset=26)
    np.testing.assert_array_equal(run(path, x=X)["y"], (-X).astype(np.float16).view(np.uint16))


def test_scales_of_quantized_tensors_are_widened(tmp_path: Path) -> None:
    """0.1 is 0.0999756 in fp16: 1.85 / 0.1 is 18.5045, just above the middle."""
    path = one_operator(
        tmp_path,
        """scale = Constant<value_float=0.1>() s = Cast<to=10>(scale)
        number = Constant<value_int=0>() z = Cast<to=3>(number)
        q = QuantizeLinear<precision=10>(a, s, z) d = DequantizeLinear<output_dtype=10>(q, s, z)
        y = Cast<to=1>(d)""",
        opset=23,
    )
    x = np.array([0.32, 1.0, -5.0], np.float32)
    scale = np.float16(0.1)
    levels = np.round(x.astype(np.float16).astype(np.float32) / np.float32(scale))
    expected = (levels * np.float32(scale)).astype(np.float16).astype(np.float32)
    np.testing.assert_array_equal(run(path, x=x)["y"], expected)


def test_a_sequence_through_an_unknown_operator_is_refused(tmp_path: Path, check_message: CheckMessage) -> None:
    path = write_model(
        tmp_path / "model.onnx",
        """g (float[n] x) => (float[n] y) {
            a = Cast<to=10>(x)
            s = SequenceConstruct(a)
            t = com.example.Magic(s)
            b = SequenceAt(s, t)
            y = Cast<to=1>(b)
        }""",
    )
    with pytest.raises(ModelError) as caught:
        emulate_stored(path, tmp_path / "emulated.onnx")
    check_message(caught.value)


def test_inputs_and_outputs_of_unknown_operators_keep_their_types(tmp_path: Path) -> None:
    model = models_fp16.unknown_operator_model()
    path, _ = convert(model, tmp_path)
    half = onnx.load(path)
    for node in half.graph.node:  # now Magic reads fp16
        if node.op_type == "Magic":
            result = next(n for n in half.graph.node if node.input[0] in n.output)
            node.input[0] = result.input[0]
    onnx.save(half, path)
    emulated, done = emulate(path)
    (note,) = done.notes
    assert note.endswith(": Magic")
    written = onnx.load(emulated)
    makers = {name: node for node in written.graph.node for name in node.output}
    magic = next(node for node in written.graph.node if node.op_type == "Magic")
    cast = makers[magic.input[0]]
    assert (cast.op_type, cast.attribute[0].i) == ("Cast", TensorProto.FLOAT16)


def test_external_weights_stay_external(tmp_path: Path) -> None:
    source = models.make_ext(tmp_path / "ext.onnx")
    half, _ = convert(source, tmp_path)
    emulated, _ = emulate(half)
    assert emulated.stat().st_size < 10_000 and emulated.with_name("emulated.onnx.data").stat().st_size >= 3 * 2**18
    x = normal(1, 256)
    np.testing.assert_allclose(run(emulated, x=x)["y"], run(source, x=x)["y"], rtol=0.01, atol=0.01)
