"""Boxes of detectors, and connected regions of a mask."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
from onnx import helper

from ndld_flow.base.errors import RequestError
from ndld_flow.base.quantities import counted
from ndld_flow.graph.edit.edited_model import EditedModel
from ndld_flow.graph.edit.operations.add_nms import AddNms
from ndld_flow.models.tensors import Array, shape_text
from ndld_flow.rendering.settings import Detections, Predictions
from ndld_flow.runtimes.onnxruntime.onnxruntime_session import OnnxruntimeSession, SessionSettings, open_model

_OPSET = 17
MATCHING_IOU = 0.5
"""Overlap (intersection over union) from which two boxes of one class are the same detection."""


@dataclass(frozen=True)
class Boxes:
    """Detections in one image, best first."""

    corners: Array
    """float64 [detections, 4]: x1, y1, x2, y2 in pixels of the input."""
    scores: Array
    classes: Array
    warnings: tuple[str, ...] = ()
    """Reasons to distrust them: scores that are not finite, boxes outside the image."""

    def __len__(self) -> int:
        return len(self.scores)

    def checked(self, size: tuple[int, int], *raw: Array) -> Boxes:
        """Return the boxes with warnings on themselves and on the tensors that they come from.

        `size`: width and height of the image. Boxes without finite corners are dropped, and counted.
        """
        lost = sum(int((~np.isfinite(values)).sum()) for values in raw if values.dtype.kind == "f")
        total = sum(values.size for values in raw)
        warnings = [f"{lost:,} of {counted(total, 'prediction value')} NaN or infinite"] if lost else []
        finite = np.isfinite(self.corners).all(axis=1) & np.isfinite(self.scores)
        x1, y1, x2, y2 = self.corners[finite].T
        outside = int(((x2 <= 0) | (y2 <= 0) | (x1 >= size[0]) | (y1 >= size[1])).sum())
        if not finite.all():
            warnings.append(f"{counted(int((~finite).sum()), 'box')} NaN or infinite")
        if outside:
            warnings.append(f"{outside} of {len(self)} outside the image")
        if (empty := int(((x2 <= x1) | (y2 <= y1)).sum())) > 0:
            warnings.append(f"{empty} of {len(self)} without area")
        return Boxes(self.corners[finite], self.scores[finite], self.classes[finite], tuple(warnings))

    def matched(self, other: Boxes) -> int:
        """Return how many of these are detected by `other` too: the same class, IoU 0.5 or more, each used once."""
        free, found = np.ones(len(other), bool), 0
        for corners, class_ in zip(self.corners, self.classes, strict=True):
            overlaps = np.where(free & (other.classes == class_), _iou(corners, other.corners), 0.0)
            if len(overlaps) and overlaps.max() >= MATCHING_IOU:
                free[int(overlaps.argmax())] = False
                found += 1
        return found


def _iou(box: Array, others: Array) -> Array:
    """Return the intersection over union of a box with each of others."""
    low, high = np.maximum(box[:2], others[:, :2]), np.minimum(box[2:], others[:, 2:])
    shared = np.prod(np.clip(high - low, 0, None), axis=1)
    areas = np.prod(np.clip(others[:, 2:] - others[:, :2], 0, None), axis=1)
    union = np.prod(np.clip(box[2:] - box[:2], 0, None)) + areas - shared
    return np.asarray(np.divide(shared, union, out=np.zeros_like(shared), where=union > 0))


class PredictionDecoder:
    """Turns raw predictions into detections with the nodes of `add_nms`, in a model of their own."""

    def __init__(self, settings: Predictions, metadata: Mapping[str, str], where: str) -> None:
        self._settings, self._metadata, self._where = settings, metadata, where
        self._session: OnnxruntimeSession | None = None
        self._shapes: dict[str, tuple[int, ...]] = {}

    def decode(self, raw: Mapping[str, Array], size: tuple[int, int]) -> Boxes:
        """Return the detections of the first image. Raises `RequestError` for a layout that is not clear."""
        shapes = {name: values.shape for name, values in raw.items()}
        if self._session is None or shapes != self._shapes:
            self._session, self._shapes = self._open(raw), shapes
        feeds = {f"raw_{index}": np.ascontiguousarray(values) for index, values in enumerate(raw.values())}
        bound = self._session.bind(feeds)
        bound.run()
        found = bound.outputs()
        count, corners, scores, classes = (
            found[name] for name in ("num_dets", "det_boxes", "det_scores", "det_classes")
        )
        assert count is not None
        assert corners is not None
        assert scores is not None
        assert classes is not None
        kept = int(count.reshape(-1)[0])
        own = corners[0, :kept].astype(np.float64) * (np.array(size * 2) if self._settings.normalized else 1.0)
        return Boxes(own, scores[0, :kept].astype(np.float64), classes[0, :kept]).checked(size, *raw.values())

    def _open(self, raw: Mapping[str, Array]) -> OnnxruntimeSession:
        nodes, inputs, outputs = [], [], []
        for index, (name, values) in enumerate(raw.items()):
            dtype = helper.np_dtype_to_tensor_dtype(values.dtype)
            inputs.append(helper.make_tensor_value_info(f"raw_{index}", dtype, values.shape))
            outputs.append(helper.make_tensor_value_info(name, dtype, values.shape))
            nodes.append(helper.make_node("Identity", [f"raw_{index}"], [name]))
        graph = helper.make_graph(nodes, "predictions", inputs, outputs)
        proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", _OPSET)], ir_version=8)
        model = ir.from_proto(proto)
        model.metadata_props.update(self._metadata)
        nms = AddNms.model_validate(self._settings.model_dump(exclude={"normalized"}))
        try:
            nms.apply(EditedModel(model, Path("predictions.onnx")))
        except RequestError as error:
            raise RequestError(f"{self._where}: {error}") from None
        changed: onnx.ModelProto = ir.to_proto(model)
        return open_model(Path("predictions.onnx"), SessionSettings(), changed.SerializeToString())


def read_detections(settings: Detections, raw: Mapping[str, Array], size: tuple[int, int], where: str) -> Boxes:
    """Return the final detections of the first image above the score threshold.

    Raises `RequestError` for shapes that do not fit.
    """
    if settings.tensor is not None:
        joined = _rows(raw[settings.tensor], 2, where, settings.tensor)
        if joined.shape[1] < 6:
            raise RequestError(f"{where}: {settings.tensor} has {joined.shape[1]} columns, not box, score and class.")
        corners, scores, classes = joined[:, :4], joined[:, 4], joined[:, 5]
    else:
        assert settings.boxes is not None
        assert settings.scores is not None
        corners = _rows(raw[settings.boxes], 2, where, settings.boxes)
        scores = _rows(raw[settings.scores], 1, where, settings.scores)
        classes = (
            _rows(raw[settings.classes], 1, where, settings.classes) if settings.classes else np.zeros(len(scores))
        )
    if corners.shape[1] != 4 or not len(corners) == len(scores) == len(classes):
        shapes = ", ".join(f"{name} {shape_text(values.shape)}" for name, values in raw.items())
        raise RequestError(f"{where}: these are not the boxes, scores and classes of as many detections: {shapes}.")
    if settings.count is not None and raw[settings.count].size:
        kept = min(max(int(raw[settings.count].reshape(-1)[0]), 0), len(scores))
        corners, scores, classes = corners[:kept], scores[:kept], classes[:kept]
    above = ~(scores <= settings.score_threshold)  # NaN stays, to be counted
    order = np.argsort(-scores[above], kind="stable")
    own = _as_corners(corners[above][order].astype(np.float64), settings.box_format)
    if settings.normalized:
        own = own * np.array(size * 2)
    numbers = np.nan_to_num(classes[above][order], nan=-1, posinf=-1, neginf=-1).astype(np.int64)
    return Boxes(own, scores[above][order].astype(np.float64), numbers).checked(size, *raw.values())


def _rows(values: Array, rank: int, where: str, name: str) -> Array:
    """Return the first image of a batch of this many dimensions."""
    if values.ndim == rank + 1 and len(values):
        values = values[0]
    if values.ndim != rank:
        raise RequestError(f"{where}: {name} is {shape_text(values.shape)}; it needs {rank} or {rank + 1} dimensions.")
    return values


def _as_corners(boxes: Array, box_format: str) -> Array:
    if box_format == "yxyx":
        return np.asarray(boxes[:, [1, 0, 3, 2]])
    if box_format == "xywh":
        half = boxes[:, 2:] / 2
        return np.concatenate([boxes[:, :2] - half, boxes[:, :2] + half], axis=1)
    return boxes


def find_regions(mask: Array) -> list[tuple[int, int, int, int]]:
    """Return left, top, right and bottom (exclusive) of each region of a bool mask [height, width], largest first.

    Pixels that touch, also at their corners, belong to one region. Runs of rows are joined by union-find.
    """
    parents: list[int] = []
    boxes: list[list[int]] = []

    def root(run: int) -> int:
        while parents[run] != run:
            parents[run] = parents[parents[run]]
            run = parents[run]
        return run

    above: list[tuple[int, int, int]] = []
    for row in range(len(mask)):
        edges = np.flatnonzero(np.diff(np.concatenate(([0], mask[row].astype(np.int8), [0]))))
        current = []
        index = 0
        for start, end in zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True):
            run = len(parents)
            parents.append(run)
            boxes.append([start, row, end, row + 1])
            while index < len(above) and above[index][1] < start:
                index += 1
            touching = index
            while touching < len(above) and above[touching][0] <= end:
                parents[root(above[touching][2])] = root(run)
                touching += 1
            current.append((start, end, run))
        above = current
    joined: dict[int, list[int]] = {}
    for run, (left, top, right, bottom) in enumerate(boxes):
        box = joined.setdefault(root(run), [left, top, right, bottom])
        box[:] = min(box[0], left), min(box[1], top), max(box[2], right), max(box[3], bottom)
    regions = [(left, top, right, bottom) for left, top, right, bottom in joined.values()]
    return sorted(regions, key=lambda box: (box[0] - box[2]) * (box[3] - box[1]))
