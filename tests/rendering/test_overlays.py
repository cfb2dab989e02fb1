"""Results drawn over the input: boxes, masks, heat maps and labels, and their agreement with the reference's."""

from __future__ import annotations

import json
from collections.abc import Mapping
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
from ndld_flow.rendering.detections import Boxes, find_regions, read_detections
from ndld_flow.rendering.settings import Detections
from ndld_flow.steps.render_images import RenderImages
from ndld_flow.store.kinds import ImagesDocument, Onnx
from tests.support.message_files import CheckMessage
from tests.support.models_run import Ran, run_step
from tests.support.text_facts import numbers_in

SIDE = 480
"""Large enough that the image is not enlarged."""
RAW = np.zeros((1, 6, 9), np.float32)
"""Predictions of nine boxes as x, y, w, h and two scores: two good ones, the first twice."""
RAW[0, :, 0] = (120, 120, 100, 60, 0.9, 0.1)
RAW[0, :, 1] = (121, 120, 100, 60, 0.8, 0.1)
RAW[0, :, 2] = (300, 300, 40, 80, 0.0, 0.7)
PREDICTIONS = {"predictions": {"classes": 2, "objectness": False, "axis": 1}}
NAN = np.nan


def constant_model(path: Path, metadata: Mapping[str, str], **outputs: Array) -> Path:
    """Write a model with an image input that computes these outputs whatever the image is."""
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 3, SIDE, SIDE])
    nodes, infos = [], []
    for name, values in outputs.items():
        nodes.append(helper.make_node("Identity", [f"{name}_values"], [name]))
        dtype = helper.np_dtype_to_tensor_dtype(values.dtype)
        infos.append(helper.make_tensor_value_info(name, dtype, values.shape))
    weights = [numpy_helper.from_array(values, f"{name}_values") for name, values in outputs.items()]
    model = helper.make_model(helper.make_graph(nodes, "g", [x], infos, weights), ir_version=8)
    model.opset_import[0].version = 17
    helper.set_model_props(model, dict(metadata))
    onnx.save(model, path)
    return path


def overlay(
    folder: Path, settings: Mapping[str, Any], reference: Mapping[str, Array], candidate: Mapping[str, Array]
) -> tuple[dict[str, float], dict[str, ImageFile], Ran]:
    """Return metrics and files of an overlay on a gray image."""
    Image.new("RGB", (SIDE, SIDE), (100, 100, 100)).save(folder / "gray.png")
    metadata = {"names": "{0: 'cat', 1: 'dog'}"}
    paths = [
        constant_model(folder / f"{number}.onnx", metadata, **item)
        for number, item in enumerate((reference, candidate))
    ]
    ran = run_step(
        RenderImages,
        paths[1],
        folder / "ran",
        {"overlays": {"o": settings}, "reference": "source"},
        {"x": {"data": str(folder / "gray.png")}},
        artifacts={"reference": Onnx(paths[0], "source", "digest")},
    )
    record = RenderedImages.model_validate_json((ran.out / ImagesDocument.main).read_text())
    metrics = {name.removeprefix("o."): value for name, value in ran.result.metrics.items()}
    return metrics, {file.side: file for file in record.images[0].rows[0].files}, ran


def pixels(ran: Ran, file: ImageFile) -> Array:
    return np.asarray(Image.open(ran.out / file.file).convert("RGB")).astype(int)


# Boxes


def test_predictions_are_drawn_as_boxes(tmp_path: Path) -> None:
    metrics, files, ran = overlay(tmp_path, PREDICTIONS, {"raw": RAW}, {"raw": RAW})
    assert (metrics["detections"], metrics["recall"], metrics["precision"]) == (2, 1, 1)
    drawn = pixels(ran, files["candidate"])
    np.testing.assert_array_equal(drawn, pixels(ran, files["reference"]))
    changed = (drawn != 100).any(axis=-1)
    for left, top, right, bottom in ((70, 90, 170, 150), (280, 260, 320, 340)):
        assert changed[top : bottom + 1, (left, right)].all()
        assert not changed[top + 4 : bottom - 4, left + 4 : right - 4].any()
    assert not changed[400:].any()
    own, found = files["candidate"].captions
    assert numbers_in(own) == [2, 0.9] and numbers_in(found) == [2, 2, 0]


@pytest.mark.parametrize("value", [NAN, *(pytest.param(item, marks=pytest.mark.thorough) for item in (0.0, np.inf))])
def test_a_destroyed_detector_looks_destroyed(tmp_path: Path, value: float) -> None:
    destroyed = RAW.copy()
    destroyed[:, 4:] = value
    metrics, files, ran = overlay(tmp_path, PREDICTIONS, {"raw": RAW}, {"raw": destroyed})
    assert metrics["recall"] == 0
    assert files["candidate"].captions[-1].startswith("0 of 2 in source found")
    assert bool(files["candidate"].warnings) == (value != 0)
    assert metrics["nonfinite"] == (0 if value == 0 else 18)
    assert not np.array_equal(pixels(ran, files["candidate"]), pixels(ran, files["reference"]))


def test_a_reference_without_detections_is_no_evidence(tmp_path: Path) -> None:
    nothing = np.zeros_like(RAW)
    metrics, files, _ = overlay(tmp_path, PREDICTIONS, {"raw": nothing}, {"raw": nothing})
    assert not {"recall", "precision"} & metrics.keys()
    assert files["candidate"].captions[-1].startswith("source detects nothing")


def test_boxes_elsewhere_are_counted(tmp_path: Path) -> None:
    moved = RAW.copy()
    moved[:, 0] += 5000
    metrics, files, _ = overlay(tmp_path, PREDICTIONS, {"raw": RAW}, {"raw": moved})
    assert metrics["recall"] == 0
    assert "2 of 2 outside the image" in files["candidate"].warnings


CORNERS = np.array([[[10, 20, 110, 80], [200, 200, 240, 300]]], np.float32)
SCORES, CLASSES = np.array([[0.4, 0.9]], np.float32), np.array([[0, 1]], np.int64)


@pytest.mark.parametrize(
    ("settings", "raw"),
    [
        ({"boxes": "b", "scores": "s", "classes": "c"}, {"b": CORNERS, "s": SCORES, "c": CLASSES}),
        ({"boxes": "b", "scores": "s", "classes": "c"}, {"b": CORNERS[0], "s": SCORES[0], "c": CLASSES[0]}),
        (
            {"boxes": "b", "scores": "s", "classes": "c", "box_format": "yxyx"},
            {"b": CORNERS[..., [1, 0, 3, 2]], "s": SCORES, "c": CLASSES},
        ),
        (
            {"boxes": "b", "scores": "s", "classes": "c", "box_format": "xywh", "normalized": True},
            {
                "b": np.array([[[60, 50, 100, 60], [220, 250, 40, 100]]], np.float32) / 400,
                "s": SCORES,
                "c": CLASSES.astype(np.float32),
            },
        ),
        ({"tensor": "t"}, {"t": np.concatenate([CORNERS, SCORES[..., None], CLASSES[..., None]], axis=-1)}),
        (
            {"boxes": "b", "scores": "s", "classes": "c", "count": "n"},
            {
                "b": np.concatenate([CORNERS, CORNERS], axis=1),
                "s": np.concatenate([SCORES, SCORES], axis=1),
                "c": np.concatenate([CLASSES, CLASSES], axis=1),
                "n": np.array([[2]], np.int32),
            },
        ),
    ],
)
def test_final_detections_are_read_in_each_form(settings: dict[str, Any], raw: dict[str, Array]) -> None:
    boxes = read_detections(Detections(**settings), raw, (400, 400), "here")
    np.testing.assert_allclose(boxes.corners, CORNERS[0, ::-1], atol=1e-3)  # best first
    np.testing.assert_allclose(boxes.scores, [0.9, 0.4])
    np.testing.assert_array_equal(boxes.classes, [1, 0])
    assert not boxes.warnings


def test_scores_that_are_not_numbers_are_not_detections() -> None:
    raw = {"b": CORNERS, "s": np.array([[NAN, 0.9]], np.float32)}
    boxes = read_detections(Detections(boxes="b", scores="s"), raw, (400, 400), "here")
    assert len(boxes) == 1
    assert "1 box NaN or infinite" in boxes.warnings


def test_shapes_that_do_not_belong_together_are_named(check_message: CheckMessage) -> None:
    raw = {"b": CORNERS, "s": np.zeros((1, 3), np.float32)}
    with pytest.raises(RequestError) as caught:
        read_detections(Detections(boxes="b", scores="s"), raw, (400, 400), "here")
    check_message(caught.value)


def test_each_detection_is_matched_once_and_within_its_class() -> None:
    def boxes(classes: list[int]) -> Boxes:
        corners = np.array([[0, 0, 10, 10]] * len(classes), np.float64).reshape(-1, 4)
        return Boxes(corners, np.ones(len(classes)), np.array(classes))

    assert boxes([1, 1, 1]).matched(boxes([1])) == 1
    assert boxes([1, 1]).matched(boxes([1, 1, 1])) == 2
    assert boxes([1]).matched(boxes([2])) == 0
    assert boxes([1]).matched(boxes([])) == 0


# Heat maps and masks


def test_regions_are_those_of_a_flood_fill() -> None:
    rng = np.random.default_rng(3)
    for density in (0.05, 0.3, 0.5, 0.8, 1.0):
        mask = rng.random((23, 31)) < density
        assert sorted(find_regions(mask)) == sorted(_flooded(mask))
    assert find_regions(np.zeros((3, 4), bool)) == []


def _flooded(mask: Array) -> list[tuple[int, int, int, int]]:
    left = {(int(row), int(column)) for row, column in np.argwhere(mask)}
    boxes = []
    while left:
        waiting, region = [left.pop()], []
        while waiting:
            row, column = waiting.pop()
            region.append((row, column))
            near = {(row + down, column + right) for down in (-1, 0, 1) for right in (-1, 0, 1)} & left
            left -= near
            waiting += near
        rows, columns = zip(*region, strict=True)
        boxes.append((min(columns), min(rows), max(columns) + 1, max(rows) + 1))
    return boxes


def scores_of(**boxes: slice) -> Array:
    plane = np.full((1, 1, SIDE // 4, SIDE // 4), 0.02, np.float32)
    for columns in boxes.values():
        plane[..., 20:30, columns] = 0.9
    return plane


HEAT = {"heat_map": {"tensor": "m", "threshold": 0.5}}


def test_a_heat_map_is_enlarged_and_its_regions_are_compared(tmp_path: Path) -> None:
    both, first = scores_of(a=slice(10, 30), b=slice(60, 80)), scores_of(a=slice(10, 30))
    metrics, files, ran = overlay(tmp_path, HEAT, {"m": both}, {"m": first})
    assert metrics["overlap"] == pytest.approx(0.5, abs=0.01)
    assert "2 regions above 0.5" in files["reference"].captions[1]
    assert "1 region above 0.5" in files["candidate"].captions[1]
    drawn = pixels(ran, files["reference"])
    red, blue = drawn[100, 80], drawn[300, 300]
    assert red[0] > red[2] + 50
    np.testing.assert_allclose(blue, 100, atol=6)


def test_a_heat_map_of_nothing_is_no_evidence(tmp_path: Path) -> None:
    metrics, files, _ = overlay(tmp_path, HEAT, {"m": scores_of()}, {"m": scores_of()})
    assert "overlap" not in metrics
    assert "no evidence" in files["candidate"].captions[-1]


def test_a_heat_map_of_nan_is_magenta(tmp_path: Path) -> None:
    metrics, files, ran = overlay(tmp_path, HEAT, {"m": scores_of(a=slice(10, 30))}, {"m": scores_of() * NAN})
    assert (pixels(ran, files["candidate"]) == (255, 0, 255)).all()
    assert metrics["overlap"] == 0
    assert any("NaN" in warning for warning in files["candidate"].warnings)


def classes_of(*columns: int) -> Array:
    """Return logits [1, 3, 8, 8] of classes that begin at these columns."""
    logits = np.zeros((1, 3, 8, 8), np.float32)
    for class_, column in enumerate((0, *columns)):
        logits[:, class_, :, column:] = class_ + 1
    return logits


def test_the_worst_class_of_a_mask_decides(tmp_path: Path) -> None:
    metrics, files, ran = overlay(tmp_path, {"mask": {"tensor": "m"}}, {"m": classes_of(2, 6)}, {"m": classes_of(2, 7)})
    assert metrics["overlap"] == pytest.approx(0.5)  # class 2: one column of two; class 1: four of five
    assert "overlap with source: 0.5, class 2" in str(files["candidate"].captions)
    assert files["reference"].captions == ("dog 50 %, class 2 25 %, cat 25 %",)
    drawn = pixels(ran, files["reference"])
    np.testing.assert_array_equal(drawn[10, 10], 100)  # the background
    assert len({tuple(drawn[10, column].tolist()) for column in (10, 200, 470)}) == 3


def test_pixels_of_nan_belong_to_no_class(tmp_path: Path) -> None:
    broken = classes_of(2, 6)
    broken[:, 0, 4:] = NAN
    metrics, files, ran = overlay(tmp_path, {"mask": {"tensor": "m"}}, {"m": classes_of(2, 6)}, {"m": broken})
    assert metrics["overlap"] == pytest.approx(0.5)
    assert (pixels(ran, files["candidate"])[SIDE // 2 :] == (255, 0, 255)).all()


# Labels


@pytest.mark.representatives("reference2-candidate2-0-dog in source", "reference1-candidate1-0-dog in source")
@pytest.mark.parametrize(
    ("reference", "candidate", "same", "caption"),
    [
        ([1, 3], [1, 2], 1, "same class"),
        ([1, 3], [2, 1], 0, "dog in source"),
        ([1, 3], [NAN, 1], 0, "dog in source"),
        ([1, 3], [1, 1], 0, "dog in source"),  # a tie is no decision
        ([1, 1], [1, 1], None, "no best class"),
    ],
)
def test_labels_are_compared(
    tmp_path: Path, reference: list[float], candidate: list[float], same: float | None, caption: str
) -> None:
    outputs = [{"y": np.array([item], np.float32)} for item in (reference, candidate)]
    metrics, files, ran = overlay(tmp_path, {"labels": {"tensor": "y", "activation": "softmax"}}, *outputs)
    assert metrics.get("same_class") == same
    assert caption in files["candidate"].captions[-1]
    assert (pixels(ran, files["candidate"]) != 100).any()


# Mistakes


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"predictions": {}, "detections": {"tensor": "y"}},
        {"predictions": {"keep": True}},
        {"detections": {}},
        {"heat_map": {"tensor": "y", "range": [1, 0]}},
    ],
)
def test_settings_are_checked(settings: dict[str, Any], check_message: CheckMessage) -> None:
    with pytest.raises(ValidationError) as caught:
        RenderImages.model_validate_json(json.dumps({"overlays": {"o": settings}}))
    check_message(caught.value)


@pytest.mark.parametrize(
    "settings",
    [
        {"over": "z", **HEAT},
        {"heat_map": {"tensor": "w"}},
        {"heat_map": {"tensor": "m", "channel": 1}},
        {"predictions": {"output": "m"}},
    ],
)
def test_mistakes_are_named(tmp_path: Path, settings: dict[str, Any], check_message: CheckMessage) -> None:
    with pytest.raises(RequestError) as caught:
        overlay(tmp_path, settings, {"m": scores_of()}, {"m": scores_of()})
    check_message(caught.value)


def test_an_overlay_needs_an_image(tmp_path: Path, check_message: CheckMessage) -> None:
    model = constant_model(tmp_path / "m.onnx", {}, m=scores_of())
    with pytest.raises(RequestError) as caught:
        run_step(RenderImages, model, tmp_path / "ran", {"overlays": {"o": HEAT}})
    check_message(caught.value)
