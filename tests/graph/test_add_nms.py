"""The operation `add_nms`: results of ONNX's operators, settings of the plugin, and layouts that are refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import pytest
from onnx import TensorProto, helper
from pydantic import ValidationError

from ndld_flow.base.errors import RequestError
from ndld_flow.graph.edit.operations.add_nms import AddNms
from tests.support.editing_fixtures import edit, run
from tests.support.message_files import CheckMessage

Array = npt.NDArray[Any]
Detections = list[tuple[float, int, tuple[float, ...], int]]
"""Score, class, box and its index, the best first."""


def predictions(*shapes: tuple[int | str, ...], names: str = "", opset: int = 17) -> onnx.ModelProto:
    """A model with outputs of these shapes, `raw0`, `raw1`, ..., which are its inputs."""
    inputs = [helper.make_tensor_value_info(f"x{i}", TensorProto.FLOAT, shape) for i, shape in enumerate(shapes)]
    outputs = [helper.make_tensor_value_info(f"raw{i}", TensorProto.FLOAT, shape) for i, shape in enumerate(shapes)]
    nodes = [helper.make_node("Identity", [f"x{i}"], [f"raw{i}"], name=f"copy{i}") for i in range(len(shapes))]
    model = helper.make_model(
        helper.make_graph(nodes, "head", inputs, outputs), opset_imports=[helper.make_opsetid("", opset)], ir_version=8
    )
    if names:
        helper.set_model_props(model, {"names": names})
    return model


def random_boxes(rng: np.random.Generator, images: int, count: int) -> Array:
    """Centers and sizes, [images, count, 4], with much overlap."""
    centers = rng.integers(0, 4, (images, count, 2)) * 20 + rng.normal(0, 3, (images, count, 2))
    return np.concatenate([centers, rng.uniform(10, 20, (images, count, 2))], axis=2).astype(np.float32)


def corners_of(boxes: Array) -> Array:
    return np.concatenate([boxes[..., :2] - boxes[..., 2:] / 2, boxes[..., :2] + boxes[..., 2:] / 2], axis=-1)


def iou(box: Array, others: Array) -> Array:
    """torchvision's `box_iou` of boxes x1, y1, x2, y2."""
    low, high = np.maximum(box[:2], others[:, :2]), np.minimum(box[2:], others[:, 2:])
    common = np.prod(np.clip(high - low, 0, None), axis=1)
    area = np.prod(others[:, 2:] - others[:, :2], axis=1)
    return np.asarray(common / (np.prod(box[2:] - box[:2]) + area - common))


def reference(corners: Array, scores: Array, nms: AddNms) -> Detections:
    """Greedy suppression in one image, as `torchvision.ops.batched_nms` does it: [boxes, 4] and [boxes, classes]."""
    candidates = [
        (float(scores[box, label]), int(label), box)
        for box in range(len(corners))
        for label in (range(scores.shape[1]) if nms.multi_label and not nms.class_agnostic else [scores[box].argmax()])
        if scores[box, label] > nms.score_threshold
    ]
    kept: list[tuple[float, int, int]] = []
    for score, label, box in sorted(candidates, key=lambda c: -c[0]):
        rivals = [other for _, known, other in kept if nms.class_agnostic or known == label]
        if not rivals or (iou(corners[box], corners[rivals]) <= nms.iou_threshold).all():
            kept.append((score, label, box))
    first = int(nms.background)
    return [(s, label + first, tuple(corners[box]), box) for s, label, box in kept[: nms.max_detections]]


def check(outputs: dict[str, Array], corners: Array, scores: Array, nms: AddNms) -> list[Detections]:
    """Compare the four padded outputs with the reference, image by image."""
    assert list(outputs)[:4] == ["num_dets", "det_boxes", "det_scores", "det_classes"]
    assert outputs["num_dets"].dtype == outputs["det_classes"].dtype == np.int32
    assert outputs["det_boxes"].shape == (len(corners), nms.max_detections, 4)
    wanted = [reference(corners[image], scores[image], nms) for image in range(len(corners))]
    for image, detections in enumerate(wanted):
        count = len(detections)
        assert outputs["num_dets"][image].tolist() == [count]
        np.testing.assert_allclose(outputs["det_scores"][image, :count], [d[0] for d in detections], rtol=1e-6)
        assert outputs["det_classes"][image, :count].tolist() == [d[1] for d in detections]
        expected = np.array([d[2] for d in detections], np.float32).reshape(count, 4)
        np.testing.assert_allclose(outputs["det_boxes"][image, :count], expected, rtol=1e-4, atol=1e-4)
        assert not any(outputs[name][image, count:].any() for name in list(outputs)[1:])
    return wanted


OPTIONS: list[dict[str, Any]] = [
    {},
    {"iou_threshold": 0.1, "score_threshold": 0.6},
    {"max_detections": 7},
    {"max_detections": 900, "score_threshold": 0, "iou_threshold": 1},
    {"class_agnostic": True},
    {"multi_label": False},
    {"score_threshold": 1},
]


@pytest.mark.representatives("2-True-options2", "1-True-options1", "2-True-options3")
@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("objectness", [False, True])
@pytest.mark.parametrize("axis", [1, 2])
def test_one_output_in_both_layouts_agrees_with_the_reference(
    options: dict[str, Any], objectness: bool, axis: int
) -> None:
    rng = np.random.default_rng(0)
    boxes, scores = random_boxes(rng, 3, 40), rng.random((3, 40, 6), np.float32)
    seen = rng.random((3, 40, 1), np.float32)
    raw = np.concatenate([boxes, *([seen] if objectness else []), scores], axis=2)
    raw = raw.transpose(0, 2, 1) if axis == 1 else raw
    given = {"classes": 6, **options}
    model = edit(predictions(("N", *raw.shape[1:])), {"add_nms": given})
    weighted = scores * seen if objectness else scores
    wanted = check(run(model, {"x0": raw}), corners_of(boxes), weighted, AddNms.model_validate(given))
    assert any(wanted) or options.get("score_threshold") == 1
    shapes = [[dim.dim_param or dim.dim_value for dim in v.type.tensor_type.shape.dim] for v in model.graph.output]
    most = given.get("max_detections", 100)
    assert shapes == [["N", 1], ["N", most, 4], ["N", most], ["N", most]]


@pytest.mark.representatives("True-True-xywh", "True-False-xywh", "True-False-xyxy")
@pytest.mark.parametrize("box_format", ["xyxy", "yxyx", "xywh"])
@pytest.mark.parametrize("background", [False, True])
@pytest.mark.parametrize("flip", [False, True])
def test_boxes_and_scores_agree_with_the_reference(box_format: str, background: bool, flip: bool) -> None:
    rng = np.random.default_rng(1)
    boxes, scores = random_boxes(rng, 2, 30), rng.random((2, 30, 5), np.float32)
    corners = corners_of(boxes)
    given = {"xyxy": corners, "yxyx": corners[..., [1, 0, 3, 2]], "xywh": boxes}[box_format].astype(np.float32)
    settings = {"boxes": "raw0", "scores": "raw1", "box_format": box_format, "background": background}
    feeds = {"x0": given, "x1": scores}
    if flip:
        feeds = {name: np.ascontiguousarray(array.transpose(0, 2, 1)) for name, array in feeds.items()}
    model = edit(predictions(*(feeds[name].shape for name in ("x0", "x1"))), {"add_nms": settings})
    check(run(model, feeds), corners, scores[..., background:], AddNms.model_validate(settings))


@pytest.mark.parametrize("activation", ["sigmoid", "softmax"])
def test_logits_are_activated_and_a_softmax_counts_the_background(activation: str) -> None:
    rng = np.random.default_rng(2)
    boxes, logits = random_boxes(rng, 1, 25), rng.normal(0, 2, (1, 25, 4)).astype(np.float32)
    power = np.exp(logits)
    scores = 1 / (1 + np.exp(-logits)) if activation == "sigmoid" else power / power.sum(axis=2, keepdims=True)
    settings = {"boxes": "raw0", "scores": "raw1", "box_format": "xywh", "background": True, "activation": activation}
    model = edit(predictions(boxes.shape, logits.shape), {"add_nms": settings})
    nms = AddNms.model_validate(settings)
    check(run(model, {"x0": boxes, "x1": logits}), corners_of(boxes), scores[..., 1:], nms)


def test_columns_after_the_scores_come_with_their_detections() -> None:
    rng = np.random.default_rng(3)
    boxes, scores, masks = random_boxes(rng, 2, 20), rng.random((2, 20, 3), np.float32), rng.random((2, 20, 5))
    raw = np.concatenate([boxes, scores, masks], axis=2).transpose(0, 2, 1).astype(np.float32)
    settings = {"classes": 3, "objectness": False, "max_detections": 9}
    outputs = run(edit(predictions(raw.shape), {"add_nms": settings}), {"x0": raw})
    wanted = check(outputs, corners_of(boxes), scores, AddNms.model_validate(settings))
    for image, detections in enumerate(wanted):
        for index, (*_, box) in enumerate(detections):
            np.testing.assert_allclose(outputs["det_extra"][image, index], masks[image, box], rtol=1e-6)
    joined = run(edit(predictions(raw.shape), {"add_nms": {**settings, "result": "joined"}}), {"x0": raw})
    parts = [outputs["det_boxes"], outputs["det_scores"][..., None], outputs["det_classes"][..., None]]
    assert list(joined) == ["detections"]
    np.testing.assert_array_equal(joined["detections"], np.concatenate([*parts, outputs["det_extra"]], axis=2))


def test_flat_results_have_no_padding_and_name_the_image_of_each() -> None:
    rng = np.random.default_rng(4)
    boxes, scores = random_boxes(rng, 3, 20), rng.random((3, 20, 3), np.float32)
    scores[1] = 0  # an image without detections
    raw = np.concatenate([boxes, scores], axis=2)
    settings = {"classes": 3}
    padded = run(edit(predictions(raw.shape), {"add_nms": settings}), {"x0": raw})
    flat = run(edit(predictions(raw.shape), {"add_nms": {**settings, "result": "flat"}}), {"x0": raw})
    assert list(flat) == ["det_boxes", "det_scores", "det_classes", "det_images"]
    assert padded["num_dets"][1] == 0
    for image, count in enumerate(padded["num_dets"][:, 0]):
        own = flat["det_images"] == image
        for name in ("det_boxes", "det_scores", "det_classes"):
            np.testing.assert_array_equal(flat[name][own], padded[name][image, :count])
    assert len(flat["det_scores"]) == padded["num_dets"].sum()


def test_nothing_detected_in_any_image_gives_empty_results() -> None:
    raw = np.zeros((2, 7, 10), np.float32)
    outputs = run(edit(predictions(raw.shape), {"add_nms": {"classes": 3}}), {"x0": raw})
    assert not any(array.any() for array in outputs.values())


def test_half_precision_predictions_are_computed_in_float32() -> None:
    model = predictions((1, 7, 30))
    for value in (*model.graph.input, *model.graph.output):
        value.type.tensor_type.elem_type = TensorProto.FLOAT16
    rng = np.random.default_rng(5)
    raw = np.concatenate([random_boxes(rng, 1, 30), rng.random((1, 30, 3))], axis=2).astype(np.float16)
    outputs = run(edit(model, {"add_nms": {"classes": 3}}), {"x0": np.ascontiguousarray(raw.transpose(0, 2, 1))})
    exact = raw.astype(np.float32)
    check(outputs, corners_of(exact[..., :4]), exact[..., 4:], AddNms(classes=3))


@pytest.mark.representatives("shape1--settings1", "shape3-['a', 'b', 'c']-settings3")
@pytest.mark.parametrize(
    ("shape", "names", "settings"),
    [
        ((1, 84, 8400), "", {}),
        ((1, 25200, 85), "", {}),
        ((1, 22, "anchors"), str({i: f"class {i}" for i in range(18)}), {}),
        (("N", 8400, 7), "['a', 'b', 'c']", {}),
        ((1, 7, 7), "", {"classes": 3, "axis": 1}),
        ((1, 116, 8400), "", {"classes": 80, "objectness": False}),
        ((1, 20, 100), "", {"objectness": True}),
    ],
)
def test_a_layout_that_is_clear_needs_no_more_settings(
    shape: tuple[int | str, ...], names: str, settings: dict[str, Any]
) -> None:
    model = edit(predictions(shape, names=names), {"add_nms": settings})
    assert [output.name for output in model.graph.output][:4] == ["num_dets", "det_boxes", "det_scores", "det_classes"]


@pytest.mark.parametrize(
    ("shapes", "settings"),
    [
        ([(1, 22, 8400)], {}),
        ([(1, 84, 84)], {"classes": 80}),
        ([(1, 116, 8400)], {"classes": 80}),
        ([(1, "a", "b")], {"classes": 80}),
        ([(1, 3, 40)], {}),
        ([(1, 40, 40, 85)], {}),
        ([(1, 100, 4), (1, 100, 3)], {}),
        ([(1, 100, 4)], {"output": "raw1"}),
        ([(1, 4, 4), (1, 4, 3)], {"boxes": "raw0", "scores": "raw1", "box_format": "xyxy"}),
        ([(1, 100, 4), (1, 99, 3)], {"boxes": "raw0", "scores": "raw1", "box_format": "xyxy"}),
        ([(1, 100, 4), (1, 100, 100)], {"boxes": "raw0", "scores": "raw1", "box_format": "xyxy"}),
    ],
)
def test_an_unclear_layout_is_refused_with_the_settings_to_give(
    shapes: list[tuple[int | str, ...]], settings: dict[str, Any], check_message: CheckMessage
) -> None:
    with pytest.raises(RequestError) as refused:
        edit(predictions(*shapes), {"add_nms": settings})
    check_message(refused.value)


def test_hostile_metadata_are_not_evaluated(check_message: CheckMessage) -> None:
    for names in ("__import__('os').getpid()", "[" * 5000, "{", "7", "'" + "x" * 2**19 + "'"):
        with pytest.raises(RequestError) as caught:
            edit(predictions((1, 22, 8400), names=names), {"add_nms": {}})
        check_message(caught.value)


def test_an_old_opset_is_refused_with_the_remedy(check_message: CheckMessage) -> None:
    with pytest.raises(RequestError) as caught:
        edit(predictions((1, 84, 8400), opset=11), {"add_nms": {}})
    check_message(caught.value)


def test_raw_predictions_are_kept_on_request_and_other_outputs_keep_their_place() -> None:
    model = predictions((1, 2, 3), (1, 84, 50), (1, 2, 3))
    outputs = [output.name for output in edit(model, {"add_nms": {"output": "raw1", "axis": 1}}).graph.output]
    assert outputs == ["raw0", "num_dets", "det_boxes", "det_scores", "det_classes", "raw2"]
    kept = edit(model, {"add_nms": {"output": "raw1", "axis": 1, "keep": True, "result": "joined"}})
    assert [output.name for output in kept.graph.output] == ["raw0", "raw1", "raw2", "detections"]


@pytest.mark.parametrize(
    ("shapes", "settings", "attributes", "boxes"),
    [
        ([(1, 84, 8400)], {}, {"box_coding": 1, "score_activation": 0, "class_agnostic": 0}, (1, 8400, 4)),
        ([(1, 84, 8400)], {"activation": "sigmoid"}, {"score_activation": 1}, (1, 8400, 4)),
        ([(2, 100, 8)], {"objectness": True, "activation": "sigmoid"}, {"score_activation": 0}, (2, 100, 4)),
        (
            [(1, 100, 4), (1, 100, 3)],
            {"boxes": "raw0", "scores": "raw1", "box_format": "yxyx", "class_agnostic": True, "background": True},
            {"box_coding": 0, "class_agnostic": 1},
            (1, 100, 4),
        ),
    ],
)
def test_the_plugin_of_tensorrt_has_the_settings_and_outputs_of_its_documentation(
    shapes: list[tuple[int, ...]], settings: dict[str, Any], attributes: dict[str, int], boxes: tuple[int, ...]
) -> None:
    limits = {"max_detections": 50, "score_threshold": 0.3, "iou_threshold": 0.6, "op_type": "EfficientNMS_TRT"}
    model = edit(predictions(*shapes), {"add_nms": {**settings, **limits}})
    [node] = [node for node in model.graph.node if node.op_type == "EfficientNMS_TRT"]
    values = {attribute.name: helper.get_attribute_value(attribute) for attribute in node.attribute}
    assert values["max_output_boxes"] == 50
    assert values["background_class"] == -1
    assert values["plugin_version"] == b"1"
    assert values["score_threshold"] == pytest.approx(0.3)
    assert values["iou_threshold"] == pytest.approx(0.6)
    assert attributes.items() <= values.items()
    shown = {
        value.name: [dim.dim_value for dim in value.type.tensor_type.shape.dim]
        for value in (*model.graph.output, *model.graph.value_info)
    }
    images = shapes[0][0]
    assert shown[node.input[0]] == list(boxes)
    assert [output.name for output in model.graph.output] == ["num_dets", "det_boxes", "det_scores", "det_classes"]
    assert shown["num_dets"] == [images, 1]
    assert shown["det_boxes"] == [images, 50, 4]
    assert shown["det_scores"] == shown["det_classes"] == [images, 50]


@pytest.mark.parametrize(
    "settings",
    [
        {"boxes": "a"},
        {"boxes": "a", "scores": "b"},
        {"boxes": "a", "scores": "b", "box_format": "xyxy", "axis": 1},
        {"background": True},
        {"op_type": "EfficientNMS_TRT", "result": "joined"},
        {"op_type": "EfficientNMS_TRT", "multi_label": False},
        {"op_type": "EfficientNMS_TRT", "activation": "softmax"},
        {"iou_threshold": 45},
        {"max_detections": 0},
    ],
)
def test_settings_that_contradict_each_other_are_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        AddNms.model_validate(settings)
