"""Images as the values of an input: fitted to its size, in its order of colors, as the file declares them."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from ndld_flow.base.errors import RequestError
from ndld_flow.inputs import InputSpec
from ndld_flow.models.tensors import TensorSpec
from ndld_flow.samples.feeds import Feed, make_feeds
from ndld_flow.samples.images import ImageInput, place_image
from ndld_flow.samples.sample_feeds import make_samples
from ndld_flow.samples.sample_settings import SampleSettings
from ndld_flow.samples.wanted_inputs import want_inputs
from tests.support.message_files import CheckMessage
from tests.support.models_run import specs

Array = np.ndarray[Any, Any]


def fed(shape: tuple[Any, ...], dtype: str = "uint8", **given: Any) -> Feed:
    return make_feeds([TensorSpec("x", dtype, shape)], specs({"x": {"data": "p.png", **given}}))["x"]


def read(shape: tuple[Any, ...], dtype: str = "uint8", **given: Any) -> Array:
    """Return the values of the first image of a batch."""
    values: Array = fed(shape, dtype, **given).values[0]
    return values


def refused(shape: tuple[Any, ...], **given: Any) -> RequestError:
    with pytest.raises(RequestError) as caught:
        fed(shape, **given)
    return caught.value


def draw(width: int, height: int, name: str = "p.png") -> Array:
    """Save a picture of noise, smooth enough for JPEG, and return its pixels."""
    pixels = np.random.default_rng(0).integers(0, 256, (height, width, 3), np.uint8)
    Image.fromarray(pixels).save(name)
    return pixels


# Sizes


@pytest.mark.parametrize(
    ("size", "room", "resized", "left", "top"),
    [
        ((640, 480), (320, 320), (320, 240), 0, 40),
        ((480, 640), (320, 320), (240, 320), 40, 0),
        ((451, 300), (640, 640), (640, 426), 0, 107),
        ((333, 500), (640, 640), (426, 640), 107, 0),
        ((100, 33), (64, 64), (64, 21), 0, 21),  # 43 rows of padding: 21 above, 22 below
        ((5000, 1), (64, 64), (64, 1), 0, 31),
        ((640, 480), (None, 48), (64, 48), 0, 0),
        ((640, 480), (None, None), (640, 480), 0, 0),
    ],
)
def test_letterboxing_rounds_as_ultralytics(
    size: tuple[int, int], room: tuple[int | None, int | None], resized: tuple[int, int], left: int, top: int
) -> None:
    placement = place_image(size, room, InputSpec(resize="letterbox"))
    assert (placement.size, placement.left, placement.top) == (resized, left, top)
    # LetterBox of ultralytics/data/augment.py
    if None not in room:
        ratio = min(room[0] / size[0], room[1] / size[1])  # type: ignore[operator]
        new = max(1, round(size[0] * ratio)), max(1, round(size[1] * ratio))
        assert new == resized
        assert (left, top) == tuple(round((whole - part) / 2 - 0.1) for whole, part in zip(room, new, strict=True))  # type: ignore[operator]


@pytest.mark.parametrize(
    ("size", "room", "share", "resized", "crop"),
    [
        ((640, 480), (224, 224), 1.0, (298, 224), (37, 0)),
        ((640, 480), (224, 224), 0.875, (341, 256), (58, 16)),  # Resize(256), CenterCrop(224)
        ((480, 640), (224, 224), 0.875, (256, 341), (16, 58)),
        ((224, 224), (224, 224), 1.0, (224, 224), (0, 0)),
        ((640, 480), (320, 100), 1.0, (320, 240), (0, 70)),
    ],
)
def test_cropping_rounds_as_torchvision(
    size: tuple[int, int], room: tuple[int, int], share: float, resized: tuple[int, int], crop: tuple[int, int]
) -> None:
    placement = place_image(size, room, InputSpec(resize="crop", crop_share=share))
    assert (placement.size, placement.crop, placement.used) == (resized, crop, room)


def test_a_letterboxed_image_is_whole_and_surrounded_by_the_padding(
    in_folder: Path, check_message: CheckMessage
) -> None:
    pixels = draw(8, 4)
    values = read((1, 8, 8, 3), resize="letterbox")
    np.testing.assert_array_equal(values[2:6], pixels)
    assert np.unique(values[:2]).tolist() == np.unique(values[6:]).tolist() == [114]
    np.testing.assert_array_equal(read((1, 8, 8, 3), resize="letterbox", align="start")[:4], pixels)
    own = read((1, 3, 8, 8), "float32", resize="letterbox", pad=[0, 51, 255])
    np.testing.assert_allclose(own[:, 0, 0], [0, 0.2, 1])
    check_message(refused((1, 3, 8, 8), resize="letterbox", pad=[1, 2]))


def test_a_cropped_image_is_the_middle(in_folder: Path) -> None:
    pixels = draw(12, 6)
    np.testing.assert_array_equal(read((1, 6, 6, 3), resize="crop"), pixels[:, 3:9])
    np.testing.assert_array_equal(read((1, 6, 6, 3), resize="crop", align="start"), pixels[:, :6])
    draw(64, 40)
    for interpolation in ("bilinear", "bicubic", "linear"):
        whole = read((1, 20, 32, 3), resize="stretch", interpolation=interpolation)
        part = read((1, 20, 20, 3), resize="crop", interpolation=interpolation)
        np.testing.assert_allclose(part, whole[:, 6:26], atol=1)


def test_linear_interpolation_is_that_of_opencv(in_folder: Path) -> None:
    Image.fromarray(np.array([[0, 100]], np.uint8)).save("p.png")
    enlarged = read((1, 1, 1, 4), "float32", scale=1, interpolation="linear", resize="stretch")
    assert enlarged.ravel().tolist() == [0, 25, 75, 100]
    Image.fromarray(np.array([[0, 8, 0, 0, 0, 8, 0, 0]], np.uint8)).save("p.png")
    assert read((1, 1, 1, 2), interpolation="linear", resize="stretch").ravel().tolist() == [4, 4]  # 1.5 and 5.5
    averaged = read((1, 1, 1, 2), resize="stretch").ravel()
    assert 0 < averaged[0] < 4


def test_a_long_image_is_cropped_without_enlarging_all_of_it(in_folder: Path, check_message: CheckMessage) -> None:
    Image.new("L", (20_000, 2)).save("p.png")
    tracemalloc.start()
    assert read((1, 1, 300, 300), resize="crop").shape == (1, 300, 300)
    assert read((1, 1, 300, 300), resize="crop", interpolation="linear").shape == (1, 300, 300)
    assert tracemalloc.get_traced_memory()[1] < 20_000_000
    tracemalloc.stop()
    check_message(refused((1, 1, 300, "w"), resize="letterbox"))


# What is reported


def test_what_happens_to_an_image_is_described(in_folder: Path) -> None:
    draw(16, 12)
    assert fed((1, 3, 8, 8), resize="letterbox").description == (
        "image p.png as NCHW, 16x12 -> 8x8 (letterbox), uint8 1x3x8x8"
    )
    assert "16x12 -> 8x8 (crop)" in fed((1, 3, 8, 8), resize="crop").description
    assert "16x12 -> 8x6 (stretch)" in fed((1, 3, 6, 8)).description
    assert "->" not in fed((1, 3, 12, 16)).description


def test_an_image_that_is_distorted_without_a_request_is_a_caveat(in_folder: Path) -> None:
    draw(16, 12)
    (note,) = fed((1, 3, 8, 8)).notes
    assert note.startswith("p.png is distorted, 16x12 -> 8x8") and "`resize:`" in note
    assert fed((1, 3, 8, 8), resize="stretch").notes == ()
    assert fed((1, 3, 6, 8)).notes == ()
    draw(801, 600)
    assert fed((1, 3, 60, 80)).notes == ()


def test_the_caveat_counts_the_distorted_files(in_folder: Path) -> None:
    (in_folder / "c").mkdir()
    for name, size in {"a.png": (8, 8), "b.png": (8, 6), "c.png": (9, 8), "d.png": (8, 8)}.items():
        draw(*size, f"c/{name}")
    spec = TensorSpec("x", "float32", (1, 3, 8, 8))
    samples = make_samples([spec], specs({"x": {"data": "c"}}), SampleSettings(), "half")
    (note,) = samples.notes
    assert "2 of 4 files" in note and "b.png first, 8x6 -> 8x8" in note and "`resize:`" in note
    quiet = make_samples([spec], specs({"x": {"data": "c", "resize": "crop"}}), SampleSettings(), "half")
    assert quiet.notes == ()


# Colors


def test_channels_are_in_the_models_order(in_folder: Path, check_message: CheckMessage) -> None:
    pixels = draw(5, 4)
    np.testing.assert_array_equal(read((1, 3, 4, 5), color="bgr"), pixels[..., ::-1].transpose(2, 0, 1))
    mean = [1, 2, 3]
    normalized = read((1, 3, 4, 5), "float32", color="bgr", scale=1, mean=mean)
    np.testing.assert_array_equal(normalized.transpose(1, 2, 0), pixels[..., ::-1].astype(np.float32) - mean)
    gray = read((1, 3, 4, 5), color="gray")
    expected = np.asarray(Image.fromarray(pixels).convert("L"))
    np.testing.assert_array_equal(gray, [expected] * 3)
    np.testing.assert_array_equal(read((1, 1, 4, 5)), expected[None])
    check_message(refused((1, 1, 4, 5), color="bgr"))
    check_message(refused((1, 4, 4, 5), color="gray"))


@pytest.mark.parametrize(
    ("shape", "expected"),
    [
        ((1, 4, 5, 3), (4, 5, 3)),
        ((1, "h", "w", 3), (4, 5, 3)),
        ((1, "c", "h", "w"), (3, 4, 5)),
        ((1, 1, 4, 5), (1, 4, 5)),
        ((1, 4, 5, 1), (4, 5, 1)),
        ((1, 3, 4, 3), (3, 4, 3)),
    ],
)
def test_the_layout_is_that_of_the_shape(shape: tuple[Any, ...], expected: tuple[int, ...], in_folder: Path) -> None:
    draw(5, 4)
    assert read(shape, resize="stretch").shape == expected


def test_a_layout_that_contradicts_the_shape_is_refused(in_folder: Path, check_message: CheckMessage) -> None:
    draw(5, 4)
    check_message(refused((1, "h", "w", 3), layout="NCHW"))
    check_message(refused((1, 3, 4, 5), layout="NCT"))


def save_turned(pixels: Array, orientation: int, name: str) -> None:
    """Save an image with EXIF data; behind the pixels, as some programs write PNG files, if it is named `late`."""
    exif = Image.Exif()
    exif[0x0112] = orientation
    Image.fromarray(np.ascontiguousarray(pixels)).save(name, exif=exif, quality=100)
    if name == "late.png":
        data = Path(name).read_bytes()
        begin = data.index(b"eXIf") - 4
        end = begin + 12 + int.from_bytes(data[begin : begin + 4])
        Path(name).write_bytes(data[:begin] + data[end:-12] + data[begin:end] + data[-12:])


@pytest.mark.parametrize("name", ["p.jpg", "p.png", "late.png", "p.webp"])
def test_an_image_is_turned_as_its_camera_was(name: str, in_folder: Path) -> None:
    upright = np.zeros((8, 16, 3), np.uint8)
    upright[:, :8] = 255
    turned: dict[int, Callable[[Array], Array]] = {
        1: lambda pixels: pixels,
        3: lambda pixels: pixels[::-1, ::-1],
        6: np.rot90,
        8: lambda pixels: np.rot90(pixels, -1),
    }
    for orientation, turn in turned.items():
        save_turned(turn(upright), orientation, name)
        feed = fed((1, "h", "w", 3), data=name)
        np.testing.assert_allclose(feed.values[0], upright, atol=8)
        assert ("rotated as EXIF declares" in feed.description) == (orientation != 1)
        assert "8x8 (letterbox)" in fed((1, 8, 8, 3), data=name, resize="letterbox").description
        spec = TensorSpec("x", "float32", (1, 3, 4, 8))
        assert make_samples([spec], specs({"x": {"data": [name, name]}}), SampleSettings(), "half").notes == ()


def test_gray_images_of_16_bits_keep_their_precision(in_folder: Path) -> None:
    levels = np.array([[0, 257, 300, 65535]], np.uint16)
    Image.fromarray(levels).save("p.png")
    values = read((1, 3, 1, 4), "float32")
    np.testing.assert_allclose(values, [levels / 65535] * 3, rtol=1e-6)
    assert read((1, 1, 1, 4)).ravel().tolist() == [0, 1, 1, 255]
    assert "16 bits" in fed((1, 1, 1, 4)).description
    assert read((1, 1, 1, 2), "float32", interpolation="linear", scale=1, resize="stretch").ravel()[0] == 0.5


def test_other_modes_become_rgb_and_are_reported(in_folder: Path) -> None:
    Image.new("CMYK", (4, 4), (0, 255, 255, 0)).save("p.jpg", quality=100)
    feed = fed((1, 3, 4, 4), data="p.jpg")
    np.testing.assert_allclose(feed.values[0, :, 0, 0], [255, 0, 0], atol=3)
    assert "CMYK -> RGB" in feed.description
    Image.new("RGB", (4, 4), (10, 200, 30)).quantize().save("p.png")
    assert read((1, 3, 4, 4))[:, 0, 0].tolist() == [10, 200, 30]
    Image.new("1", (4, 4), 1).save("p.png")
    assert read((1, 3, 4, 4))[:, 0, 0].tolist() == [255, 255, 255]


def test_transparent_pixels_are_a_caveat(in_folder: Path) -> None:
    Image.new("RGBA", (4, 4), (10, 20, 30, 255)).save("p.png")
    assert fed((1, 3, 4, 4)).notes == ()
    Image.new("RGBA", (4, 4), (10, 20, 30, 0)).save("p.png")
    feed = fed((1, 3, 4, 4))
    (note,) = feed.notes
    assert note.startswith("p.png has transparent pixels")
    assert feed.values[0, :, 0, 0].tolist() == [10, 20, 30]


# Back to a picture


@pytest.mark.parametrize(
    ("shape", "given"),
    [
        ((2, 3, 4, 5), {"mean": [0.4, 0.5, 0.6], "std": [0.2, 0.3, 0.4], "color": "bgr"}),
        ((4, 5, 3), {"scale": 2.0, "mean": [100], "layout": "NHWC"}),
    ],
)
def test_pixels_are_restored_from_values(shape: tuple[int, ...], given: dict[str, Any], in_folder: Path) -> None:
    pixels = draw(5, 4)
    spec = TensorSpec("x", "float32", shape)
    (wanted,) = want_inputs([spec], specs({"x": {"data": "p.png", **given}}), "half")
    restored = ImageInput.of(wanted, Path("p.png")).restore(fed(shape, "float32", **given).values)
    np.testing.assert_allclose(restored, pixels, atol=1e-3)
