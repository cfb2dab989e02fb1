"""Input values: seeded, from files, from images, checked against the model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from ndld_flow.base.errors import RequestError
from ndld_flow.inputs import InputSpec
from ndld_flow.models.files import model_inputs
from ndld_flow.models.tensors import TensorSpec, fix_dimensions, numpy_dtype
from ndld_flow.samples.feeds import make_feeds, note_assumed
from ndld_flow.samples.wanted_inputs import want_inputs
from tests.support.message_files import CheckMessage
from tests.support.models_run import specs, write_model

X = TensorSpec("x", "float32", ("batch", 3, "h", "w"))


def values(spec: TensorSpec, **asked: Any) -> np.ndarray[Any, Any]:
    return make_feeds([spec], specs({spec.name: asked}))[spec.name].values


def test_free_dimensions_are_one_and_described() -> None:
    feed = make_feeds([X], {})["x"]
    assert feed.values.shape == (1, 3, 1, 1)
    assert feed.description == "random uniform [0, 1), seed 0, float32 1x3x1x1"


def test_assumed_dimensions_are_noted() -> None:
    feeds = make_feeds([X, TensorSpec("k", "int64", ())], {})
    (note,) = note_assumed(feeds)
    assert note.startswith("input x runs at 1x3x1x1,") and "'inputs.x.shape=[batch,3,h,w]'" in note
    assert note_assumed(make_feeds([X], specs({"x": {"shape": [1, 3, 8, 8]}}))) == ()
    mask = TensorSpec("m", "bool", ("batch",))
    assert note_assumed(make_feeds([mask, X], specs({"x": {"shape": [1, 3, 8, 8]}}))) == ()


def test_opt_shape_is_the_one_to_run() -> None:
    assert values(X, min=[1, 3, 8, 8], opt=[2, 3, 16, 16], max=[4, 3, 32, 32]).shape == (2, 3, 16, 16)


def test_a_dimension_named_in_one_input_holds_for_the_others() -> None:
    other = TensorSpec("mask", "bool", ("batch", "h"))
    feeds = make_feeds([other, X], specs({"x": {"shape": [5, 3, 7, 9]}}))
    assert feeds["mask"].values.shape == (5, 7)


def test_equal_seeds_give_equal_values_whatever_else_is_fed() -> None:
    alone = make_feeds([X], {})["x"].values
    beside = make_feeds([TensorSpec("a", "float32", (9,)), X], {})["x"].values
    assert np.array_equal(alone, beside)
    assert not np.array_equal(alone, make_feeds([X], {}, seed=1)["x"].values)
    same_shape = TensorSpec("y", "float32", X.shape)
    assert not np.array_equal(alone, make_feeds([same_shape], {})["y"].values)


FLOATS = ["float16", "float32", "float64", "bfloat16", "float8_e4m3fn", "float8_e5m2"]
INTEGERS = ["int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64", "int4", "uint4"]


@settings(deadline=None, max_examples=20)
@given(
    dtype=st.sampled_from(FLOATS + INTEGERS),
    low=st.integers(0, 6),
    width=st.sampled_from([0.25, 1.0, 1.0]),
    shape=st.lists(st.integers(0, 4), max_size=3),
    seed=st.integers(0, 2**40),
)
def test_random_values_are_in_the_half_open_range(
    dtype: str, low: int, width: float, shape: list[int], seed: int
) -> None:
    spec = TensorSpec("x", dtype, tuple(shape))
    result = make_feeds([spec], {"x": InputSpec(range=(float(low), low + width))}, seed)["x"].values
    assert result.dtype == numpy_dtype(dtype)
    assert result.shape == tuple(shape)
    assert np.all(result.astype(np.float64) >= low)
    assert np.all(result.astype(np.float64) < low + width)


def test_few_bits_never_round_up_to_the_end_of_the_range() -> None:
    result = values(TensorSpec("x", "float8_e5m2", (4096,)))
    assert float(result.astype(np.float32).max()) < 1.0


def test_integers_fill_their_range_and_bools_are_both() -> None:
    ints = values(TensorSpec("i", "int8", (1000,)), range=[-128.0, 128.0])
    assert ints.min() < -120
    assert ints.max() > 120
    assert set(values(TensorSpec("b", "bool", (100,))).tolist()) == {True, False}


def test_zeros_and_ones() -> None:
    assert values(TensorSpec("x", "bfloat16", (2,)), data="ones").tolist() == [1, 1]
    assert values(TensorSpec("x", "bool", (2,)), data="zeros").tolist() == [False, False]


@pytest.mark.parametrize(
    ("spec", "asked"),
    [
        (X, {"shape": [1, 4, 8, 8]}),
        (X, {"shape": [3, 8, 8]}),
        (TensorSpec("x", "float32", None), {}),
        (TensorSpec("x", "complex64", (1,)), {}),
        (TensorSpec("x", "string", (1,)), {"data": "ones"}),
        (X, {"values": [[1.0]]}),
        (TensorSpec("x", "int8", (1,)), {"values": [300]}),
        (TensorSpec("x", "float32", (1,)), {"values": ["a"]}),
        (TensorSpec("x", "seq(tensor(float))", None), {"shape": [1]}),
        (TensorSpec("x", "uint8", (1,)), {"range": [-1.0, 5.0]}),
        (TensorSpec("x", "int32", (1,)), {"range": [0.2, 0.8]}),
        (TensorSpec("x", "float16", (1,)), {"range": [0.0, 1e6]}),
        (TensorSpec("x", "float32", (1,)), {"range": [1.0, 0.0]}),
        (
            TensorSpec("x", "float32", ("n",)),
            {"shape": [2**60]},
        ),
        (TensorSpec("x", "float32", None), {"shape": [1] * 65}),
        (X, {"data": "photo.tiff"}),
        (X, {"data": "missing.npy"}),
        (X, {"data": "missing.png"}),
    ],
)
def test_inputs_that_do_not_fit_are_errors(
    spec: TensorSpec, asked: dict[str, Any], in_folder: Path, check_message: CheckMessage
) -> None:
    with pytest.raises(RequestError) as error:
        values(spec, **asked)
    check_message(error.value)


def test_an_input_that_is_no_tensor_is_named_as_such(check_message: CheckMessage) -> None:
    with pytest.raises(RequestError) as caught:
        want_inputs([TensorSpec("x", "seq(tensor(float))", None)], {}, "m.onnx")
    check_message(caught.value)
    with pytest.raises(RequestError) as caught:
        want_inputs([TensorSpec("x", "float32", None)], {}, "m.onnx")
    check_message(caught.value)


def test_an_unknown_input_names_the_nearest(check_message: CheckMessage) -> None:
    with pytest.raises(RequestError) as error:
        make_feeds([TensorSpec("image", "float32", (1,))], {"imge": InputSpec()}, model="half")
    check_message(error.value)
    assert error.value.exit_code == 2


def test_npy_paths_are_relative_to_the_current_directory(in_folder: Path) -> None:
    np.save("x.npy", np.arange(24, dtype=np.float32).reshape(1, 3, 2, 4))
    feed = make_feeds([X], specs({"x": {"data": "x.npy"}}))["x"]
    assert feed.values[0, 2, 1, 3] == 23
    assert feed.description == "x.npy, float32 1x3x2x4"


def test_sizes_of_a_file_hold_for_inputs_of_the_same_dimension(in_folder: Path) -> None:
    np.save("x.npy", np.zeros((4, 3, 2, 2), np.float32))
    feeds = make_feeds([TensorSpec("m", "int64", ("batch",)), X], specs({"x": {"data": "x.npy"}}))
    assert feeds["m"].values.shape == (4,)


def test_files_are_cast_within_a_family_and_refused_across(in_folder: Path, check_message: CheckMessage) -> None:
    np.save("f64.npy", np.array([1.5, 2.5]))
    np.save("big.npy", np.array([1e9, 1.0], np.float32))
    np.save("i.npy", np.array([300, 1], np.int64))
    half = TensorSpec("x", "float16", (2,))
    feed = make_feeds([half], specs({"x": {"data": "f64.npy"}}))["x"]
    assert feed.values.dtype == np.float16
    assert feed.description == "f64.npy cast, float16 2"
    with pytest.raises(RequestError) as caught:
        values(half, data="big.npy")
    check_message(caught.value)
    with pytest.raises(RequestError) as caught:
        values(half, data="i.npy")
    check_message(caught.value)
    with pytest.raises(RequestError) as caught:
        values(TensorSpec("x", "uint8", (2,)), data="i.npy")
    check_message(caught.value)


def test_a_file_of_another_shape_names_both(in_folder: Path, check_message: CheckMessage) -> None:
    np.save("x.npy", np.zeros((1, 4, 2, 2), np.float32))
    with pytest.raises(RequestError) as caught:
        values(X, data="x.npy")
    check_message(caught.value)
    np.save("x.npy", np.zeros((1, 3, 2, 2), np.float32))
    with pytest.raises(RequestError) as caught:
        values(X, data="x.npy", shape=[1, 3, 4, 4])
    check_message(caught.value)


def test_hostile_and_broken_files_are_refused(in_folder: Path) -> None:
    np.save("pickle.npy", np.array([{"code": 1}], dtype=object), allow_pickle=True)
    np.savez("archive.npz", a=np.zeros(1))
    Path("archive.npz").rename("archive.npy")
    Path("broken.npy").write_bytes(b"\x93NUMPY\x01\x00")
    Path("text.npy").write_text("hello")
    Path("broken.pb").write_bytes(b"\xff\xff\xff")
    Path("folder.npy").mkdir()
    external = onnx.TensorProto(data_type=1, dims=[1], data_location=onnx.TensorProto.EXTERNAL)
    Path("external.pb").write_bytes(external.SerializeToString())
    spec = TensorSpec("x", "float32", (1,))
    for name in ("pickle.npy", "archive.npy", "broken.npy", "text.npy", "broken.pb", "folder.npy", "external.pb"):
        with pytest.raises(RequestError, match=name):
            values(spec, data=name)


@pytest.mark.parametrize("dtype", [np.float32, ml_dtypes.bfloat16, np.int64, np.bool_])
def test_tensor_proto_files(dtype: Any, in_folder: Path) -> None:
    array = np.array([[0, 1, 1]]).astype(dtype)
    Path("x.pb").write_bytes(onnx.numpy_helper.from_array(array).SerializeToString())
    read = values(TensorSpec("x", np.dtype(dtype).name, (1, "n")), data="x.pb")
    assert read.dtype == array.dtype
    assert np.array_equal(read, array)


def write_image(name: str, size: tuple[int, int] = (8, 4), mode: str = "RGB") -> np.ndarray[Any, Any]:
    pixels = np.random.default_rng(0).integers(0, 256, (size[1], size[0], len(mode)), dtype=np.uint8)
    Image.fromarray(pixels.squeeze(), mode if mode != "RGB" else None).save(name)
    return pixels


def test_an_image_keeps_its_size_where_the_model_leaves_it_free(in_folder: Path) -> None:
    pixels = write_image("p.png")
    mean, std = [0.485, 0.456, 0.406], [0.229, 0.224, 0.225]
    result = values(X, data="p.png", mean=mean, std=std)
    assert result.shape == (1, 3, 4, 8)
    expected = (pixels / 255.0 - mean) / std
    np.testing.assert_allclose(result[0].transpose(1, 2, 0), expected, rtol=1e-5, atol=1e-6)


def test_an_image_is_resized_repeated_and_laid_out(in_folder: Path) -> None:
    write_image("p.jpg", (16, 16))
    assert values(X, data="p.jpg", shape=[2, 3, 8, 4]).shape == (2, 3, 8, 4)
    nhwc = TensorSpec("x", "float16", (None, 6, 5, 3))
    result = values(nhwc, data="p.jpg", layout="NHWC")
    assert result.shape == (1, 6, 5, 3)
    assert result.dtype == np.float16
    assert result.min() >= 0
    assert result.max() <= 1


def test_integer_inputs_get_the_pixels_and_gray_models_one_channel(in_folder: Path) -> None:
    pixels = write_image("p.png", mode="L")
    result = values(TensorSpec("x", "uint8", (1, "h", "w")), data="p.png")
    assert np.array_equal(result, pixels.transpose(2, 0, 1))


@pytest.mark.parametrize(
    ("spec", "asked"),
    [
        (TensorSpec("x", "float32", (1, 7, 4, 4)), {}),
        (TensorSpec("x", "float32", (1, 4)), {}),
        (TensorSpec("x", "bool", (1, 3, 4, 4)), {}),
        (X, {"mean": [0.1, 0.2]}),
        (X, {"std": [0.0]}),
    ],
)
def test_images_that_do_not_fit(
    spec: TensorSpec, asked: dict[str, Any], in_folder: Path, check_message: CheckMessage
) -> None:
    write_image("p.png")
    with pytest.raises(RequestError) as caught:
        values(spec, data="p.png", **asked)
    check_message(caught.value)


def test_files_that_are_not_images_are_errors(in_folder: Path, check_message: CheckMessage) -> None:
    Path("p.png").write_bytes(b"not an image")
    with pytest.raises(RequestError) as caught:
        values(X, data="p.png")
    check_message(caught.value)
    write_image("whole.png")
    Path("p.png").write_bytes(Path("whole.png").read_bytes()[:60])
    with pytest.raises(RequestError) as caught:
        values(X, data="p.png")
    check_message(caught.value)


def test_a_batch_replaces_free_first_dimensions_and_repeats_files(in_folder: Path, check_message: CheckMessage) -> None:
    np.save("m.npy", np.array([[1, 2]], np.int64))
    mask = TensorSpec("m", "int64", (None, 2))
    state = TensorSpec("s", "float32", (2, "batch", 4))
    feeds = make_feeds([X, mask, state], specs({"m": {"data": "m.npy"}, "x": {"shape": [1, 3, 8, 8]}}), batch=3)
    assert feeds["x"].values.shape == (3, 3, 8, 8)
    assert feeds["m"].values.tolist() == [[1, 2]] * 3
    assert feeds["s"].values.shape == (2, 3, 4)
    with pytest.raises(RequestError) as caught:
        make_feeds([TensorSpec("x", "float32", (1, 2))], {}, batch=2, model="half")
    check_message(caught.value)


def test_a_models_inputs_are_read_without_its_initializers(tmp_path: Path) -> None:
    graph = "g (float[n, 2] x, int64[] k, float s, float[2] w) => (float[n, 2] y) <float[2] w = {1, 2}> "
    path = write_model(tmp_path / "m.onnx", graph + "{ y = Mul(x, w) }")
    assert model_inputs(path) == (
        TensorSpec("x", "float32", ("n", 2)),
        TensorSpec("k", "int64", None),
        TensorSpec("s", "float32", ()),
    )


def test_a_dimension_of_minus_one_is_free(tmp_path: Path) -> None:
    path = write_model(tmp_path / "m.onnx", "g (float[n, 2] x) => (float[n, 2] y) { y = Relu(x) }")
    model = onnx.load(path)
    for value in (*model.graph.input, *model.graph.output):
        value.type.tensor_type.shape.dim[0].dim_value = -1
    onnx.save(model, path)
    (spec,) = model_inputs(path)
    assert spec.shape == (None, 2)
    assert values(spec, shape=[4, 2]).shape == (4, 2)


def test_fixed_dimensions_must_exist(check_message: CheckMessage) -> None:
    assert fix_dimensions([X], {"h": 8})[0].shape == ("batch", 3, 8, "w")
    with pytest.raises(RequestError) as caught:
        fix_dimensions([X], {"bach": 8})
    check_message(caught.value)


@pytest.mark.parametrize(("dtype", "value"), [("int64", 16000), ("float32", 0.5), ("float16", -2), ("bool", 1)])
def test_a_number_is_every_element(dtype: str, value: float) -> None:
    feeds = make_feeds([TensorSpec("sr", dtype, (2,))], {"sr": InputSpec(data=value)})
    assert feeds["sr"].values.tolist() == [value, value]
    assert f"all {value}" in feeds["sr"].description


@pytest.mark.parametrize(("dtype", "value"), [("int64", 0.5), ("uint8", 256), ("float16", 1e6)])
def test_a_number_the_input_cannot_hold_is_refused(dtype: str, value: float, check_message: CheckMessage) -> None:
    with pytest.raises(RequestError) as caught:
        make_feeds([TensorSpec("sr", dtype, ())], {"sr": InputSpec(data=value)})
    check_message(caught.value)


def test_a_number_for_all_channels_is_a_list_of_one(check_message: CheckMessage) -> None:
    short, long = specs(
        {"x": {"mean": 0.5, "std": 0.25, "pad": 3}, "y": {"mean": [0.5], "std": [0.25], "pad": [3]}}
    ).values()
    assert short == long
    assert short.key_values == long.key_values
    assert short == InputSpec.model_validate_json(short.model_dump_json())
    for wrong in ("0.5", True, [], ["0.5"]):
        with pytest.raises(ValueError) as caught:
            specs({"x": {"mean": wrong}})
        check_message(caught.value)
