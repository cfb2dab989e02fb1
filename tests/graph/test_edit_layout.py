"""Layouts of inputs and outputs, preprocessing and postprocessing inside the model."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ndld_flow.base.errors import RequestError
from ndld_flow.graph.edit.operation import Operation
from ndld_flow.graph.edit.operations.add_preprocessing import AddPostprocessing, AddPreprocessing
from ndld_flow.graph.edit.operations.transformations import ChangeLayout
from tests.support.message_files import CheckMessage
from tests.support.surgery_checks import Array, assert_same, numbers, op_types, operate, outputs_of, parsed


def _dims(value: onnx.ValueInfoProto) -> list[int | str]:
    return [dim.dim_param or dim.dim_value for dim in value.type.tensor_type.shape.dim]


def _conv(opset: int = 17, dtype: str = "float") -> onnx.ModelProto:
    kind: Any = np.float16 if dtype == "float16" else np.float32
    return parsed(
        f"""<ir_version: 8, opset_import: ["": {opset}]>
        g ({dtype}[batch, 3, H, W] image) => ({dtype}[batch, 4, H, W] y) {{
            a = Conv <pads = [1, 1, 1, 1]> (image, w, b)
            y = Relu (a)
        }}""",
        w=numbers(4, 3, 3, 3, dtype=kind),
        b=numbers(4, seed=1, dtype=kind),
    )


@pytest.mark.representatives("float16-17", "float16-13", "float16-22")
@pytest.mark.parametrize("opset", [8, 11, 13, 17, 20, 22])
@pytest.mark.parametrize("dtype", ["float", "float16"])
def test_an_input_is_converted_to_nhwc(opset: int, dtype: str) -> None:
    model = _conv(opset, dtype)
    changed, _ = operate(model, ChangeLayout(inputs=("image",), to="NHWC"))
    assert _dims(changed.graph.input[0]) == ["batch", "H", "W", "3"] or _dims(changed.graph.input[0]) == [
        "batch",
        "H",
        "W",
        3,
    ]
    assert changed.graph.input[0].name == "image"
    x = numbers(2, 3, 5, 6, dtype=np.float16 if dtype == "float16" else np.float32)
    assert_same(outputs_of(model, {"image": x}), outputs_of(changed, {"image": x.transpose(0, 2, 3, 1)}))


def test_an_output_is_converted_to_nhwc_and_back() -> None:
    model = _conv()
    changed, _ = operate(model, ChangeLayout(outputs=("y",), to="NHWC"))
    assert _dims(changed.graph.output[0]) == ["batch", "H", "W", 4]
    x = numbers(2, 3, 5, 6)
    [expected] = outputs_of(model, {"image": x})
    assert_same([expected.transpose(0, 2, 3, 1)], outputs_of(changed, {"image": x}))
    twice, _ = operate(changed, ChangeLayout(outputs=("y",), to="NCHW"))
    assert op_types(twice) == ["Conv", "Relu", "Transpose", "Transpose"]
    back, _ = operate(changed, ChangeLayout(outputs=("y",), to="NCHW", push=True))
    assert op_types(back) == ["Conv", "Relu"]
    assert_same([expected], outputs_of(back, {"image": x}))


def test_an_input_that_is_read_in_a_branch_and_is_an_output_is_converted() -> None:
    model = parsed(
        """<ir_version: 8, opset_import: ["": 17]>
        g (bool c, float[1, 3, 2, 4] x) => (float[1, 3, 2, 4] y, float[1, 3, 2, 4] z) {
            y = If (c) <
                then_branch = t () => (float[1, 3, 2, 4] p) { p = Relu (x) },
                else_branch = e () => (float[1, 3, 2, 4] r) { r = Neg (x) }
            >
            z = Identity (x)
        }"""
    )
    changed, _ = operate(model, ChangeLayout(inputs=("x",), to="NHWC"))
    x = numbers(1, 3, 2, 4)
    for condition in (True, False):
        before = outputs_of(model, {"c": np.array(condition), "x": x})
        after = outputs_of(changed, {"c": np.array(condition), "x": x.transpose(0, 2, 3, 1)})
        assert_same(before, after)


def test_wrong_names_and_ranks_are_reported(check_message: CheckMessage) -> None:
    with pytest.raises(RequestError) as refused:
        operate(_conv(), ChangeLayout(inputs=("img",), to="NHWC"))
    check_message(refused.value)
    with pytest.raises(RequestError) as refused:
        operate(_conv(), ChangeLayout(inputs=("image",), to="NWC"))
    check_message(refused.value)
    with pytest.raises(ValueError) as invalid:
        ChangeLayout(to="NHWC")
    check_message(invalid.value)


def test_an_input_that_is_an_output_keeps_its_layout(check_message: CheckMessage) -> None:
    model = parsed(
        """<ir_version: 8, opset_import: ["": 17]>
        g (float[1, 3, 2, 4] x) => (float[1, 3, 2, 4] x, float[1, 3, 2, 4] y) { y = Relu (x) }"""
    )
    with pytest.raises(RequestError) as caught:
        operate(model, ChangeLayout(inputs=("x",), to="NHWC"))
    check_message(caught.value)


def test_int32_slices_are_moved_past() -> None:
    model = parsed(
        """<ir_version: 8, opset_import: ["": 17]>
        g (float[1, 4, 5, 3] x) => (float[1, 3, 5, 4] z)
        <int32[2] starts = {0, 1}, int32[2] ends = {1, 3}> {
            r = Relu (x)
            t = Transpose <perm = [0, 3, 1, 2]> (r)
            s = Slice (t, starts, ends)
            y = Transpose <perm = [0, 2, 3, 1]> (s)
            u = Neg (y)
            z = Transpose <perm = [0, 3, 2, 1]> (x)
        }"""
    )
    model.graph.output.append(onnx.helper.make_tensor_value_info("u", onnx.TensorProto.FLOAT, [1, 4, 5, 2]))
    changed, _ = operate(model, ChangeLayout(outputs=("z",), to="NHWC", push=True))
    x = numbers(1, 4, 5, 3)
    before, after = outputs_of(model, {"x": x}), outputs_of(changed, {"x": x})
    assert_same([before[0].transpose(0, 2, 3, 1), before[1]], after)
    assert op_types(changed).count("Transpose") == 1


def test_transposes_of_a_converted_model_cancel() -> None:
    """As tf2onnx writes it: NHWC outside, a Transpose around every Conv."""
    model = parsed(
        """<ir_version: 8, opset_import: ["": 17]>
        g (float[1, 6, 6, 3] x) => (float[1, 4] y)
        <int64[2] axes = {1, 2}, int64[8] pads = {0, 1, 1, 0, 0, 0, 0, 0}> {
            s = Mul (x, scale)
            n = Transpose <perm = [0, 3, 1, 2]> (s)
            c = Conv (n, w1)
            h = Transpose <perm = [0, 2, 3, 1]> (c)
            b = Add (h, bias)
            r = Relu (b)
            p = Pad (r, pads)
            k = Concat <axis = 3> (p, p)
            n2 = Transpose <perm = [0, 3, 1, 2]> (k)
            c2 = Conv (n2, w2)
            h2 = Transpose <perm = [0, 2, 3, 1]> (c2)
            m = ReduceMean <axes = [1, 2], keepdims = 0> (h2)
            y = Softmax <axis = -1> (m)
        }""",
        scale=numbers(3),
        bias=numbers(4, seed=1),
        w1=numbers(4, 3, 3, 3, seed=2),
        w2=numbers(4, 8, 3, 3, seed=3),
    )
    changed, _ = operate(model, ChangeLayout(inputs=("x",), to="NCHW", push=True))
    assert "Transpose" not in op_types(changed)
    x = numbers(1, 6, 6, 3)
    after = outputs_of(changed, {"x": x.transpose(0, 3, 1, 2)})
    assert_same(outputs_of(model, {"x": x}), after, 1e-6)


def _pushed(body: str, outputs: str, **weights: Any) -> tuple[onnx.ModelProto, onnx.ModelProto]:
    model = parsed(
        f"""<ir_version: 8, opset_import: ["": 17]>
        g (bool c, float[2, 3, 4, 4] x) => ({outputs}) {{ {body} }}""",
        **weights,
    )
    return model, operate(model, ChangeLayout(inputs=("x",), to="NHWC", push=True))[0]


@pytest.mark.parametrize("axis", [0, 1, 2, 3])
def test_a_reduction_that_drops_an_axis_keeps_the_order_of_the_others(axis: int) -> None:
    model, changed = _pushed(f"y = ReduceMax <axes = [{axis}], keepdims = 0> (x)", "float[a, b, d] y")
    assert op_types(changed).count("Transpose") == (0 if axis == 1 else 1)
    x, c = numbers(2, 3, 4, 4), np.array(True)
    after = outputs_of(changed, {"c": c, "x": np.ascontiguousarray(x.transpose(0, 2, 3, 1))})
    assert_same(outputs_of(model, {"c": c, "x": x}), after)


def test_two_orders_do_not_mix_and_branches_keep_theirs() -> None:
    model, changed = _pushed(
        """s = Transpose <perm = [0, 1, 3, 2]> (x)
        a = Add (x, s)
        t = Transpose <perm = [0, 2, 3, 1]> (x)
        n = Transpose <perm = [0, 3, 1, 2]> (t)
        y = If (c) <
            then_branch = p () => (float[2, 3, 4, 4] q) { q = Sub (x, a) },
            else_branch = e () => (float[2, 3, 4, 4] r) { u = Relu (n)  r = Mul (u, s) }
        >
        z = Transpose <perm = [0, 2, 3, 1]> (a)""",
        "float[2, 3, 4, 4] y, float[2, 4, 4, 3] z",
    )
    x = numbers(2, 3, 4, 4)
    for condition in (np.array(True), np.array(False)):
        after = outputs_of(changed, {"c": condition, "x": np.ascontiguousarray(x.transpose(0, 2, 3, 1))})
        assert_same(outputs_of(model, {"c": condition, "x": x}), after)


def test_nodes_that_mix_two_layouts_are_left_unchanged() -> None:
    model = parsed(
        """<ir_version: 8, opset_import: ["": 17]>
        g (float[2, 4, 4, 4] x, float[1, 3, 2, 2] z) => (float[2, 4, 4, 4] y, float[1, 3, 2, 2] w) {
            a = Transpose <perm = [0, 2, 3, 1]> (x)
            b = Transpose <perm = [0, 1, 3, 2]> (x)
            s = Add (a, b)
            y = Transpose <perm = [0, 3, 1, 2]> (s)
            w = Neg (z)
        }"""
    )
    changed, _ = operate(model, ChangeLayout(inputs=("z",), to="NHWC", push=True))
    feeds = {"x": numbers(2, 4, 4, 4), "z": numbers(1, 3, 2, 2)}
    moved = feeds | {"z": np.ascontiguousarray(feeds["z"].transpose(0, 2, 3, 1))}
    assert_same(outputs_of(model, feeds), outputs_of(changed, moved))


_STEPS = {
    "relu": "{o} = Relu ({i})",
    "row": "{o} = Add ({i}, row)",
    "plane": "{o} = Mul ({i}, plane)",
    "self": "{o} = Sub ({i}, {i})",
    "pad": "{o} = Pad ({i}, pads)",
    "softmax": "{o} = Softmax <axis = -1> ({i})",
    "slice": "{o} = Slice ({i}, zero, two, last)",
    "free_slice": "{o} = Slice ({i}, zeros, ends)",
    "int32_slice": "{o} = Slice ({i}, zeros32, ends32)",
    "mean": "{o} = ReduceMean <axes = [1], keepdims = 1> ({i})",
    "nchw": "{o} = Transpose <perm = [0, 3, 1, 2]> ({i})",
    "nhwc": "{o} = Transpose <perm = [0, 2, 3, 1]> ({i})",
    "swap": "{o} = Transpose <perm = [0, 1, 3, 2]> ({i})",
    "twice": "{o}_t = Neg ({i}) {o} = Concat <axis = 2> ({i}, {o}_t)",
}


@settings(max_examples=20, deadline=None)
@given(steps=st.lists(st.sampled_from(sorted(_STEPS)), min_size=2, max_size=8), tap=st.integers(0, 7))
def test_moving_transposes_keeps_all_values(steps: list[str], tap: int) -> None:
    lines = [_STEPS[step].format(o=f"v{i + 1}", i=f"v{i}") for i, step in enumerate(steps)]
    model = parsed(
        f"""<ir_version: 8, opset_import: ["": 17]>
        g (float[2, 4, 4, 4] x) => (float[a, b, c, d] out, float[e, f, g, h] tapped)
        <int64[8] pads = {{0, 1, 0, 0, 0, 0, 0, 2}}, int64[1] zero = {{0}}, int64[1] two = {{1}},
         int64[1] last = {{-1}}, int64[2] zeros = {{0, 1}}, int64[2] ends = {{1, 9}},
         int32[2] zeros32 = {{0, 1}}, int32[2] ends32 = {{1, 9}}, float[1] row = {{0.5}}> {{
            v0 = Identity (x)
            {" ".join(lines)}
            out = Neg (v{len(steps)})
            tapped = Abs (v{min(tap, len(steps))})
        }}""",
        plane=numbers(4, 1, 1),
    )
    try:
        expected = outputs_of(model, {"x": numbers(2, 4, 4, 4)})
    except Exception:  # plane does not broadcast there
        return
    changed, _ = operate(model, ChangeLayout(inputs=("x",), to="NHWC", push=True))
    x = numbers(2, 4, 4, 4).transpose(0, 2, 3, 1)
    assert_same(expected, outputs_of(changed, {"x": np.ascontiguousarray(x)}), 1e-6)
    assert op_types(changed).count("Transpose") <= op_types(model).count("Transpose") + 1


def _frames(*shape: int) -> np.ndarray[Any, np.dtype[np.uint8]]:
    return np.random.default_rng(5).integers(0, 256, shape, np.uint8)


MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


def _prepared(frames: np.ndarray[Any, Any], swap: bool = True) -> Array:
    x = frames[..., ::-1] if swap else frames
    return np.ascontiguousarray(((x / 255 - np.array(MEAN)) / STD).transpose(0, 3, 1, 2)).astype(np.float32)


@pytest.mark.representatives("False-11", "False-20", "False-22")
@pytest.mark.parametrize("opset", [8, 11, 13, 17, 20, 22])
@pytest.mark.parametrize("fold", [False, True])
def test_preprocessing_accepts_a_camera_frame(opset: int, fold: bool) -> None:
    model = _conv(opset)
    camera = AddPreprocessing(mean=MEAN, std=STD, swap_channels=True, fold=fold)
    changed, notes = operate(model, camera)
    [image] = changed.graph.input
    assert image.name == "image"
    assert image.type.tensor_type.elem_type == onnx.TensorProto.UINT8
    assert _dims(image) == ["batch", "H", "W", 3]
    frames = _frames(2, 7, 6, 3)
    assert_same(outputs_of(model, {"image": _prepared(frames)}), outputs_of(changed, {"image": frames}), 1e-5)
    if fold:
        assert op_types(changed) == ["Cast", "Transpose", "Add", "Conv", "Relu"]
        assert any("mean is still subtracted" in note for note in notes)


@pytest.mark.parametrize("bias", [True, False])
def test_everything_folds_into_a_conv_that_does_not_pad(bias: bool) -> None:
    model = parsed(
        f"""<ir_version: 8, opset_import: ["": 17]>
        g (float[1, 3, 8, 8] image) => (float[1, 4, 6, 6] y) {{ y = Conv (image, w{", b" if bias else ""}) }}""",
        w=numbers(4, 3, 3, 3),
        **({"b": numbers(4, seed=1)} if bias else {}),
    )
    changed, _ = operate(model, AddPreprocessing(mean=MEAN, std=STD, swap_channels=True, fold=True))
    assert op_types(changed) == ["Cast", "Transpose", "Conv"]
    frames = _frames(1, 8, 8, 3)
    assert_same(outputs_of(model, {"image": _prepared(frames)}), outputs_of(changed, {"image": frames}), 1e-5)


def test_preprocessing_that_cannot_be_folded_is_reported_and_runs_first() -> None:
    model = parsed(
        '<ir_version: 8, opset_import: ["": 17]> g (float[1, 3, 4, 4] image) => (float[1, 3, 4, 4] y) {y = Neg (image)}'
    )
    changed, notes = operate(model, AddPreprocessing(mean=MEAN, std=STD, fold=True))
    (note,) = notes
    assert "image" in note and "Conv" in note
    frames = _frames(1, 4, 4, 3)
    assert_same([-_prepared(frames, swap=False)], outputs_of(changed, {"image": frames}), 1e-6)


def test_fp16_inputs_are_normalized_in_fp32() -> None:
    model = _conv(dtype="float16")
    changed, _ = operate(model, AddPreprocessing(mean=MEAN, std=STD, swap_channels=True))
    frames = _frames(2, 7, 6, 3)
    prepared = _prepared(frames).astype(np.float16)
    assert_same(outputs_of(model, {"image": prepared}), outputs_of(changed, {"image": frames}), 2e-2)


def test_preprocessing_that_overflows_fp16_is_not_folded() -> None:
    model = parsed(
        """<ir_version: 8, opset_import: ["": 17]>
        g (float16[batch, 3, H, W] image) => (float16[batch, 4, H, W] y) { y = Conv (image, w) }""",
        w=numbers(4, 3, 1, 1, dtype=np.float16),
    )
    changed, notes = operate(model, AddPreprocessing(dtype="uint16", scale=1 / 65535, fold=True))
    (note,) = notes
    assert "uint16" in note and "FP16" in note
    frames = np.full((1, 2, 2, 3), 65535, np.uint16)
    [result] = outputs_of(changed, {"image": frames})
    assert_same(outputs_of(model, {"image": np.ones((1, 3, 2, 2), np.float16)}), [result], 1e-2)


@pytest.mark.representatives("NCHW-18", "NHWC-18", "NHWC-11")
@pytest.mark.parametrize("opset", [11, 13, 17, 18, 22])
@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
def test_images_of_any_size_are_resized(opset: int, layout: Any) -> None:
    model = parsed(
        f"""<ir_version: 8, opset_import: ["": {opset}]>
        g (float[batch, 3, 4, 6] image) => (float[batch, 3, 4, 6] y) {{ y = Identity (image) }}"""
    )
    changed, _ = operate(model, AddPreprocessing(layout=layout, resize_to=(4, 6), scale=1.0))
    dims = ["batch", "image_height", "image_width", 3]
    assert _dims(changed.graph.input[0]) == (dims if layout == "NHWC" else [dims[0], dims[3], *dims[1:3]])
    frames = np.repeat(np.repeat(_frames(2, 4, 6, 3), 2, axis=1), 2, axis=2)  # half as large, each 4 pixels are one
    fed = frames if layout == "NHWC" else np.ascontiguousarray(frames.transpose(0, 3, 1, 2))
    expected = frames[:, ::2, ::2].transpose(0, 3, 1, 2).astype(np.float32)
    assert_same([np.ascontiguousarray(expected)], outputs_of(changed, {"image": fed}), 1e-5)


def test_a_channels_last_model_keeps_its_layout() -> None:
    model = parsed(
        '<ir_version: 8, opset_import: ["": 17]> g (float[1, 4, 5, 3] image) => (float[1, 4, 5, 3] y) {y = Neg (image)}'
    )
    changed, _ = operate(model, AddPreprocessing(model_layout="NHWC", mean=MEAN, std=STD))
    assert op_types(changed) == ["Cast", "Mul", "Add", "Neg"]
    frames = _frames(1, 4, 5, 3)
    expected = -_prepared(frames, swap=False).transpose(0, 2, 3, 1)
    assert_same([np.ascontiguousarray(expected)], outputs_of(changed, {"image": frames}), 1e-6)


@pytest.mark.parametrize(
    "operation",
    [
        AddPreprocessing(input="imag"),
        AddPreprocessing(mean=(1.0, 2.0)),
        AddPreprocessing(resize_to=(8, 8)),
        AddPreprocessing(dtype="float32", layout="NCHW", scale=1.0),
    ],
)
def test_inputs_without_possible_preprocessing_are_reported(
    operation: AddPreprocessing, check_message: CheckMessage
) -> None:
    with pytest.raises(RequestError) as caught:
        operate(_conv(8), operation)
    check_message(caught.value)


def test_an_input_of_integers_is_reported(check_message: CheckMessage) -> None:
    model = parsed(
        '<ir_version: 8, opset_import: ["": 17]> g (uint8[1, 3, 4, 4] x) => (uint8[1, 3, 4, 4] y) {y = Identity (x)}'
    )
    with pytest.raises(RequestError) as caught:
        operate(model, AddPreprocessing())
    check_message(caught.value)


_LOGITS = '<ir_version: 8, opset_import: ["": {}]> g (float[N, 5] x) => (float[N, 5] y) {{ y = Neg (x) }}'


@pytest.mark.parametrize("opset", [8, 11, 13, 17, 20, 22])
def test_class_indices_replace_logits(opset: int) -> None:
    model = parsed(_LOGITS.format(opset))
    changed, _ = operate(model, AddPostprocessing(argmax=True, cast="int32"))
    [output] = changed.graph.output
    assert (output.name, _dims(output)) == ("y", ["N"])
    x = numbers(4, 5)
    assert_same([(-x).argmax(-1).astype(np.int32)], outputs_of(changed, {"x": x}))


@pytest.mark.parametrize("opset", [10, 11, 13, 22])
def test_the_best_classes_of_a_softmax_are_returned(opset: int) -> None:
    changed, _ = operate(parsed(_LOGITS.format(opset)), AddPostprocessing(activation="softmax", top_k=2, keep=True))
    assert [value.name for value in changed.graph.output] == ["y", "y_values", "y_indices"]
    x = numbers(4, 5)
    exponents = np.exp(-x - (-x).max(-1, keepdims=True))
    chances = exponents / exponents.sum(-1, keepdims=True)
    kept, values, indices = outputs_of(changed, {"x": x})
    assert_same([-x], [kept])
    assert_same([-np.sort(-chances)[:, :2]], [values], 1e-6)
    assert_same([np.argsort(-chances)[:, :2]], [indices])


@pytest.mark.parametrize(
    ("kind", "op_type", "operation"),
    [
        ("int64[2, 4]", "Neg", AddPostprocessing(activation="softmax")),
        ("string[2, 4]", "Identity", AddPostprocessing(argmax=True)),
        ("seq(float[2, 4])", "Identity", AddPostprocessing(cast="float16")),
        ("seq(float[1, 2, 2, 4])", "Identity", ChangeLayout(outputs=("y",), to="NHWC")),
    ],
)
def test_outputs_of_other_types_are_reported(
    kind: str, op_type: str, operation: Operation, check_message: CheckMessage
) -> None:
    model = parsed(f'<ir_version: 8, opset_import: ["": 17]> g ({kind} x) => ({kind} y) {{ y = {op_type} (x) }}')
    with pytest.raises(RequestError) as caught:
        operate(model, operation)
    check_message(caught.value)


def test_impossible_postprocessing_is_reported(check_message: CheckMessage) -> None:
    model = parsed(_LOGITS.format(8))
    with pytest.raises(RequestError) as refused:
        operate(model, AddPostprocessing(top_k=2))
    check_message(refused.value)
    with pytest.raises(RequestError) as refused:
        operate(model, AddPostprocessing(argmax=True, axis=2))
    check_message(refused.value)
    with pytest.raises(RequestError) as refused:
        operate(model, AddPostprocessing(activation="softmax", axis=0))
    check_message(refused.value)
    with pytest.raises(RequestError) as refused:
        operate(parsed(_LOGITS.format(17)), AddPostprocessing(top_k=9))
    check_message(refused.value)
    with pytest.raises(ValueError) as invalid:
        AddPostprocessing(argmax=True, top_k=2)
    check_message(invalid.value)


def test_one_of_several_outputs_is_processed_by_its_name(check_message: CheckMessage) -> None:
    model = parsed(
        """<ir_version: 8, opset_import: ["": 17]>
        g (float[N, 5] x) => (float[N, 5] y, float[N, 5] z) { y = Neg (x) z = Abs (x) }"""
    )
    with pytest.raises(RequestError) as caught:
        operate(model, AddPostprocessing(argmax=True))
    check_message(caught.value)
    with pytest.raises(RequestError) as caught:
        operate(model, AddPostprocessing(output="w", argmax=True))
    check_message(caught.value)
    changed, _ = operate(model, AddPostprocessing(output="z", argmax=True))
    x = numbers(4, 5)
    assert_same([-x, np.abs(x).argmax(-1)], outputs_of(changed, {"x": x}))


def test_constants_of_one_element_stay_as_they_are() -> None:
    model = parsed(
        """<ir_version: 8, opset_import: ["": 17]>
        g (float[1, 3, 4, 5] x) => (float[1, 3, 4, 5] y) { a = Mul (x, s) b = Add (a, t) y = Sub (b, c) }""",
        s=np.array(2, np.float32),
        t=numbers(1, 1),
        c=numbers(3, 1, 1),
    )
    changed, _ = operate(model, ChangeLayout(inputs=("x",), outputs=("y",), to="NHWC", push=True))
    assert op_types(changed) == ["Mul", "Add", "Sub"]
    assert sorted(list(weight.dims) for weight in changed.graph.initializer) == [[], [1, 1], [1, 1, 1, 3]]
    x = numbers(1, 3, 4, 5)
    [expected] = outputs_of(model, {"x": x})
    assert_same([expected.transpose(0, 2, 3, 1)], outputs_of(changed, {"x": x.transpose(0, 2, 3, 1)}))
