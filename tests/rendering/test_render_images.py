"""Images of tensors: pixels, ranges, two models, targets, noise and weights."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from PIL import Image
from pydantic import ValidationError

from ndld_flow.base.errors import RequestError
from ndld_flow.models.tensors import Array
from ndld_flow.records.images import ImageFile, RenderedImages
from ndld_flow.rendering.pixels import Range, choose_range, draw_image, draw_tiles, planes_of, psnr
from ndld_flow.steps.render_images import RenderImages
from ndld_flow.store.kinds import ImagesDocument, Onnx
from tests.support.message_files import CheckMessage
from tests.support.models_run import Given, Ran, run_step

PHOTO = np.zeros((8, 12, 3), np.uint8)
PHOTO[:, :6, 0], PHOTO[:, 6:, 2], PHOTO[:4, :, 1] = 255, 255, 102


def make_denoiser(path: Path, gain: float = 1.0, last: str = "Identity") -> Path:
    """Write `y = last(gain * x)`, whose kernel is a weight."""
    kernel = np.zeros((3, 3, 1, 1), np.float32)
    kernel[range(3), range(3)] = gain
    nodes = [
        helper.make_node("Conv", ["x", "k"], ["h"], name="conv"),
        helper.make_node(last, ["h"], ["y"], name="last"),
    ]
    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, 3, 8, 12]) for name in "xy"]
    graph = helper.make_graph(nodes, "g", values[:1], values[1:], [numpy_helper.from_array(kernel, "k")])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    return path


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with two photos: the second is darker."""
    folder = tmp_path_factory.mktemp("photos")
    Image.fromarray(PHOTO).save(folder / "0.png")
    Image.fromarray(PHOTO // 2).save(folder / "1.png")
    return folder


def render(
    folder: Path, photos: Path, images: dict[str, Any], candidate: Path, reference: Path | None = None, **settings: Any
) -> tuple[Ran, RenderedImages]:
    artifacts = {} if reference is None else {"reference": Onnx(reference, "source", "digest")}
    settings |= {"images": images, **({} if reference is None else {"reference": "source"})}
    inputs: Given = {"x": {"data": str(photos)}}
    ran = run_step(RenderImages, candidate, folder / "ran", settings, inputs, artifacts=artifacts)
    return ran, RenderedImages.model_validate_json((ran.out / ImagesDocument.main).read_text())


def file_of(record: RenderedImages, name: str, side: str, row: int = 0) -> ImageFile:
    (image,) = [image for image in record.images if image.name == name]
    (file,) = [file for file in image.rows[row].files if file.side == side]
    return file


def pixels(ran: Ran, file: ImageFile) -> Array:
    return np.asarray(Image.open(ran.out / file.file).convert("RGB"))


def test_output_is_drawn_beside_input_reference_and_target(tmp_path: Path, photos: Path) -> None:
    source, dark = make_denoiser(tmp_path / "a.onnx"), make_denoiser(tmp_path / "b.onnx", gain=0.95)
    ran, record = render(tmp_path, photos, {"out": {"tensor": "y", "range": [0, 1], "target": "x"}}, dark, source)
    for row, photo in enumerate((PHOTO, PHOTO // 2)):
        for side, expected in {"input": photo, "target": photo, "reference": photo, "candidate": photo * 0.95}.items():
            np.testing.assert_allclose(pixels(ran, file_of(record, "out", side, row)), expected, atol=1)
        # White is 10 % of the range, so an error of 5 % of white is half of it.
        worst = (0.05 * photo.max(axis=-1, keepdims=True) / 25.5 * 255).repeat(3, axis=-1)
        np.testing.assert_allclose(pixels(ran, file_of(record, "out", "difference", row)), worst, atol=1)
    assert [row.sample for row in record.images[0].rows] == ["0.png", "1.png"]
    metrics = ran.result.metrics
    expected_psnr = -10 * np.log10(np.mean(np.square(0.05 * PHOTO / 255)))
    assert metrics["out.psnr"] == pytest.approx(expected_psnr, abs=0.01)  # the brighter sample is the worse one
    assert metrics["out.reference_psnr"] == 200
    assert metrics["out.max_abs"] == pytest.approx(0.05, abs=1e-4)


def test_both_models_have_the_same_black_and_white(tmp_path: Path, photos: Path) -> None:
    """A model whose output is twice as large must not look the same."""
    source, twice = make_denoiser(tmp_path / "a.onnx"), make_denoiser(tmp_path / "b.onnx", gain=2)
    ran, record = render(tmp_path, photos, {"out": {"tensor": "y"}}, twice, source)
    assert "black 0, white 1" in record.images[0].description
    candidate = file_of(record, "out", "candidate")
    np.testing.assert_allclose(pixels(ran, candidate), np.clip(PHOTO.astype(int) * 2, 0, 255), atol=1)
    assert any("beyond black or white" in warning for warning in candidate.warnings)


def test_values_that_are_not_finite_are_seen(tmp_path: Path, photos: Path) -> None:
    """Log of 0 is -infinity: the image shows it, and no distance is reported."""
    source, broken = make_denoiser(tmp_path / "a.onnx"), make_denoiser(tmp_path / "b.onnx", last="Log")
    ran, record = render(tmp_path, photos, {"out": {"tensor": "y", "range": [0, 1], "target": "x"}}, broken, source)
    candidate = file_of(record, "out", "candidate")
    assert (pixels(ran, candidate)[-1, -1] == (255, 0, 255)).all()
    assert any("NaN or infinite" in warning for warning in candidate.warnings)
    assert "PSNR unknown: not all" in str(candidate.captions)
    assert ran.result.metrics["nonfinite"] > 0
    assert not {"out.psnr", "out.max_abs"} & ran.result.metrics.keys()
    assert any("unknown" in caption for caption in file_of(record, "out", "difference").captions)


def test_formulas_compare_tensors_of_one_model_and_of_two(tmp_path: Path, photos: Path) -> None:
    source, dark = make_denoiser(tmp_path / "a.onnx"), make_denoiser(tmp_path / "b.onnx", gain=0.9)
    images = {
        "own": {"formula": "4 * abs(a - b)", "tensors": {"a": "x", "b": "y"}, "range": [0, 1]},
        "two": {
            "formula": "4 * abs(a - b)",
            "tensors": {"a": "y", "b": {"tensor": "y", "model": "reference"}},
            "range": [0, 1],
        },
    }
    ran, record = render(tmp_path, photos, images, dark, source)
    error = np.rint(PHOTO / 255 * 0.1 * 4 * 255)
    np.testing.assert_allclose(pixels(ran, file_of(record, "own", "candidate")), error, atol=1)
    assert not pixels(ran, file_of(record, "own", "reference")).any()
    np.testing.assert_allclose(pixels(ran, file_of(record, "two", "candidate")), error, atol=1)
    assert [file.side for file in record.images[1].rows[0].files] == ["input", "candidate"]
    assert file_of(record, "two", "candidate").title == "candidate and source"


def test_noise_is_on_the_candidate_only(tmp_path: Path, photos: Path) -> None:
    model = make_denoiser(tmp_path / "a.onnx")
    noise = {"kind": "normal", "deviation": 0.1}
    ran, record = render(
        tmp_path, photos, {"out": {"tensor": "y", "range": [0, 1], "target": "x"}}, model, model, noise=noise
    )
    np.testing.assert_array_equal(pixels(ran, file_of(record, "out", "reference")), PHOTO)
    np.testing.assert_array_equal(pixels(ran, file_of(record, "out", "target")), PHOTO)
    assert (pixels(ran, file_of(record, "out", "candidate")) != PHOTO).mean() > 0.3
    assert ran.result.metrics["out.psnr"] == pytest.approx(20, abs=0.7)  # of noise of 0.1: 20 dB
    assert file_of(record, "out", "input").title == "input x, with noise"


def test_targets_are_files(tmp_path: Path, photos: Path) -> None:
    model = make_denoiser(tmp_path / "a.onnx", gain=0.9)
    ran, record = render(
        tmp_path, photos, {"x": {"tensor": "y", "range": [-1, 1]}}, model, targets={"x": str(photos)}
    )  # the image has the name of the input, whose data must stay
    np.testing.assert_array_equal(pixels(ran, file_of(record, "x", "input")), PHOTO)
    np.testing.assert_array_equal(pixels(ran, file_of(record, "x", "target")), PHOTO)
    worst = min(psnr(photo / 255 * 0.9, photo / 127.5 - 1, 2) for photo in (PHOTO, PHOTO // 2))
    assert ran.result.metrics["x.psnr"] == pytest.approx(worst, abs=0.01)


def test_too_few_targets_are_refused(tmp_path: Path, photos: Path, check_message: CheckMessage) -> None:
    only = tmp_path / "only.png"
    Image.fromarray(PHOTO).save(only)
    model = make_denoiser(tmp_path / "a.onnx")
    with pytest.raises(RequestError) as caught:
        render(tmp_path, photos, {"out": {"tensor": "y", "range": [0, 1]}}, model, targets={"out": str(only)})
    check_message(caught.value)


def test_kernels_are_rows_of_tiles(tmp_path: Path, photos: Path) -> None:
    ran, record = render(tmp_path, photos, {"k": {"tensor": "k"}}, make_denoiser(tmp_path / "a.onnx"))
    (row,) = record.images[0].rows
    (file,) = row.files
    assert row.sample == ""
    tiles = pixels(ran, file)[1::13, 1::13, 0]
    np.testing.assert_array_equal(tiles[:3, :3], np.eye(3) * 255)


def test_files_and_thumbnails_are_limited(tmp_path: Path, photos: Path) -> None:
    model = make_denoiser(tmp_path / "a.onnx")
    ran, record = render(tmp_path, photos, {"out": {"tensor": "y"}}, model, shown=0, written=1)
    (row,) = record.images[0].rows
    assert sorted(path.name for path in (ran.out / "out").iterdir()) == ["0-candidate.png", "0-input.png"]
    assert all(file.thumbnail is None for file in row.files)
    assert record.sample_count == 2


@pytest.mark.parametrize(
    "image",
    [
        {"tensor": "z"},
        {"tensor": "y", "channels": [3]},
        {"tensor": "y", "channels": [0, 1], "draw": "image"},
        {"tensor": "y", "layout": "HW"},
        {"tensor": "y", "range": [0, 1], "target": "w"},
        {"formula": "a + b", "tensors": {"a": "y", "b": {"tensor": "y", "layout": "NHWC"}}},
    ],
)
def test_mistakes_are_named(tmp_path: Path, photos: Path, image: dict[str, Any], check_message: CheckMessage) -> None:
    with pytest.raises(RequestError) as caught:
        render(tmp_path, photos, {"out": image}, make_denoiser(tmp_path / "a.onnx"))
    check_message(caught.value)


@pytest.mark.parametrize(
    "settings",
    [
        {"images": {"../out": {"tensor": "y"}}},
        {"images": {"out": {"tensor": "y"}, "OUT": {"tensor": "y"}}},
        {"images": {"out": {}}},
        {"images": {"out": {"tensor": "y", "target": "x"}}},
        {"images": {"out": {"tensor": "y", "range": [1, 1]}}},
        {"images": {"out": {"formula": "a", "tensors": {"b": "y"}}}},
        {"images": {"out": {"formula": "a", "tensors": {"a": "y", "b": "y"}}}},
        {"images": {"out": {"formula": "a.b", "tensors": {"a": "y"}}}},
        {"images": {"out": {"tensor": "y"}}, "targets": {"oui": "a.png"}},
        {"images": {"out": {"tensor": "y"}}, "targets": {"out": "a.png"}},
        {"images": {"out": {"formula": "a", "tensors": {"a": {"tensor": "y", "model": "reference"}}}}},
    ],
)
def test_settings_are_checked_before_anything_runs(settings: dict[str, Any], check_message: CheckMessage) -> None:
    with pytest.raises(ValidationError) as caught:
        RenderImages.model_validate_json(json.dumps(settings))
    check_message(caught.value)


def test_outputs_are_drawn_by_default(tmp_path: Path, photos: Path) -> None:
    ran, record = render(tmp_path, photos, {}, make_denoiser(tmp_path / "a.onnx"))
    np.testing.assert_array_equal(pixels(ran, file_of(record, "output0", "candidate")), PHOTO)


def test_constants_are_weights(tmp_path: Path, photos: Path) -> None:
    """Paddle's exporters write weights as Constant nodes."""
    model = onnx.load(make_denoiser(tmp_path / "a.onnx"))
    kernel = model.graph.initializer.pop()
    model.graph.node.insert(0, helper.make_node("Constant", [], ["k"], value=kernel))
    onnx.save(model, tmp_path / "b.onnx")
    images = {"k": {"tensor": "k"}}
    ran, record = render(tmp_path, photos, images, tmp_path / "b.onnx", tmp_path / "a.onnx")
    assert [file.side for file in record.images[0].rows[0].files] == ["reference", "candidate", "difference"]
    reference, candidate = (pixels(ran, file_of(record, "k", side)) for side in ("reference", "candidate"))
    np.testing.assert_array_equal(reference, candidate)


# Pixels


@pytest.mark.parametrize("shape", [(), (5,), (4, 5), (1, 4, 5), (2, 3, 4, 5), (2, 2, 3, 4, 5), (0, 3, 4, 4)])
def test_tensors_of_any_rank_have_planes(shape: tuple[int, ...]) -> None:
    planes = planes_of(np.ones(shape), None, "y")
    assert planes.ndim == 3
    assert planes.size == np.prod(shape[-3:] if len(shape) > 3 else shape) * (0 not in shape)


def test_channels_last_and_bgr_are_drawn_in_their_colors() -> None:
    red = np.zeros((1, 2, 4, 3), np.float32)
    red[..., 2] = 1
    planes = planes_of(red, None, "y")
    assert planes.shape == (3, 2, 4)
    assert (draw_image(planes[::-1], Range(0, 1)).pixels[0, 0] == (255, 0, 0)).all()


def test_ranges_are_those_of_pixels_or_of_the_values() -> None:
    assert choose_range(np.array([0.2, 0.4]), np.dtype(np.float32)) == Range(0, 1)
    assert choose_range(np.array([3.0, 4.0]), np.dtype(np.uint8)) == Range(0, 255)
    assert choose_range(np.array([-3.0, np.nan, 4.0]), np.dtype(np.float32)) == Range(-3, 4)
    assert choose_range(np.array([5.0]), np.dtype(np.float32)) == Range(4.5, 5.5)
    assert choose_range(np.array([np.nan]), np.dtype(np.float32)) == Range(0, 1)


def test_extreme_values_do_not_overflow() -> None:
    drawn = draw_image(np.array([[[-1.7e308, 0, 1.7e308]]]), Range(-1.7e308, 1.7e308))
    np.testing.assert_array_equal(drawn.pixels[0, :, 0], [0, 128, 255])


@pytest.mark.parametrize("shape", [(0, 4, 4), (2, 0, 4), (3000, 3, 3), (2, 3, 20_000), (1, 1, 1)])
def test_tiles_of_any_shape_are_bounded(shape: tuple[int, int, int]) -> None:
    drawn = draw_tiles(np.zeros(shape), Range(0, 1))
    assert 0 < max(drawn.pixels.shape[:2]) <= 8192
    assert ("the tensor is empty" in drawn.warnings) == (0 in shape)
    assert any("3,000 channels" in note or "3000 channels" in note for note in drawn.notes) == (shape[0] == 3000)
