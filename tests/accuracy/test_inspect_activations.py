"""Inspection of activations: selected tensors, statistics, maps, a reference model, noise, and stopping early."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from onnx import TensorProto, helper, numpy_helper
from PIL import Image
from pydantic import ValidationError

from ndld_flow.accuracy.activations.feeding import with_short_labels
from ndld_flow.accuracy.activations.maps import LARGEST_CODE, encode, finite_bounds, fit, pool, share_out
from ndld_flow.accuracy.activations.selection import ModelView, TensorSelection, choose
from ndld_flow.accuracy.activations.tensor_meter import SharedHistogram
from ndld_flow.accuracy.inside.capture import capture
from ndld_flow.base.errors import ModelError, RequestError, UnknownNameError
from ndld_flow.records.activations import ActivationMap, Activations, CapturedTensor, SampleShown
from ndld_flow.steps.inspect_activations import InspectActivations
from ndld_flow.store.kinds import ActivationsDocument, Onnx
from tests.support.message_files import CheckMessage
from tests.support.models import GraphBuilder, make_cnn, make_ctrl, rename_output, tensor
from tests.support.models_run import Given, Ran, run_step, write_model

Array = npt.NDArray[Any]
CNN: Given = {"x": {"shape": [1, 3, 16, 16]}}
SMALL = "g (float[1, 2, 4, 4] x) => (float[1, 2, 4, 4] y) { a = Neg(x) b = Tanh(a) y = Relu(b) }"


def look(
    folder: Path, model: Path | str, inputs: Given | None = None, reference: Path | str | None = None, **settings: Any
) -> tuple[Ran, Activations]:
    folder.mkdir(exist_ok=True)
    path = write_model(folder / "candidate.onnx", model) if isinstance(model, str) else model
    artifacts = {}
    if reference is not None:
        other = write_model(folder / "reference.onnx", reference) if isinstance(reference, str) else reference
        artifacts = {"reference": Onnx(other, "source", "digest")}
        settings = {"reference": "source", **settings}
    ran = run_step(InspectActivations, path, folder / "ran", settings, inputs, artifacts=artifacts)
    return ran, Activations.model_validate_json((ran.out / ActivationsDocument.main).read_text())


def named(activations: Activations) -> dict[str, CapturedTensor]:
    return {tensor.tensor: tensor for tensor in activations.tensors}


def codes(out: Path, shown: ActivationMap) -> Array:
    raw = np.frombuffer((out / shown.file).read_bytes(), "<u2")
    return raw.reshape(shown.channels, shown.height, shown.width)


def decoded(out: Path, shown: ActivationMap) -> Array:
    """Decode the codes as the record documents."""
    raw = codes(out, shown)
    values = shown.low + raw * ((shown.high - shown.low) / 65532)
    return np.select([raw == 65535, raw == 65534, raw == 65533], [np.nan, np.inf, -np.inf], values)


# Maps


@settings(max_examples=25)
@given(hnp.arrays(np.float32, st.tuples(*[st.integers(1, 5)] * 3), elements=st.floats(width=32)))
def test_codes_are_accurate_to_half_a_step(values: Array) -> None:
    low, high = finite_bounds([values])
    read = encode(values, low, high).astype(np.float64)
    for code, value in zip(read.flat, values.astype(np.float64).flat, strict=True):
        if math.isfinite(value):
            assert code <= LARGEST_CODE
            assert abs(low + code * ((high - low) / 65532) - value) <= (high - low) / 65532 * 0.5001
        else:
            assert code == (65535 if math.isnan(value) else 65534 if value > 0 else 65533)


@settings(max_examples=25)
@given(
    st.tuples(st.integers(1, 3), st.integers(1, 9), st.integers(1, 9)).flatmap(
        lambda shape: st.tuples(*[hnp.arrays(np.float32, shape, elements=st.floats(width=32))] * 2)
    ),
    st.integers(1, 12),
)
def test_pooling_picks_the_same_elements_on_both_sides(sides: tuple[Array, Array], scale: int) -> None:
    ours, theirs = pool(sides, scale)
    weight = [np.where(np.isnan(side), np.inf, np.abs(side)) for side in sides]
    for channel, row, column in np.ndindex(ours.shape):
        block = (channel, slice(row * scale, (row + 1) * scale), slice(column * scale, (column + 1) * scale))
        pairs = list(zip(sides[0][block].flat, sides[1][block].flat, strict=True))
        shown = (ours[channel, row, column], theirs[channel, row, column])
        assert any(np.array_equal(shown, pair, equal_nan=True) for pair in pairs)
        largest = max(weight[0][block].max(), weight[1][block].max())
        assert max(math.inf if math.isnan(value) else abs(value) for value in shown) == largest


@settings(max_examples=25)
@given(
    st.tuples(st.integers(0, 300), st.integers(0, 400), st.integers(0, 400)),
    st.integers(1, 128),
    st.integers(1, 300),
    st.integers(0, 100_000),
)
def test_a_map_fits_its_size_limit(shape: tuple[int, int, int], channels: int, side: int, most: int) -> None:
    size = fit(shape, channels, side, most)
    assert size.size <= most
    assert size.channels <= min(shape[0], channels)
    assert max(size.height, size.width) <= side
    assert (size.height - 1) * size.scale < shape[1] or not shape[1]
    assert size.height * size.scale >= shape[1]
    assert size.channels or not shape[0] or most < 2


def test_maps_are_as_large_as_the_limit_allows() -> None:
    assert fit((3, 100, 80), 64, 256, 10**9) == fit((3, 100, 80), 64, 100, 10**9)
    assert fit((3, 100, 80), 64, 256, 10**9).scale == 1
    assert fit((3, 512, 80), 64, 256, 10**9).scale == 2
    assert (fit((8, 64, 64), 64, 256, 3 * 64 * 64 * 2)).channels == 3
    assert fit((1, 1, 10**7), 64, 256, 10**9).width == 256


@settings(max_examples=25)
@given(st.lists(st.integers(0, 1000), max_size=8), st.integers(0, 5000))
def test_bytes_are_divided_evenly(sizes: list[int], total: int) -> None:
    most = share_out(sizes, total)
    assert sum(min(size, most) for size in sizes) <= total or not most
    cut = [size for size in sizes if size > most]
    if cut:  # one more byte for each of these would be too much
        assert sum(min(size, most + 1) for size in sizes) > total


def test_shown_values_are_the_computed_values(tmp_path: Path) -> None:
    values = np.linspace(-2, 2, 32, dtype=np.float32).reshape(1, 2, 4, 4)
    np.save(tmp_path / "x.npy", values)
    ran, result = look(tmp_path / "a", SMALL, {"x": {"data": str(tmp_path / "x.npy")}}, tensors=["*"], arrays=True)
    assert [tensor.tensor for tensor in result.tensors] == ["x", "a", "b", "y"]
    assert [(tensor.position, tensor.op_type) for tensor in result.tensors] == [
        (-1, "Input"),
        (0, "Neg"),
        (1, "Tanh"),
        (2, "Relu"),
    ]
    for name, right in {"x": values, "a": -values, "b": np.tanh(-values), "y": np.maximum(np.tanh(-values), 0)}.items():
        (shown,) = named(result)[name].maps
        assert (shown.channels, shown.height, shown.width, shown.scale, shown.side) == (2, 4, 4, 1, "candidate")
        assert (shown.channel_numbers, shown.total_channels) == ((), 2)
        assert np.allclose(decoded(ran.out, shown), right[0], atol=4 / 65532)
        assert np.allclose(np.load(ran.out / shown.array_file), right, atol=1e-6)
        assert named(result)[name].range.maximum == pytest.approx(right.max())
        assert [channel.mean for channel in named(result)[name].channels] == pytest.approx(
            right.mean((0, 2, 3)), abs=1e-6
        )


def test_both_sides_of_a_map_can_be_subtracted(tmp_path: Path) -> None:
    wider = SMALL.replace("Neg(x)", "Mul(x, two)").replace("y) {", "y) <float two = {2.0}> {")
    ran, result = look(tmp_path / "a", wider, {"x": {}}, reference=SMALL, tensors=["a"], arrays=True)
    mine, other = result.tensors[0].maps
    assert (mine.side, other.side, mine.sample, other.sample) == ("candidate", "reference", 0, 0)
    assert (mine.low, mine.high) == (other.low, other.high)
    difference = np.load(ran.out / mine.array_file) - np.load(ran.out / other.array_file)
    shown = (codes(ran.out, mine).astype(float) - codes(ran.out, other)) * (mine.high - mine.low) / 65532
    assert np.allclose(shown, difference[0], atol=(mine.high - mine.low) / 65532)
    assert result.tensors[0].channels[0].difference_rms == pytest.approx(np.sqrt(np.mean(difference[0, 0] ** 2)))


def test_channels_that_differ_most_are_shown_first(tmp_path: Path) -> None:
    changed = np.ones(200, np.float32)
    changed[[3, 77, 150]] = 5
    scales = [_scaled(tmp_path / f"{i}.onnx", scale) for i, scale in enumerate((changed, np.ones(200, np.float32)))]
    _, result = look(tmp_path / "a", scales[0], {"x": {}}, reference=scales[1], tensors=["y"], channels=3)
    shown = result.tensors[0].maps[0]
    assert (shown.channel_numbers, shown.total_channels) == ((3, 77, 150), 200)
    assert (result.tensors[0].channels_by, result.tensors[0].channel_count) == ("difference", 200)
    assert [channel.channel for channel in result.tensors[0].channels] == list(range(200))
    changed[[3, 77, 150]] = 0
    _, alone = look(tmp_path / "b", _scaled(tmp_path / "c.onnx", changed), {"x": {}}, tensors=["y"], channels=197)
    assert alone.tensors[0].channels_by == "energy"
    assert not {3, 77, 150} & set(alone.tensors[0].maps[0].channel_numbers)


def _scaled(path: Path, scale: Array) -> Path:
    graph = helper.make_graph(
        [helper.make_node("Mul", ["x", "s"], ["y"])],
        "g",
        [tensor("x", [1, 200, 4, 4])],
        [tensor("y", [1, 200, 4, 4])],
        [numpy_helper.from_array(scale.reshape(200, 1, 1), "s")],
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    return path


def test_maps_stay_within_their_byte_limit(tmp_path: Path) -> None:
    b = GraphBuilder()
    rename_output(b, b.op("MaxPool", b.op("Conv", "x", b.weight(8, 3, 3, 3)), kernel_shape=[2, 2], strides=[2, 2]), "y")
    onnx.save(b.model([tensor("x", [1, 3, 130, 130])], [tensor("y", [1, 8, 64, 64])]), tmp_path / "m.onnx")
    ran, result = look(tmp_path / "a", tmp_path / "m.onnx", {"x": {}}, every=1, map_bytes="100 KiB")
    sizes = [path.stat().st_size for path in (ran.out / "maps").iterdir()]
    assert 80_000 < sum(sizes) <= 100 * 1024
    assert len(sizes) == len(result.tensors) == 2
    _, small = look(tmp_path / "b", tmp_path / "m.onnx", {"x": {}}, every=1, map_side=10)
    assert [(tensor.maps[0].width, tensor.maps[0].scale) for tensor in small.tensors] == [(10, 13), (10, 7)]


def test_samples_of_different_sizes_share_the_byte_limit(tmp_path: Path) -> None:
    for number, (width, height) in enumerate([(20, 30), (300, 280), (290, 285)]):
        Image.new("RGB", (width, height), (number, 80, 250)).save(tmp_path / f"{number}.png")
    text = "g (float[1, 3, H, W] x) => (float[1, 3, H, W] y) { y = Relu(x) }"
    inputs: Given = {"x": {"data": str(tmp_path / "*.png")}}
    ran, result = look(tmp_path / "a", text, inputs, reference=text, map_bytes="60 kB")
    shown = named(result)["y"].maps[::2]
    assert [(item.full_height, item.full_width) for item in shown] == [(30, 20), (280, 300), (285, 290)]
    assert shown[0].scale == 1
    assert shown[1].scale == shown[2].scale > 1
    sizes = [path.stat().st_size for path in (ran.out / "maps").iterdir()]
    assert 30_000 < sum(sizes) <= 60_000


def test_repeated_runs_write_equal_bytes(tmp_path: Path) -> None:
    asked: dict[str, Any] = {"reference": SMALL, "noise": {"deviation": 0.1}, "samples": 2}
    folders = [look(tmp_path / name, SMALL, {"x": {}}, **asked)[0].out for name in "ab"]
    files = [{path.relative_to(out): path.read_bytes() for path in out.rglob("*") if path.is_file()} for out in folders]
    assert files[0] == files[1]
    assert len(files[0]) > 10


# Which tensors


@pytest.fixture(scope="module")
def cnn(tmp_path_factory: pytest.TempPathFactory) -> ModelView:
    model = make_cnn(tmp_path_factory.mktemp("cnn") / "m.onnx")
    return ModelView(model, {"x": (1, 3, 16, 16)})


def test_layers_across_the_whole_model_are_chosen_by_default(
    cnn: ModelView, tmp_path: Path, check_message: CheckMessage
) -> None:
    names = choose(cnn, TensorSelection())
    assert names[0] == "x"
    assert "y" in names
    assert {"Conv_0_out", "BatchNormalization_9_out", "MatMul_32_out"} <= set(names)
    assert not any("Constant" in name or "Shape" in name for name in names)
    globbed = choose(cnn, TensorSelection(["*_1?_out", "Constant_18_out"]))
    assert [name for name in globbed if "Constant" in name] == ["Constant_18_out"]
    with pytest.raises(RequestError) as caught:
        choose(cnn, TensorSelection(["Constant*"]))
    check_message(caught.value)
    chain = " ".join(f"a{i + 1} = Exp(a{i})" for i in range(50))
    long = f"g (float[4] x, int64[1] i) => (float[1] y) {{ a0 = Gather(x, i) {chain} y = Neg(a50) }}"
    _, large = look(tmp_path / "b", long, {})
    assert len(large.tensors) == 33
    assert (large.tensors[0].tensor, large.tensors[-1].tensor) == ("x", "y")
    assert [tensor.position for tensor in large.tensors] == sorted(tensor.position for tensor in large.tensors)
    assert "i" not in named(large)


def test_with_a_reference_tensors_of_both_models_are_chosen(tmp_path: Path) -> None:
    other = SMALL.replace("a = Neg(x) b = Tanh(a)", "renamed = Neg(x) b = Tanh(renamed)")
    _, result = look(tmp_path / "a", SMALL, {"x": {}}, reference=other)
    assert list(named(result)) == ["x", "b", "y"]
    assert len(result.divergence) == 3


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"tensors": ["Conv_0_out"]}, {"Conv_0_out"}),
        ({"tensors": ["Conv_?_out"]}, {"Conv_0_out", "Conv_4_out", "Conv_8_out"}),
        ({"tensors": ["/^Relu_.$/"]}, {"Relu_3_out", "Relu_7_out"}),
        ({"tensors": ["MatMul_32", "x"]}, {"MatMul_32_out", "x"}),
        ({"op_types": ["MaxPool", "Softmax"]}, {"MaxPool_12_out", "y"}),
        ({"tensors": ["x"], "op_types": ["Softmax"]}, {"x", "y"}),
    ],
)
def test_tensors_are_selected(settings: dict[str, Any], expected: set[str], cnn: ModelView) -> None:
    assert set(choose(cnn, TensorSelection(settings.get("tensors", ()), settings.get("op_types", ())))) == expected


def test_tensors_are_selected_by_name_and_by_operator(tmp_path: Path) -> None:
    _, result = look(tmp_path / "a", SMALL, {"x": {}}, tensors=["x"], op_types=["Tanh"])
    assert list(named(result)) == ["x", "b"]


def test_every_nth_tensor_is_selected(tmp_path: Path) -> None:
    _, result = look(tmp_path / "a", SMALL, {"x": {}}, every=2)
    assert list(named(result)) == ["b"]
    _, result = look(tmp_path / "b", SMALL, {"x": {}}, every=1)
    assert list(named(result)) == ["a", "b", "y"]


@pytest.mark.parametrize(
    "settings",
    [
        {"tensors": ["Conv_0_ouf"]},
        {"op_types": ["Convv"]},
        {"until": "Relu_33"},
        {"noise": {"deviation": 1, "inputs": ["z"]}},
        {"layout": {"Conv_0_ouf": "NHWC"}},
        {"layout": {"Conv_0_out": "NLC"}},
        {"data": {"z": "zeros"}},
    ],
)
def test_names_without_a_match_are_refused(
    settings: dict[str, Any], tmp_path: Path, check_message: CheckMessage
) -> None:
    with pytest.raises(RequestError) as caught:
        look(tmp_path / "a", make_cnn(tmp_path / "m.onnx"), CNN, **settings)
    check_message(caught.value)


def test_tensors_in_bodies_are_refused(tmp_path: Path, check_message: CheckMessage) -> None:
    model = make_ctrl(tmp_path / "m.onnx")
    inner = next(
        attribute.g.node[0].output[0]
        for node in onnx.load(model).graph.node
        for attribute in node.attribute
        if attribute.type == onnx.AttributeProto.GRAPH
    )
    with pytest.raises(RequestError) as caught:
        look(tmp_path / "a", model, {}, tensors=[inner])
    check_message(caught.value)


def test_values_that_are_not_numeric_tensors_are_skipped_and_reported(tmp_path: Path) -> None:
    model = """g (float[4] x) => (float[2] y) <int64 i = {1}, int64 n = {2}>
        { s = SplitToSequence(x, n) p = SequenceAt(s, i) y = Neg(p) }"""
    _, result = look(tmp_path / "a", model, {"x": {}}, tensors=["s", "p"])
    assert list(named(result)) == ["p"]
    assert any(note.startswith("s (SplitToSequence)") for note in result.notes)


# What is told of them


def test_nan_infinity_and_overflow_are_counted(tmp_path: Path) -> None:
    values = np.array([[-1.0, 0.0, 1.0, 4.0], [0.5, 2.0, -3.0, 9.0]], np.float32)
    np.save(tmp_path / "x.npy", values)
    text = """g (float[2, 4] x) => (float[2, 4] y) <float low = {0.0}, float high = {3.0}>
        { log = Log(x) clip = Clip(x, low, high) soft = Sigmoid(x) big = Exp(x) y = Identity(x) }"""
    inputs: Given = {"x": {"data": str(tmp_path / "x.npy")}}
    ran, outcome = look(tmp_path / "a", text, inputs, tensors=["*"])
    result = named(outcome)
    assert (result["log"].range.nan_count, result["log"].range.inf_count) == (2, 1)
    assert outcome.first_nonfinite == "log"
    assert result["clip"].saturated == 2  # at 3; a Clip from 0 is a Relu
    assert result["soft"].saturated == 0
    assert ran.result.metrics == {
        "tensors": 6,
        "nan": 2,
        "inf": 1,
        "saturated": 2,
    }
    assert ran.result.passed
    assert "2 NaN, 1 infinite, 2 saturated, first" in ran.result.summary
    for number, (fail_on, passed) in enumerate([(["nan"], False), (["inf"], False), (["saturated"], False)]):
        assert look(tmp_path / str(number), text, inputs, tensors=["*"], fail_on=fail_on)[0].result.passed is passed
    fine, _ = look(tmp_path / "fine", text, inputs, tensors=["soft"], fail_on=["nan", "inf", "saturated"])
    assert fine.result.passed


def test_values_clipped_by_quantization_count_as_saturated(tmp_path: Path) -> None:
    text = """g (float[4] x) => (uint8[4] y) <float s = {1.0}, uint8 z = {0}> { y = QuantizeLinear(x, s, z) }"""
    np.save(tmp_path / "x.npy", np.array([-5, 7, 300, 400], np.float32))
    _, result = look(tmp_path / "a", text, {"x": {"data": str(tmp_path / "x.npy")}}, tensors=["y"])
    assert (result.tensors[0].dtype, result.tensors[0].saturated) == ("uint8", 3)


@settings(max_examples=15)
@given(
    st.lists(
        st.tuples(*[hnp.arrays(np.float32, st.integers(1, 20), elements=st.floats(width=32))] * 2),
        min_size=1,
        max_size=4,
    )
)
def test_histograms_of_both_sides_use_the_same_bins(samples: Sequence[tuple[Array, Array]]) -> None:
    meter = SharedHistogram(2)
    for sample in samples:
        meter.add(*sample)
    histograms = meter.histograms()
    assert (histograms[0].low, histograms[0].high) == (histograms[1].low, histograms[1].high)
    for side, histogram in enumerate(histograms):
        values = np.concatenate([sample[side] for sample in samples]).astype(np.float64)
        values = values[np.isfinite(values)]
        assert sum(histogram.counts) == values.size
        edges = np.linspace(histogram.low, histogram.high, 65)
        slack = (histogram.high - histogram.low) * 1e-9
        for count, low, high in zip(histogram.counts, edges, edges[1:], strict=False):
            sure = np.count_nonzero((values > low + slack) & (values < high - slack))
            perhaps = np.count_nonzero((values >= low - slack) & (values <= high + slack))
            assert sure <= count <= perhaps


def test_a_histogram_stays_accurate_when_a_later_sample_is_wider() -> None:
    meter = SharedHistogram(1)
    meter.add(np.array([0.0, 1.0]))
    meter.add(np.array([-0.01, 1.01]))
    (histogram,) = meter.histograms()
    assert -0.03 < histogram.low <= -0.01
    assert 1.01 <= histogram.high < 1.1


def test_dimension_roles_are_guessed_from_operators_and_can_be_set(tmp_path: Path) -> None:
    b = GraphBuilder()
    conv = b.op("Conv", "x", b.weight(4, 3, 3, 3), pads=[1, 1, 1, 1])
    relu = b.op("Relu", conv)
    turned = b.op("Sigmoid", b.op("Transpose", relu, perm=[0, 2, 3, 1]))
    back = b.op("Transpose", turned, perm=[0, 3, 1, 2])
    rows = b.op("Flatten", back)
    long = b.op("Unsqueeze", b.op("MatMul", rows, b.weight(4 * 8 * 6, 5)), b.ints(0))
    tokens = b.op("MatMul", long, b.weight(5, 7))
    rename_output(b, tokens, "y")
    model = tmp_path / "m.onnx"
    onnx.save(b.model([tensor("x", [1, 3, 8, 6])], [tensor("y", [1, 1, 7])]), model)
    ran, outcome = look(tmp_path / "a", model, {"x": {}}, every=1)
    layouts = {name: item.layout for name, item in named(outcome).items()}
    expected = {conv: "NCHW", relu: "NCHW", turned: "NHWC", back: "NCHW", rows: "NC", "y": "NLC"}
    assert {name: layouts[name] for name in expected} == expected
    shown = named(outcome)[turned].maps[0]
    assert (shown.channels, shown.height, shown.width) == (4, 8, 6)
    assert np.array_equal(codes(ran.out, shown), codes(ran.out, named(outcome)[back].maps[0]))
    sound = """g (float[1, 3, 9] x, float[3, 1, 1] w, float[9, 9] v) => (float[1, 3, 9] y)
        { c = Conv<group = 3>(x, w) y = MatMul(c, v) }"""
    _, flat = look(tmp_path / "c", sound, {}, every=1)
    assert [tensor.layout for tensor in flat.tensors] == ["NCL", "NLC"]
    _, result = look(tmp_path / "b", model, {"x": {}}, tensors=[relu], layout={"*": "NHWC"})
    assert (result.tensors[0].maps[0].channels, result.tensors[0].channel_count) == (6, 6)


def test_every_rank_and_dtype_has_a_map(tmp_path: Path) -> None:
    text = """g (float[2, 3] x, int32[5] i, bool[1] f) => (float[2, 3] y, int32[5] j, bool[1] h, float z, float[0] e)
        <float zero = {0.0}, int64[1] none = {0}> { y = Neg(x) j = Neg(i) h = Not(f) z = ReduceSum<keepdims: int = 0>(x)
        e = ConstantOfShape(none) }"""
    ran, outcome = look(tmp_path / "a", text, {}, tensors=["*"])
    result = named(outcome)
    assert (result["y"].layout, result["j"].layout, result["z"].layout) == ("NC", "flat", "flat")
    assert result["j"].dtype == "int32"
    for name in ("y", "j", "h", "z"):
        assert codes(ran.out, result[name].maps[0]).size == max(1, math.prod(result[name].shape))
    assert codes(ran.out, result["e"].maps[0]).size == 0


# A second model


def _hidden_overflow(path: Path, dtype: type[np.generic]) -> Path:
    """x times 30000, and divided by that again."""
    b = GraphBuilder()
    large = b.initializer(np.array(30000, dtype))
    h = b.op("Div", b.op("Mul", "x", large), large)
    rename_output(b, b.op("Relu", h), "y")
    kind = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    onnx.save(b.model([tensor("x", [1, 1, 2, 2], kind)], [tensor("y", [1, 1, 2, 2], kind)]), path)
    return path


def test_an_overflow_that_onnxruntime_hides_is_shown(tmp_path: Path) -> None:
    half = _hidden_overflow(tmp_path / "half.onnx", np.float16)
    full = _hidden_overflow(tmp_path / "full.onnx", np.float32)
    np.save(tmp_path / "x.npy", np.array([1, 2, 3, 4], np.float32).reshape(1, 1, 2, 2))
    inputs: Given = {"x": {"data": str(tmp_path / "x.npy")}}
    ran, result = look(tmp_path / "a", half, inputs, reference=full, tensors=["*"])
    assert result.arithmetic == "stored"
    large, back = (tensor.tensor for tensor in result.tensors[1:3])
    assert (result.first_nonfinite, named(result)[large].range.inf_count) == (large, 2)
    assert (named(result)[large].dtype, named(result)[large].reference_dtype) == ("float16", "float32")
    assert [layer.tensor for layer in result.divergence] == ["x", large, back, "y"]
    assert [layer.nonfinite for layer in result.divergence] == [0, 2, 2, 2]
    reference = named(result)[large].reference_range
    assert reference is not None
    assert (reference.beyond_share, result.range_format) == (0.5, "fp16")
    assert codes(ran.out, named(result)[large].maps[0]).reshape(-1).tolist()[2:] == [65534, 65534]
    assert ran.result.metrics["nonfinite"] == 6
    assert re.search(rf"{re.escape(large)}, 2 .*{re.escape(large)} .*source$", ran.result.summary)
    _, native = look(tmp_path / "b", half, inputs, reference=full, tensors=["y"], arithmetic="native")
    assert (native.arithmetic, native.first_nonfinite) == ("native", "")
    _, wide = look(tmp_path / "c", full, inputs, tensors=[large], format="bf16")
    assert (wide.tensors[0].range.beyond_share, wide.range_format) == (0, "bf16")


def test_divergence_is_reported_for_each_tensor(tmp_path: Path) -> None:
    off = SMALL.replace("Tanh(a)", "Sigmoid(a)")
    ran, result = look(tmp_path / "a", off, {"x": {}}, reference=SMALL, tensors=["a", "b", "y"])
    layers = {layer.tensor: layer for layer in result.divergence}
    assert layers["a"].metrics["cosine"] == 1.0
    assert layers["b"].metrics["cosine"] < 0.5
    assert ran.result.metrics["worst.cosine"] == min(layer.metrics["cosine"] for layer in result.divergence)
    assert ran.result.metrics["worst.max_abs"] == max(layer.metrics["max_abs"] for layer in result.divergence)
    assert "furthest from source: " in ran.result.summary
    r, c = (named(result)["b"].reference_histogram, named(result)["b"].histogram)
    assert r is not None
    assert (r.low, r.high) == (c.low, c.high)


def test_unmatched_tensors_and_different_shapes_are_not_compared(tmp_path: Path) -> None:
    other = """g (float[1, 2, 4, 4] x) => (float[2, 16] y) <int64[2] s = {2, 16}>
        { a = Neg(x) c = Tanh(a) y = Reshape(c, s) }"""
    _, result = look(tmp_path / "a", SMALL, {"x": {}}, reference=other, tensors=["*"])
    assert [layer.tensor for layer in result.divergence] == ["x", "a"]
    assert named(result)["b"].reference_range is None
    assert any("2x16 in the reference, 1x2x4x4 here" in note for note in result.notes)
    assert [shown.side for shown in named(result)["y"].maps] == ["candidate"]


def test_models_with_different_inputs_are_refused(tmp_path: Path, check_message: CheckMessage) -> None:
    with pytest.raises(ModelError) as caught:
        look(tmp_path / "a", SMALL, {"x": {}}, reference="g (float[2] x, float[2] z) => (float[2] y) { y = Add(x, z) }")
    check_message(caught.value)


def test_data_larger_than_memory_gives_equal_results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Then the model runs several times, over all samples, before the first sample's tensors are there."""
    result: list[Activations] = []
    for budget in (2**29, 1):
        monkeypatch.setattr(capture, "__defaults__", (budget,))
        _, outcome = look(tmp_path / str(budget), SMALL, {"x": {}}, reference=SMALL, samples=3, tensors=["*"])
        assert {layer.metrics["max_abs"] for layer in outcome.divergence} == {0.0}
        result.append(outcome)
    assert result[0].tensors[0] == result[1].tensors[0]
    for item, other in zip(
        result[0].tensors, result[1].tensors, strict=True
    ):  # kernels are fused in another way: the last bits differ
        assert (item.tensor, item.range.elements) == (other.tensor, other.range.elements)
        assert item.range.maximum == pytest.approx(other.range.maximum, rel=1e-5)
        assert [channel.rms for channel in item.channels] == pytest.approx(
            [channel.rms for channel in other.channels], abs=1e-5
        )


# Stopping early


@pytest.mark.parametrize(
    ("kind", "until", "beside"), [("float", "a", False), ("float16", None, False), ("float16", "a", True)]
)
def test_errors_name_the_user_s_model_and_not_a_temporary_file(
    kind: str, until: str | None, beside: bool, tmp_path: Path, check_message: CheckMessage
) -> None:
    text = f"g ({kind}[2] x, int64[1] i) => ({kind}[1] y) {{ a = Gather(x, i) y = Neg(a) }}"
    fine = f"g ({kind}[2] x, int64[1] i) => ({kind}[1] y) {{ f = Cast<to = 1>(i) a = Cast<to = 1>(x) y = Neg(a) }}"
    models: dict[str, Any] = {"model": fine, "reference": text} if beside else {"model": text}
    with pytest.raises(ModelError) as raised:
        look(tmp_path / "a", inputs={"i": {"data": 7}}, until=until, tensors=["a"], **models)
    given = f"source ({tmp_path}/a/reference.onnx)" if beside else f"candidate ({tmp_path}/a/candidate.onnx)"
    assert given in str(raised.value)
    check_message(raised.value)
    assert "scratch" not in str(raised.value)


@pytest.mark.parametrize("until", ["a", "first"])
def test_nodes_after_the_stop_may_be_broken(until: str, tmp_path: Path, check_message: CheckMessage) -> None:
    nodes = [
        helper.make_node("Neg", ["x"], ["a"], name="first"),
        helper.make_node("Nonsense", ["a"], ["b"], domain="nowhere"),
        helper.make_node("Conv", ["b", "w"], ["y"]),
    ]
    weight = numpy_helper.from_array(np.zeros((1, 7, 1, 1), np.float32), "w")
    graph = helper.make_graph(nodes, "g", [tensor("x", [1, 3, 2, 2])], [tensor("y", None)], [weight])
    imports = [helper.make_opsetid("", 17), helper.make_opsetid("nowhere", 1)]
    onnx.save(helper.make_model(graph, opset_imports=imports, ir_version=8), tmp_path / "m.onnx")
    with pytest.raises(ModelError):
        look(tmp_path / "whole", tmp_path / "m.onnx", {"x": {}})
    _, result = look(tmp_path / "a", tmp_path / "m.onnx", {"x": {}}, until=until)
    assert list(named(result)) == ["x", "a"]
    assert result.stopped_at == until
    with pytest.raises(RequestError) as caught:
        look(tmp_path / "b", tmp_path / "m.onnx", {"x": {}}, until=until, tensors=["b"])
    check_message(caught.value)


def test_branches_before_the_stop_run_and_a_reference_without_it_runs_whole(tmp_path: Path) -> None:
    text = "g (float[4] x) => (float[4] y) { side = Abs(x) a = Neg(x) b = Exp(a) y = Add(b, side) }"
    _, result = look(tmp_path / "a", text, {"x": {}}, until="a", tensors=["*"])
    assert list(named(result)) == ["x", "side", "a"]
    other = "g (float[4] x) => (float[4] y) { side = Abs(x) z = Neg(x) y = Add(z, side) }"
    _, both = look(tmp_path / "b", text, {"x": {}}, reference=other, until="a", tensors=["*"])
    assert [layer.tensor for layer in both.divergence] == ["x", "side"]
    assert "source has no tensor" in str(both.notes)


# Samples and noise


@pytest.fixture
def pictures(tmp_path: Path) -> Path:
    folder = tmp_path / "pictures"
    folder.mkdir()
    for number in range(3):
        pixels = np.random.default_rng(number).integers(0, 256, (16, 16, 3), np.uint8)
        Image.fromarray(pixels).save(folder / f"{number}.png")
    return folder


def test_all_samples_are_counted_and_the_first_are_shown(pictures: Path, tmp_path: Path) -> None:
    inputs: Given = {
        "x": {"shape": [1, 3, 16, 16], "data": str(pictures), "mean": [0.5, 0.4, 0.3], "std": [0.2, 0.3, 0.5]}
    }
    ran, result = look(tmp_path / "a", make_cnn(tmp_path / "m.onnx"), inputs, tensors=["x"], shown=2)
    assert [sample.label for sample in result.samples] == ["0.png", "1.png", "2.png"]
    assert [sample.picture for sample in result.samples] == ["samples/0.png", "samples/1.png", ""]
    assert [shown.sample for shown in result.tensors[0].maps] == [0, 1]
    assert result.tensors[0].range.elements == 3 * 3 * 16 * 16
    assert sum(result.tensors[0].histogram.counts) == 3 * 3 * 16 * 16
    for number in range(2):
        fed = np.asarray(Image.open(ran.out / f"samples/{number}.png")).astype(int)
        assert np.abs(fed - np.asarray(Image.open(pictures / f"{number}.png"))).max() <= 1
    assert ran.told[-1][:2] == (2, 3)


def test_samples_of_distant_folders_have_short_labels(pictures: Path, tmp_path: Path) -> None:
    (tmp_path / "b" / "0").mkdir(parents=True)
    Image.new("RGB", (16, 16)).save(tmp_path / "b" / "0" / "z.png")
    text = "g (float[1, 3, 16, 16] x) => (float[1, 3, 16, 16] y) { y = Relu(x) }"
    inputs: Given = {"x": {"data": [str(pictures / "0.png"), str(tmp_path / "b/0/z.png")]}}
    _, result = look(tmp_path / "a", text, inputs, tensors=["x"])
    assert [sample.label for sample in result.samples] == ["0.png", "z.png"]
    assert str(pictures) in result.samples[0].inputs["x"]


@pytest.mark.parametrize(
    ("labels", "short"),
    [
        (["c/a/1.png", "c/b/1.png", "2.png"], ["a/1.png", "b/1.png", "2.png"]),
        (["a/k.npy row 0", "a/k.npy row 1"], ["k.npy row 0", "k.npy row 1"]),
        (["p/a.png, q/0.npy", "p/b.png, q/0.npy"], ["a.png, 0.npy", "b.png, 0.npy"]),
        (["p/a.png, b.png", "p/c.png"], ["p/a.png, b.png", "p/c.png"]),
        (["a/x.png", "a/x.png"], ["x.png", "x.png"]),
        ([], []),
    ],
)
def test_labels_are_shortened_while_they_stay_distinct(labels: list[str], short: list[str]) -> None:
    shown = with_short_labels([SampleShown(label=label, inputs={}) for label in labels])
    assert [sample.label for sample in shown] == short


def test_only_image_inputs_have_thumbnails_and_they_are_small(tmp_path: Path) -> None:
    Image.new("L", (1200, 700), 200).save(tmp_path / "wide.png")
    text = "g (uint8[1, H, W, 1] x) => (uint8[1, H, W, 1] y) { y = Identity(x) }"
    ran, result = look(tmp_path / "a", text, {"x": {"data": str(tmp_path / "wide.png"), "layout": "NHWC"}})
    with Image.open(ran.out / result.samples[0].picture) as image:
        assert (image.size, image.mode, image.getpixel((0, 0))) == ((512, 299), "L", 200)
    loader = tmp_path / "load.py"
    loader.write_text(
        "import numpy as np\ndef samples():\n    yield {'x': np.full((1, 3, 16, 16), 0.25, np.float32)}\n"
    )
    ran, result = look(tmp_path / "c", make_cnn(tmp_path / "m.onnx"), CNN, tensors=["x"], loader=str(loader), samples=1)
    with Image.open(ran.out / result.samples[0].picture) as image:
        assert (image.size, image.getpixel((0, 0))) == ((16, 16), (64, 64, 64))
    Image.new("RGB", (16, 16), (10, 20, 200)).save(tmp_path / "blue.png")
    given: Given = {
        "x": {"data": str(tmp_path / "blue.png"), "color": "bgr", "scale": 2.0, "mean": [100.0], "std": [3.0]}
    }
    ran, result = look(tmp_path / "d", make_cnn(tmp_path / "m.onnx"), given, tensors=["x"])
    with Image.open(ran.out / result.samples[0].picture) as image:
        assert image.getpixel((0, 0)) == (10, 20, 200), "scale, mean, std and the order of colors are undone"
    ran, result = look(tmp_path / "b", make_cnn(tmp_path / "m.onnx"), CNN)
    assert result.samples[0].picture == ""
    assert not (ran.out / "samples").exists()


@pytest.mark.parametrize(
    ("noise", "message"),
    [
        ({"deviation": 0.5, "seed": 3}, "normal, deviation 0.5, seed 3, candidate only"),
        ({"kind": "uniform", "amplitude": 0.25, "applies_to": "both"}, "uniform, amplitude 0.25, seed 0, both models"),
        (
            {"kind": "salt_pepper", "share": "10 %", "inputs": ["x"]},
            "salt_pepper, share 0.1, seed 0, on x, candidate only",
        ),
    ],
)
def test_noise_is_added_to_the_candidate_and_optionally_to_the_reference(
    noise: dict[str, Any], message: str, tmp_path: Path
) -> None:
    text = "g (float[1, 1, 40, 50] x, int64[1] i) => (float[1, 1, 40, 50] y) { f = Cast<to = 1>(i) y = Add(x, f) }"
    values = np.random.default_rng(0).random((1, 1, 40, 50), np.float32)
    np.save(tmp_path / "x.npy", values)
    inputs: Given = {"x": {"data": str(tmp_path / "x.npy")}, "i": {"data": 0}}
    ran, result = look(tmp_path / "a", text, inputs, reference=text, tensors=["*"], noise=noise, arrays=True)
    assert result.noise == message
    assert "with noise" in result.samples[0].inputs["x"]
    assert "noise" not in result.samples[0].inputs["i"]
    largest = {layer.metrics["max_abs"] for layer in result.divergence if layer.tensor in ("x", "y")}
    added = (np.load(ran.out / named(result)["x"].maps[0].array_file) - values).reshape(-1)
    if message.startswith("normal"):
        assert 0.45 < added.std() < 0.55
    elif message.startswith("uniform"):
        assert 0.2 < np.abs(added).max() <= 0.2500001
    else:
        assert 0.07 < np.count_nonzero(added) / added.size < 0.13
    # The two models are the same, so that all they differ by is the noise on one of them.
    expected = 0.0 if noise.get("applies_to") == "both" else np.abs(added).max()
    assert list(largest) == [pytest.approx(expected)] * len(largest)
    other, _ = look(tmp_path / "b", text, inputs, tensors=["x"], noise={**noise, "seed": 9}, arrays=True)
    assert not np.array_equal(
        np.load(other.out / "arrays/0000-0-candidate.npy").reshape(-1) - values.reshape(-1), added
    )


def test_each_sample_has_its_own_noise_on_the_named_inputs_only(tmp_path: Path) -> None:
    text = "g (float[50] x, float[50] z) => (float[50] y) { y = Add(x, z) }"
    noise = {"deviation": 1, "inputs": ["z"]}
    inputs: Given = {"x": {"data": 1}, "z": {"data": 0}}
    ran, _ = look(tmp_path / "a", text, inputs, tensors=["x", "z"], noise=noise, samples=2, arrays=True)
    x, z = ([np.load(ran.out / f"arrays/{i:04}-{sample}-candidate.npy") for sample in (0, 1)] for i in (0, 1))
    assert {float(value) for item in x for value in item} == {1.0}
    assert abs(np.corrcoef(z[0], z[1])[0, 1]) < 0.5


@pytest.mark.parametrize(
    "noise",
    [{}, {"kind": "uniform"}, {"deviation": 0}, {"deviation": 1, "share": 0.1}, {"kind": "salt_pepper", "share": 2}],
)
def test_incomplete_or_contradictory_noise_settings_are_refused(noise: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        InspectActivations.model_validate({"noise": noise})


def test_integers_get_no_noise(tmp_path: Path, check_message: CheckMessage) -> None:
    text = "g (int64[4] x) => (int64[4] y) { y = Neg(x) }"
    with pytest.raises(RequestError) as caught:
        look(tmp_path / "a", text, {}, noise={"deviation": 1})
    check_message(caught.value)
    with pytest.raises(RequestError) as caught:
        look(tmp_path / "b", text, {}, noise={"deviation": 1, "inputs": ["x"]})
    check_message(caught.value)


def test_tensor_names_never_become_file_names(tmp_path: Path) -> None:
    hostile = "../../\x1b[31m<script>\n/etc"
    graph = helper.make_graph(
        [helper.make_node("Exp", ["x"], [hostile]), helper.make_node("Log", [hostile], ["y"])],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [3])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [3])],
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), tmp_path / "m.onnx")
    ran, result = look(tmp_path / "a", tmp_path / "m.onnx", {"x": {"data": 1000}}, tensors=["*"], arrays=True)
    assert hostile in named(result)
    assert result.first_nonfinite == hostile
    assert "\x1b" not in ran.result.summary
    written = [path.relative_to(ran.out).as_posix() for path in ran.out.rglob("*") if path.is_file()]
    assert all(path == ActivationsDocument.main or path.startswith(("maps/0", "arrays/0")) for path in written)


def test_several_stopping_points_are_all_inspected(tmp_path: Path) -> None:
    """The run stops after the last of them, whatever their order; a later node may be invalid."""
    graph = (
        "g (float[1, 2, 4, 4] x) => (float[1, 2, 4, 4] y)"
        " { a = Neg(x) b = Tanh(a) c = Relu(b) d = Nothing(c) y = Relu(d) }"
    )
    _, both = look(tmp_path / "both", graph, until=["c", "a"], tensors=["b"])
    assert list(named(both)) == ["a", "b", "c"]
    assert both.stopped_at == "c, a"
    _, single = look(tmp_path / "one", graph, until="c", tensors=["b"])
    assert list(named(single)) == ["b"]
    with pytest.raises(UnknownNameError) as caught:
        look(tmp_path / "none", graph, until=["a", "z"])
    assert caught.value.name == "z"
