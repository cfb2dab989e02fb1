"""Samples to run a model on: which there are, what is in them, and what is refused."""

from __future__ import annotations

import itertools
import json
import tracemalloc
import warnings
import zipfile
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from pydantic import TypeAdapter

from ndld_flow.base.errors import BackendError, RequestError
from ndld_flow.inputs import InputSpecs
from ndld_flow.models.tensors import TensorSpec
from ndld_flow.samples import value_files
from ndld_flow.samples.feeds import make_feeds, note_assumed
from ndld_flow.samples.file_samples import sample_shapes
from ndld_flow.samples.sample_feeds import Samples, make_samples
from ndld_flow.samples.sample_settings import SampleSettings
from tests.support.message_files import CheckMessage
from tests.support.models_run import specs
from tests.support.sample_files import gray, write_animation, write_images, write_test_set, write_video

X = TensorSpec("x", "float32", ("batch", 3, "h", "w"))
K = TensorSpec("k", "float32", (2,))
M = TensorSpec("m", "int64", (1, 2))
needs_video = pytest.mark.skipif(
    find_spec("av") is None, reason="PyAV is not installed: pip install 'ndld-flow[video]'"
)


def samples(*wanted: TensorSpec, inputs: Mapping[str, Mapping[str, Any]] | None = None, **asked: Any) -> Samples:
    """Samples as a recipe would say them."""
    return make_samples(wanted, specs(inputs or {}), SampleSettings.model_validate_json(json.dumps(asked)), "half")


def labels(result: Samples) -> list[str]:
    return [sample.label for sample in result]


def firsts(result: Samples, name: str) -> list[float]:
    """The first element of each sample's values."""
    return [float(sample.feeds[name].values.flat[0]) for sample in result]


def refused(*wanted: TensorSpec, **asked: Any) -> RequestError:
    with pytest.raises(RequestError) as caught:
        list(samples(*wanted, **asked))
    return caught.value


def test_random_samples_are_seeded_one_by_one() -> None:
    result = samples(K, samples=3, seed=5)
    assert labels(result) == ["random, seed 5", "random, seed 6", "random, seed 7"]
    assert len(result) == 3
    assert firsts(result, "k") == [float(make_feeds([K], {}, seed)["k"].values[0]) for seed in (5, 6, 7)]
    assert firsts(result, "k") == firsts(result, "k")
    assert samples(X).notes == note_assumed(make_feeds([X], {}))
    assert labels(samples(K, data={"k": 3}, samples=2)) == ["sample 0", "sample 1"]


def test_each_picture_of_a_folder_is_a_sample(in_folder: Path) -> None:
    write_images(in_folder / "c", {"r10.png": 100, "r9.png": 90})
    result = samples(X, inputs={"x": {"data": "c", "std": [1 / 255]}})
    assert labels(result) == ["r9.png", "r10.png"]
    assert firsts(result, "x") == pytest.approx([90, 100])
    assert result.notes == ()
    assert next(iter(result)).feeds["x"].description == "image c/r9.png as NCHW, float32 1x3x8x8"
    assert make_feeds([X], specs({"x": {"data": "c", "std": [1 / 255]}}))["x"].values.flat[0] == pytest.approx(90)


def test_a_steps_data_replace_the_recipes_and_the_rest_stays(in_folder: Path, check_message: CheckMessage) -> None:
    write_images(in_folder, {"a.png": 10, "b.png": 20})
    inputs = {"x": {"data": "a.png", "mean": [0.5], "shape": [1, 3, 4, 4]}}
    (own,) = samples(X, inputs=inputs, data={"x": "b.png"})
    assert own.label == "b.png"
    assert own.feeds["x"].values.shape == (1, 3, 4, 4)
    assert own.feeds["x"].values.flat[0] == pytest.approx(20 / 255 - 0.5)
    check_message(refused(X, data={"y": "b.png"}))


def test_the_number_of_samples_is_as_requested_or_an_error(in_folder: Path, check_message: CheckMessage) -> None:
    write_images(in_folder / "c", {f"{i}.png": i for i in range(4)})
    Path("c/9.png").write_bytes(b"broken")
    assert labels(samples(X, data={"x": "c"}, samples=2)) == ["0.png", "1.png"]
    check_message(refused(X, data={"x": "c"}))
    Path("c/9.png").unlink()
    check_message(refused(X, data={"x": "c"}, samples=5))


def test_files_of_several_inputs_are_combined_in_order(in_folder: Path) -> None:
    write_images(in_folder / "c", {"a.png": 1, "b.png": 2})
    for i in (0, 1, 2):
        np.save(f"k{i}.npy", np.full(2, i, np.float32))
    result = samples(X, K, data={"x": "c", "k": ["k1.npy", "k0.npy"]})
    assert labels(result) == ["a.png, k1.npy", "b.png, k0.npy"]
    assert firsts(result, "k") == [1, 0]
    shared = samples(X, K, data={"x": "c", "k": "k2.npy"})
    assert labels(shared) == ["a.png, k2.npy", "b.png, k2.npy"]
    assert firsts(shared, "k") == [2, 2]
    words = 'samples: input "x" has 2, "k" has 3. Give the same number to each'
    assert words in str(refused(X, K, data={"x": "c", "k": "k?.npy"}))
    assert words in str(refused(X, K, data={"x": "c", "k": "k?.npy"}, samples=1))


def test_a_single_file_serves_as_many_samples_as_random_inputs_make(
    in_folder: Path, check_message: CheckMessage
) -> None:
    np.save("k.npy", np.ones(2, np.float32))
    result = samples(K, M, data={"k": "k.npy"}, inputs={"m": {"range": [0, 1000]}}, samples=3, seed=1)
    assert labels(result) == ["k.npy, random, seed 1", "k.npy, random, seed 2", "k.npy, random, seed 3"]
    assert firsts(result, "k") == [1, 1, 1]
    assert len(set(firsts(result, "m"))) == 3
    assert labels(samples(K, M, data={"k": "k.npy"})) == ["k.npy"]
    check_message(refused(K, data={"k": "k.npy"}, samples=3))


def test_several_files_that_do_not_fit_are_reported_at_once(in_folder: Path, check_message: CheckMessage) -> None:
    Path("c").mkdir()
    for i in range(6):
        np.save(f"c/{i}.npy", np.zeros(2 if i == 3 else 5, np.float32))
    with pytest.raises(RequestError) as error:
        samples(K, data={"k": "c"})
    message = str(error.value)
    assert [name for name in map(str, range(6)) if f"c/{name}.npy" in message] == ["0", "1", "2"]
    assert message.endswith("; and 2 more files")
    check_message(message)


# Arrays: rows, archives, test data sets


def test_an_array_with_a_dimension_more_is_its_rows(in_folder: Path) -> None:
    np.save("k.npy", np.arange(6, dtype=np.float32).reshape(3, 2))
    result = samples(K, data={"k": "k.npy"})
    assert labels(result) == ["k.npy row 0", "k.npy row 1", "k.npy row 2"]
    assert firsts(result, "k") == [0, 2, 4]
    assert next(iter(result)).feeds["k"].description == "k.npy row 0, float32 2"
    assert make_feeds([K], specs({"k": {"data": "k.npy"}}))["k"].values.tolist() == [0, 1]


def test_a_first_dimension_that_is_fixed_splits_and_one_that_is_free_does_not(
    in_folder: Path, check_message: CheckMessage
) -> None:
    np.save("x.npy", np.arange(4, dtype=np.float32).repeat(3).reshape(4, 3, 1, 1))
    assert labels(samples(X, data={"x": "x.npy"})) == ["x.npy"]
    fixed = {"x": {"shape": [1, 3, 1, 1], "data": "x.npy"}}
    assert labels(samples(X, inputs=fixed)) == [f"x.npy row {i}" for i in range(4)]
    result = samples(X, inputs={"x": {**fixed["x"], "shape": [2, 3, 1, 1]}})
    assert labels(result) == ["x.npy rows 0-1", "x.npy rows 2-3"]
    assert firsts(result, "x") == [0, 2]
    check_message(refused(X, inputs={"x": {**fixed["x"], "shape": [3, 3, 1, 1]}}))
    check_message(refused(X, inputs={"x": {**fixed["x"], "shape": [8, 3, 1, 1]}}))
    np.save("scalar.npy", np.float32(1))
    check_message(refused(K, data={"k": "scalar.npy"}))
    np.save("none.npy", np.zeros((0, 1, 3, 1, 1), np.float32))
    check_message(refused(X, data={"x": "none.npy"}))


def test_a_batch_repeats_the_first_row_only(in_folder: Path, check_message: CheckMessage) -> None:
    m = TensorSpec("m", "int64", (None, 2))
    np.save("m.npy", np.zeros((0, 2), np.int64))
    with pytest.raises(RequestError) as caught:
        make_feeds([m], specs({"m": {"data": "m.npy"}}), batch=3)
    check_message(caught.value)
    np.save("m.npy", np.array([[[1, 2]], [[3, 4]]]))
    assert make_feeds([m], specs({"m": {"data": "m.npy"}}), batch=2)["m"].values.tolist() == [[1, 2], [1, 2]]
    np.save("m.npy", np.array([[1, 2], [3, 4]]))
    fixed = specs({"m": {"data": "m.npy", "shape": [1, 2]}})
    assert make_feeds([m], fixed)["m"].values.tolist() == [[1, 2]]
    assert make_feeds([m], fixed, batch=3)["m"].values.tolist() == [[1, 2], [3, 4], [1, 2]]


@settings(deadline=None, max_examples=20)
@given(
    pattern=st.lists(st.one_of(st.integers(1, 3), st.none()), max_size=3),
    rows=st.integers(1, 4),
    stacked=st.booleans(),
    free=st.integers(1, 3),
)
def test_rows_are_the_concatenated_samples(
    tmp_path_factory: pytest.TempPathFactory, pattern: list[int | None], rows: int, stacked: bool, free: int
) -> None:
    shape = [free if dim is None else dim for dim in pattern]
    pieces = [np.random.default_rng(i).random(shape, np.float32) for i in range(rows)]
    path = tmp_path_factory.mktemp("rows") / "x.npy"
    spec = TensorSpec("x", "float32", tuple(pattern))
    splits = stacked or (pattern and pattern[0] is not None)
    if stacked:
        np.save(path, np.stack(pieces))
    else:
        np.save(path, np.concatenate(pieces) if pattern else pieces[0])
    result = [sample.feeds["x"].values for sample in samples(spec, data={"x": str(path)})]
    if not splits:  # a free first dimension holds them all, and a scalar is one
        assert [array.tolist() for array in result] == [np.load(path).tolist()]
    else:
        assert [array.tolist() for array in result] == [piece.tolist() for piece in pieces]
        assert all(array.shape == tuple(shape) for array in result)


def test_of_an_archive_the_inputs_own_array_is_read(in_folder: Path, check_message: CheckMessage) -> None:
    np.savez("both.npz", k=np.array([[1, 2], [3, 4]], np.float32), m=np.array([[[5, 6]], [[7, 8]]]))
    result = samples(K, M, data={"k": "both.npz", "m": "both.npz"})
    assert labels(result) == ["both.npz row 0", "both.npz row 1"]
    assert firsts(result, "m") == [5, 7]
    np.savez_compressed("one.npz", anything=np.array([1, 2], np.float32))
    assert firsts(samples(K, data={"k": "one.npz"}), "k") == [1]
    check_message(refused(X, data={"x": "both.npz"}))


def test_hostile_and_broken_archives_are_refused(
    in_folder: Path, monkeypatch: pytest.MonkeyPatch, check_message: CheckMessage
) -> None:
    np.savez("pickle.npz", k=np.array([{"code": 1}], dtype=object))
    np.savez("whole.npz", k=np.zeros(2, np.float32))
    Path("cut.npz").write_bytes(Path("whole.npz").read_bytes()[:-30])
    Path("text.npz").write_text("hello")
    with zipfile.ZipFile("empty.npz", "w"):
        pass
    with zipfile.ZipFile("no_npy.npz", "w") as archive:
        archive.writestr("k.npy", "hello")
    with zipfile.ZipFile("lies.npz", "w") as archive, zipfile.ZipFile("whole.npz") as whole:
        archive.writestr("k.npy", whole.read("k.npy").replace(b"(2,)", b"(9,)"))
    damaged = bytearray(Path("whole.npz").read_bytes())
    damaged[120] ^= 0xFF
    Path("damaged.npz").write_bytes(damaged)
    for name in ("pickle", "cut", "text", "empty", "no_npy", "lies", "damaged"):
        check_message(refused(K, data={"k": f"{name}.npz"}))
    monkeypatch.setattr(value_files, "MOST_UNPACKED_BYTES", 2**16)
    np.savez_compressed("bomb.npz", k=np.zeros((100_000, 2), np.float32, order="F"))
    check_message(refused(K, data={"k": "bomb.npz"}))
    with zipfile.ZipFile("lzma.npz", "w", zipfile.ZIP_LZMA) as archive, zipfile.ZipFile("whole.npz") as whole:
        archive.writestr("k.npy", whole.read("k.npy"))
    check_message(refused(K, data={"k": "lzma.npz"}))


@pytest.mark.parametrize("order", ["C", "F"])
def test_slices_of_an_archive_are_those_of_the_array(in_folder: Path, order: Literal["C", "F"]) -> None:
    values = np.asarray(np.arange(24, dtype=np.float32).reshape(6, 4), order=order)
    np.savez_compressed("a.npz", values)
    stored = value_files.open_array(Path("a.npz"), "x")
    for rows in (1, 2, 4):
        slices = list(stored.read(rows))
        assert np.array_equal(np.concatenate(slices), values[: len(slices) * rows])
        assert len(slices) == 6 // rows
    (whole,) = stored.read(0)
    assert np.array_equal(whole, values)


def test_of_an_archive_only_the_samples_asked_for_are_unpacked(in_folder: Path) -> None:
    with zipfile.ZipFile("big.npz", "w", zipfile.ZIP_DEFLATED) as archive, archive.open("k.npy", "w") as file:
        header = {"descr": "<f4", "fortran_order": False, "shape": (2**23, 2)}
        np.lib.format.write_array_header_1_0(file, header)
        for _ in range(64):
            file.write(bytes(2**20))
    tracemalloc.start()
    try:
        result = samples(K, data={"k": "big.npz"}, samples=2)
        assert [sample.feeds["k"].values.tolist() for sample in result] == [[0, 0], [0, 0]]
        assert tracemalloc.get_traced_memory()[1] < 2**22
    finally:
        tracemalloc.stop()


def test_an_array_shorter_than_its_header_is_refused_before_reading(
    in_folder: Path, check_message: CheckMessage
) -> None:
    np.save("k.npy", np.zeros(2, np.float32))
    Path("huge.npy").write_bytes(Path("k.npy").read_bytes().replace(b"(2,), }            ", b"(9999999999999,), }"))
    check_message(refused(K, data={"k": "huge.npy"}))
    Path("minus.npy").write_bytes(Path("k.npy").read_bytes().replace(b"(2,), } ", b"(-2,), }"))
    check_message(refused(K, data={"k": "minus.npy"}))


def test_large_arrays_are_mapped(in_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(value_files, "_MAPPED_FROM_BYTES", 0)
    np.save("k.npy", np.arange(6, dtype=np.float32).reshape(3, 2))
    result = samples(K, data={"k": "k.npy"})
    assert firsts(result, "k") == [0, 2, 4]
    assert not isinstance(next(iter(result)).feeds["k"].values, np.memmap)


def test_other_dtypes_are_refused_naming_the_sample(in_folder: Path, check_message: CheckMessage) -> None:
    np.save("i.npy", np.zeros((3, 2), np.int64))
    check_message(refused(K, data={"k": "i.npy"}))
    np.save("d.npy", np.array([[1.0, 2.0], [1e300, 0.0]]))
    check_message(refused(K, data={"k": "d.npy"}))


def test_a_test_data_set_has_each_inputs_values_by_number(in_folder: Path, check_message: CheckMessage) -> None:
    for i in (0, 1, 10):
        write_test_set(in_folder / f"m/test_data_set_{i}", np.full(2, i, np.float32), np.full((1, 2), 100 + i))
    result = samples(K, M, data={"k": "m", "m": "m"})
    assert labels(result) == ["test_data_set_0", "test_data_set_1", "test_data_set_10"]
    assert (firsts(result, "k"), firsts(result, "m")) == ([0, 1, 10], [100, 101, 110])
    check_message(refused(K, M, X, data={"x": "m/test_data_set_0"}))
    check_message(refused(TensorSpec("k", "float32", (3,)), data={"k": "m"}))


def test_a_folder_with_a_file_for_each_input_has_its_values(in_folder: Path) -> None:
    """As the input data folder of Nsight DL Designer."""
    Path("data").mkdir()
    for name, dtype, shape in (("a", "f4", (2,)), ("k", "f4", (2,)), ("m", "i8", (1, 2))):
        tensor = onnx.numpy_helper.from_array(np.full(shape, ord(name), dtype))
        Path(f"data/{name}.pb").write_bytes(tensor.SerializeToString())
    result = samples(K, M, data={"k": "data", "m": "data/"})
    assert labels(result) == ["k.pb, m.pb"]
    assert (firsts(result, "k"), firsts(result, "m")) == ([ord("k")], [ord("m")])
    names = ("k", "../data/k", "x" * 999)
    inputs = TypeAdapter(InputSpecs).validate_python({name: {"data": "data"} for name in names})
    assert [inputs[name].data for name in names] == ["data/k.pb", "data", "data"]


def test_external_data_are_not_read(in_folder: Path, check_message: CheckMessage) -> None:
    external = onnx.TensorProto(data_type=1, dims=[2], data_location=onnx.TensorProto.EXTERNAL)
    Path("k.pb").write_bytes(external.SerializeToString())
    check_message(refused(K, data={"k": "k.pb"}))


# Pictures: animations, videos


@pytest.mark.parametrize("suffix", [".gif", ".webp"])
def test_every_nth_frame_of_an_animation_is_a_sample(suffix: str, in_folder: Path) -> None:
    write_animation(in_folder / f"a{suffix}", [10, 60, 110, 160, 210])
    result = samples(X, inputs={"x": {"data": f"a{suffix}", "std": [1 / 255]}})
    assert labels(result) == [f"a{suffix} frame {i}" for i in range(5)]
    assert firsts(result, "x") == pytest.approx([10, 60, 110, 160, 210], abs=1)
    second = samples(X, inputs={"x": {"data": f"a{suffix}", "std": [1 / 255], "every": 2}})
    assert labels(second) == [f"a{suffix} frame {i}" for i in (0, 2, 4)]
    assert firsts(second, "x") == pytest.approx([10, 110, 210], abs=1)
    write_animation(in_folder / f"still{suffix}", [10])
    assert labels(samples(X, data={"x": f"still{suffix}"})) == [f"still{suffix}"]


@pytest.mark.representatives(".avi", ".webm")
@needs_video
@pytest.mark.parametrize("suffix", [".mp4", ".avi", ".mkv", ".mov", ".webm"])
def test_every_nth_frame_of_a_video_is_a_sample(suffix: str, in_folder: Path, check_message: CheckMessage) -> None:
    levels = [20, 60, 100, 140, 180, 220, 240]
    write_video(in_folder / f"clip{suffix}", levels)
    result = samples(X, inputs={"x": {"data": f"clip{suffix}", "std": [1 / 255], "every": 3}})
    assert labels(result) == [f"clip{suffix} frame {i}" for i in (0, 3, 6)]
    assert len(result) == 3
    assert firsts(result, "x") == pytest.approx([20, 140, 240], abs=6)
    assert next(iter(result)).feeds["x"].values.shape == (1, 3, 48, 64)
    assert labels(samples(X, data={"x": f"clip{suffix}"}, samples=2)) == [f"clip{suffix} frame {i}" for i in (0, 1)]
    check_message(refused(X, data={"x": f"clip{suffix}"}, samples=8))


@needs_video
def test_pictures_and_videos_follow_each_other(in_folder: Path) -> None:
    write_images(in_folder / "c", {"b.png": 5, "d.png": 6})
    write_video(in_folder / "c/c.mp4", [50, 100])
    result = samples(X, data={"x": "c"}, inputs={"x": {"shape": [1, 3, 8, 8]}})
    assert labels(result) == ["b.png", "c.mp4 frame 0", "c.mp4 frame 1", "d.png"]


def test_a_files_name_is_shown_on_one_line(in_folder: Path) -> None:
    write_images(in_folder / "c", {"a\n\x1b[31m.png": 1, "\udcff.png": 2})
    result = list(samples(X, data={"x": "c"}))
    assert [sample.label for sample in result] == ["a␊␛[31m.png", "\ufffd.png"]
    assert result[0].feeds["x"].description == "image c/a␊␛[31m.png as NCHW, float32 1x3x8x8"
    json.dumps([sample.feeds["x"].description for sample in result], ensure_ascii=False).encode()


@needs_video
def test_files_that_are_not_videos_are_errors(in_folder: Path, check_message: CheckMessage) -> None:
    write_video(in_folder / "clip.avi", [20] * 30)
    whole = Path("clip.avi").read_bytes()
    Path("text.mp4").write_text("hello")
    Path("playlist.mp4").write_text("ffconcat version 1.0\nfile clip.avi\n")
    for name in ("text.mp4", "playlist.mp4"):
        check_message(refused(X, data={"x": name}))
    Path("header.avi").write_bytes(whole[: whole.index(b"movi") + 4])
    check_message(refused(X, data={"x": "header.avi"}))
    check_message(refused(X, data={"x": "gone.mp4"}))


@needs_video
def test_frames_over_the_limit_of_images_are_refused(
    in_folder: Path, monkeypatch: pytest.MonkeyPatch, check_message: CheckMessage
) -> None:
    write_video(in_folder / "clip.mp4", [20])
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 1000)
    check_message(refused(X, data={"x": "clip.mp4"}))


def test_the_error_without_pyav_names_the_package(
    in_folder: Path, monkeypatch: pytest.MonkeyPatch, check_message: CheckMessage
) -> None:
    monkeypatch.setitem(__import__("sys").modules, "av", None)
    Path("clip.mp4").write_bytes(b"")
    with pytest.raises(BackendError) as caught:
        samples(X, data={"x": "clip.mp4"})
    check_message(caught.value)


def test_every_without_a_video_is_a_mistake(in_folder: Path, check_message: CheckMessage) -> None:
    write_images(in_folder, {"a.png": 1})
    check_message(refused(X, inputs={"x": {"data": "a.png", "every": 2}}))


def test_pictures_that_would_lose_something_are_refused(
    in_folder: Path, monkeypatch: pytest.MonkeyPatch, check_message: CheckMessage
) -> None:
    gray(1, (40, 40)).save("large.png")
    for limit in (1000, 500):
        monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", limit)
        check_message(refused(X, data={"x": "large.png"}))


def test_a_truncated_picture_is_an_error_when_it_is_reached(in_folder: Path, check_message: CheckMessage) -> None:
    noise = np.random.default_rng(0).integers(0, 256, (64, 64, 3), np.uint8)
    for name in "abc":
        Image.fromarray(noise).save(f"{name}.png")
    Path("c.png").write_bytes(Path("c.png").read_bytes()[:6000])
    result = iter(samples(X, data={"x": "*.png"}))
    assert [next(result).label, next(result).label] == ["a.png", "b.png"]
    with pytest.raises(RequestError) as caught:
        next(result)
    check_message(caught.value)


def test_reading_pictures_leaves_others_warnings_alone(in_folder: Path) -> None:
    write_images(in_folder, {"a.png": 1, "b.png": 2})
    before = list(warnings.filters)
    result = iter(samples(X, data={"x": "*.png"}))
    next(result)
    assert warnings.filters == before


def test_files_that_vanish_between_iterations_are_an_error(in_folder: Path, check_message: CheckMessage) -> None:
    write_animation(in_folder / "a.gif", [1, 100, 200])
    result = samples(X, data={"x": "a.gif"})
    write_animation(in_folder / "a.gif", [1, 100])
    with pytest.raises(RequestError) as caught:
        list(result)
    check_message(caught.value)


# Loaders


def loader(code: str) -> dict[str, Any]:
    Path("load.py").write_text(f"import itertools\nimport numpy as np\n\n\ndef samples():\n{code}")
    return {"loader": "load.py"}


def test_a_loader_yields_mappings_or_labelled_ones(in_folder: Path) -> None:
    code = "    for i in itertools.count():\n        yield {'k': np.full(2, i, np.float32)}\n"
    result = samples(K, **loader(code), samples=3)
    assert labels(result) == ["load.py sample 0", "load.py sample 1", "load.py sample 2"]
    assert firsts(result, "k") == firsts(result, "k") == [0, 1, 2]
    listed = samples(K, **loader("    return [('cat\\n', {'k': [1.0, 2.0]}), ('dog', {'k': (3.0, 4.0)})]\n"))
    assert labels(listed) == ["cat␊", "dog"]
    assert firsts(listed, "k") == [1, 3]
    assert next(iter(listed)).feeds["k"].description == "load.py sample 0 cast, float32 2"


def test_a_loader_may_use_its_buffer_again(in_folder: Path) -> None:
    code = "    k = np.zeros(2, np.float32)\n    for i in range(3):\n        k[:] = i\n        yield {'k': k}\n"
    kept = [sample.feeds["k"].values for sample in samples(K, **loader(code), samples=3)]
    assert [array[0] for array in kept] == [0, 1, 2]


def test_inputs_that_a_loader_leaves_out_must_be_numbers(in_folder: Path, check_message: CheckMessage) -> None:
    code = "    yield {'k': np.zeros(2, np.float32)}\n"
    (result,) = samples(K, M, **loader(code), samples=1, inputs={"m": {"data": 7}})
    assert result.feeds["m"].values.tolist() == [[7, 7]]
    check_message(refused(K, M, **loader(code), samples=1))


@pytest.mark.parametrize(
    "code",
    [
        "    yield {'k': np.zeros(3, np.float32)}\n",
        "    yield {'k': np.zeros(2, np.int32)}\n",
        "    yield {'k': np.array([1e300, 0])}\n",
        "    yield {'k': ['a', 'b']}\n",
        "    yield {'k': [[1], [2, 3]]}\n",
        "    yield {'kk': np.zeros(2, np.float32)}\n",
        "    yield np.zeros(2, np.float32)\n",
        "    yield ('a', 'b', 'c')\n",
        "    yield {'k': np.zeros(2, np.float32)}\n",
        "    return 5\n",
        "    x = 1\n    raise ValueError('no\\nway')\n    yield x\n",
        "    yield {'k': 1 / 0}\n",
        "    exit()\n    yield\n",
        "    )\n",
    ],
)
def test_errors_of_a_loader_name_the_line(code: str, in_folder: Path, check_message: CheckMessage) -> None:
    check_message(refused(K, **loader(code), samples=2))


def test_a_loader_that_may_be_endless_needs_a_number(in_folder: Path, check_message: CheckMessage) -> None:
    check_message(refused(K, **loader("    yield {}\n")))
    check_message(refused(K, **loader("    return []\n")))
    Path("load.py").write_text("def sample(): ...\n")
    check_message(refused(K, loader="load.py"))
    check_message(refused(K, loader="gone.py"))


def test_a_loader_that_shuffles_is_an_error(in_folder: Path, check_message: CheckMessage) -> None:
    code = "    while True:\n        yield {'k': np.random.random(2)}\n"
    check_message(refused(K, **loader(code), samples=2))


def test_only_used_samples_are_read(in_folder: Path) -> None:
    code = "    for i in range(10):\n        print('made', i)\n        yield {'k': np.full(2, i, np.float32)}\n"
    result = samples(K, **loader(code), samples=10)
    with pytest.MonkeyPatch.context() as patched:
        outcome: list[object] = []
        patched.setattr("builtins.print", lambda *said: outcome.append(said))
        list(itertools.islice(result, 2))
    assert len(outcome) == 2


@pytest.mark.parametrize(
    ("settings", "starts"),
    [({}, [0, 4, 8]), ({"hop": 3}, [0, 3, 6]), ({"every": 2}, [0, 8]), ({"hop": 5, "every": 2}, [0])],
)
def test_an_array_of_one_dimension_gives_windows(in_folder: Path, settings: dict[str, Any], starts: list[int]) -> None:
    np.save(in_folder / "wave.npy", np.arange(10, dtype=np.float32))
    wanted = TensorSpec("x", "float32", ("n", 1, 4))
    samples = make_samples([wanted], specs({"x": {"data": "wave.npy", **settings}}), SampleSettings(), "m")
    padded = np.pad(np.arange(10), (0, 4))
    assert [sample.feeds["x"].values.tolist() for sample in samples] == [
        [[padded[start : start + 4].tolist()]] for start in starts
    ]
    assert [sample.label for sample in samples] == [f"wave.npy element {start}" for start in starts]
    last = list(samples)[-1].feeds["x"].description
    missing = max(0, starts[-1] + 4 - 10)
    assert (f"padded by {missing} elements" in last) == (missing > 0)


@pytest.mark.parametrize(
    ("values", "shape"),
    [
        (np.zeros(10, np.int64), (1, 4)),  # zeros would be tokens
        (np.zeros(3, np.float32), (1, 4)),
        (np.zeros(10, np.float32), (2, 4)),
        (np.zeros(10, np.float32), (4,)),
        (np.zeros((5, 2), np.float32), (1, 4)),
    ],
)
def test_arrays_that_are_no_signal_are_refused(
    in_folder: Path, values: Any, shape: tuple[int, ...], check_message: CheckMessage
) -> None:
    np.save(in_folder / "wave.npy", values)
    wanted = TensorSpec("x", str(values.dtype), shape)
    with pytest.raises(RequestError) as caught:
        make_samples([wanted], specs({"x": {"data": "wave.npy"}}), SampleSettings(), "m")
    check_message(caught.value)


@pytest.mark.parametrize(
    ("declared", "shape", "sample"),
    [
        (("batch", "n"), (24, 5), (1, 5)),
        ((1, "n"), (24, 5), (1, 5)),
        ((1, "n"), (1, 5), (1, 5)),
        ((2, "n"), (24, 5), (24, 5)),  # which the model refuses
        ((1, "n"), (24, 1, 5), (1, 5)),
    ],
)
def test_the_rows_of_an_array_are_samples_of_one_item(
    declared: tuple[int | str, ...], shape: tuple[int, ...], sample: tuple[int, ...], tmp_path: Path
) -> None:
    np.save(tmp_path / "rows.npy", np.zeros(shape, np.float32))
    assert sample_shapes([tmp_path / "rows.npy"], "x", declared) == [sample]


def test_the_shapes_of_samples_start_with_that_of_the_first(tmp_path: Path) -> None:
    paths = [tmp_path / f"{number}.npy" for number in range(4)]
    for path, width in zip(paths, (7, 3, 7, 5), strict=True):
        np.save(path, np.zeros((1, 2, width), np.float32))
    assert sample_shapes(paths, "x", ("batch", 2, "width")) == [(1, 2, 7), (1, 2, 3), (1, 2, 5)]
    assert sample_shapes(paths, "x", (2, "width")) == [(2, 7), (2, 3), (2, 5)], "each file is a batch of one"
    assert not sample_shapes(paths, "x", ("batch",))
