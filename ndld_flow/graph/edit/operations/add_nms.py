"""Add non-maximum suppression to a detector."""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Literal, Self

from pydantic import Field, model_validator

from ndld_flow.base.errors import RequestError
from ndld_flow.base.quantities import counted
from ndld_flow.graph.edit.operation import Operation

if TYPE_CHECKING:
    import onnx_ir as ir

    from ndld_flow.graph.edit.edited_model import EditedModel
    from ndld_flow.graph.edit.graph_edits import OperationEdits

_FIRST_OPSET = 13
"""The axes of Unsqueeze and ReduceSum are inputs from there on."""
_CLASS_NAMES = "names"
"""Key of the metadata in which Ultralytics' exports list their classes: `{0: 'person', 1: 'bicycle'}`."""
_MAX_METADATA = 2**18
_COCO = 80
_PLUGIN = "EfficientNMS_TRT"
_PLUGIN_DOMAIN = "TRT"
"""The domain in which PyTorch exports write TensorRT's plugins; its parser finds them by their operator alone."""
_RESULTS = ("num_dets", "det_boxes", "det_scores", "det_classes")

Threshold = Annotated[float, Field(ge=0, le=1, strict=False)]


class AddNms(Operation):
    """Add non-maximum suppression, which replaces the raw predictions by detections.

        add_nms: {score_threshold: 0.25, iou_threshold: 0.45, max_detections: 100}
        add_nms: {classes: 17, objectness: true, result: joined}
        add_nms: {boxes: boxes, scores: scores, box_format: xyxy, background: true}
        add_nms: {op_type: EfficientNMS_TRT}

    Predictions are one output with the coordinates of a box, perhaps its objectness, and the scores of its classes
    (`[1, 84, 8400]` as YOLOv8 has it, or `[1, 25200, 85]` as YOLOv5), or two outputs with boxes and scores. Boxes must
    be decoded, not offsets from anchors. The layout follows from the shape and the number of classes; it is refused
    where several fit.

    The outputs are those of TensorRT's EfficientNMS, for each image: `num_dets` [N, 1], `det_boxes` [N, max, 4] as
    x1, y1, x2, y2, `det_scores` [N, max] in descending order, and `det_classes` [N, max]; zeros fill the rest. A box is
    suppressed by one of the same class with a higher score if their IoU is greater than `iou_threshold`, as in
    torchvision.
    """

    heading = "transformations"

    output: str | None = None
    """The output with boxes and scores; optional when there is only one."""
    boxes: str | None = None
    """The output with the boxes, [N, boxes, 4] or [N, 4, boxes], instead of `output`."""
    scores: str | None = None
    """With `boxes`: the output with the scores, [N, boxes, classes] or [N, classes, boxes]."""
    classes: Annotated[int, Field(ge=1)] | None = None
    """Number of classes, without the background; by default from the `names` of an Ultralytics model, or 80 where the
    shape is that of a model trained on COCO."""
    objectness: bool | None = None
    """The scores of the classes come after an objectness, by which they are multiplied. Columns after the scores, such
    as coefficients of masks, become the output `det_extra` [N, max, columns]."""
    axis: Literal[1, 2] | None = None
    """Axis of coordinates and scores: 1 in [1, 84, 8400], 2 in [1, 25200, 85]. Required where the shape leaves it
    open."""
    box_format: Literal["xywh", "xyxy", "yxyx"] | None = None
    """Coordinates of a box: `xywh` is center and size, the others two corners. By default `xywh` for `output`; required
    for `boxes`."""
    activation: Literal["sigmoid", "softmax"] | None = None
    """Function to apply to scores that are logits; `sigmoid` is applied to the objectness too."""
    background: bool = False
    """The first class of `scores` is the background, which is not detected; the others keep their numbers."""
    score_threshold: Threshold = 0.25
    """Only boxes with a higher score are detected."""
    iou_threshold: Threshold = 0.45
    """Boxes that overlap more are suppressed."""
    max_detections: Annotated[int, Field(ge=1)] = 100
    """Maximum number of detections in an image."""
    class_agnostic: bool = False
    """Boxes of other classes are suppressed too; each box has only its best class."""
    multi_label: bool = True
    """A box may be detected as several classes; otherwise only as its best one. `EfficientNMS_TRT` requires true."""
    result: Literal["split", "joined", "flat"] = "split"
    """`split`: the four outputs above. `joined`: one output `detections` [N, max, 6] with box, score and class. `flat`:
    without padding, `det_boxes` [M, 4], `det_scores` [M], `det_classes` [M] and `det_images` [M], the image of each."""
    op_type: Literal["NonMaxSuppression", "EfficientNMS_TRT"] = "NonMaxSuppression"
    """ONNX's NonMaxSuppression with the operators that gather its results, or TensorRT's plugin EfficientNMS_TRT, which
    other runtimes do not have."""
    keep: bool = False
    """Keep the raw predictions as outputs too."""

    @model_validator(mode="after")
    def _check_combination(self) -> Self:
        if (self.boxes is None) != (self.scores is None):
            raise ValueError("`boxes` and `scores` go together")
        if self.boxes is not None and (self.output is not None or self.objectness is not None or self.axis is not None):
            raise ValueError("`output`, `objectness` and `axis` go with one output; `boxes` and `scores` are two")
        if self.boxes is not None and self.box_format is None:
            raise ValueError("`boxes` needs `box_format`: xywh, xyxy or yxyx")
        if self.boxes is None and self.background:
            raise ValueError("`background` goes with `scores`")
        if self.is_plugin and self.result != "split":
            raise ValueError("`EfficientNMS_TRT` has the outputs of `result: split`")
        if self.is_plugin and not self.multi_label:
            raise ValueError("`EfficientNMS_TRT` detects a box as several classes: leave `multi_label` true")
        if self.is_plugin and self.activation == "softmax":
            raise ValueError("`EfficientNMS_TRT` has no softmax: add it with `add_postprocessing`")
        return self

    @property
    def is_plugin(self) -> bool:
        return self.op_type == _PLUGIN

    def apply(self, edited: EditedModel) -> str:
        from ndld_flow.graph.edit.graph_edits import OperationEdits, known_shapes, put_outputs
        from ndld_flow.models.input_shapes import show_tensors

        with known_shapes(edited.model):
            layout = self._layout(edited.model)
        edits = OperationEdits(edited)
        opset = edits.opset(edited.model.graph)
        if opset < _FIRST_OPSET:
            raise RequestError(
                f"`add_nms` needs opset {_FIRST_OPSET}; the model has {opset}: add `set_opset: {{to: {_FIRST_OPSET}}}` "
                "before it"
            )
        results = _Head(edits, layout, self).results()
        if self.keep:
            edited.model.graph.outputs.extend(results)
        else:
            put_outputs(edited.model.graph, layout.sources, results)
        return f"{layout.text}; outputs added: {show_tensors(results)}"

    def _layout(self, model: ir.Model) -> Layout:
        if self.boxes is not None:
            return _separate_layout(self, _predictions(model, self.boxes), _predictions(model, self.scores))
        return _joint_layout(
            self, _predictions(model, self.output), self.classes or len(class_names(model.metadata_props)) or None
        )


@dataclass(frozen=True)
class Layout:
    """The positions of boxes and scores in the predictions."""

    boxes: ir.Value
    scores: ir.Value
    """The same tensor as `boxes`, or another."""
    box_axis: int
    """Axis of the coordinates in `boxes`; the other one of 1 and 2 counts the boxes."""
    score_axis: int
    """Axis of the classes in `scores`."""
    first_score: int
    """Position of the first class in `scores`."""
    classes: int | None
    """Number of classes; None: all that follow the first."""
    extra: int = 0
    """Number of columns after the scores."""
    objectness: bool = False
    """The position before the first class has the objectness."""

    @property
    def sources(self) -> tuple[ir.Value, ...]:
        return tuple(dict.fromkeys((self.boxes, self.scores)))

    @property
    def text(self) -> str:
        parts = [counted(self.classes, "class") if self.classes is not None else "classes of unknown number"]
        parts += ["objectness"] if self.objectness else []
        parts += [f"{self.extra} more columns"] if self.extra else []
        return f"{' and '.join(value.name or '' for value in self.sources)} with {', '.join(parts)}"


def _predictions(model: ir.Model, name: str | None) -> ir.Value:
    from ndld_flow.graph.edit.interface import find_output
    from ndld_flow.models.input_shapes import show_tensors

    value = find_output(model, name, _ADVICE)
    if value.shape is None or len(value.shape) != 3:
        raise RequestError(f"{show_tensors([value])} are no predictions: these have images, boxes and coordinates")
    return value


def class_names(metadata: Mapping[str, str]) -> dict[int, str]:
    """Return class -> name as the metadata of Ultralytics' exports list them; empty if they do not."""
    text = metadata.get(_CLASS_NAMES, "")
    if len(text) > _MAX_METADATA:
        return {}
    try:
        names = ast.literal_eval(text)
    except (ValueError, SyntaxError, RecursionError, MemoryError):
        return {}
    pairs = enumerate(names) if isinstance(names, list) else names.items() if isinstance(names, dict) else ()
    return {key if isinstance(key, int) else number: str(name) for number, (key, name) in enumerate(pairs)}


def _joint_layout(nms: AddNms, output: ir.Value, classes: int | None) -> Layout:
    """Return the only layout that fits one output. Raises `RequestError` if none or several do."""
    from ndld_flow.models.input_shapes import show_tensors

    assert output.shape is not None
    fitting = []
    for axis in (1, 2) if nms.axis is None else (nms.axis,):
        size, others = output.shape[axis], output.shape[3 - axis]
        if not isinstance(size, int) or (nms.axis is None and isinstance(others, int) and others < size):
            continue  # a detector predicts more boxes than it has columns
        for objectness in (False, True) if nms.objectness is None else (nms.objectness,):
            first = 5 if objectness else 4
            count = classes or (_COCO if nms.objectness is None else size - first)
            extra = size - first - count
            if extra == 0 or (extra > 0 and nms.objectness is not None):
                fitting.append(Layout(output, output, axis, axis, first, count, extra, objectness))
    if len(fitting) == 1:
        return fitting[0]
    known = f" with {classes} classes" if classes else ""
    raise RequestError(
        f"the layout of {show_tensors([output])}{known} is {'ambiguous' if fitting else 'unclear'}: give "
        f"{_missing(nms, output, bool(fitting))}"
    )


def _missing(nms: AddNms, output: ir.Value, ambiguous: bool) -> str:
    """Return the settings that determine the layout, with the numbers that the shape allows."""
    assert output.shape is not None
    if nms.axis is None and ambiguous:
        return "`axis`, 1 or 2, the one with coordinates and scores"
    sizes = [dim for dim in output.shape[1:] if isinstance(dim, int)]
    if not sizes:
        return "the inputs fixed shapes first with `set_shapes`: the output has no fixed dimension"
    size = min(sizes) if nms.axis is None else output.shape[nms.axis]
    if not isinstance(size, int) or size < 5:
        return "another `axis`: the one with coordinates and scores has at least 5 columns"
    return (
        f"`classes` and `objectness`, and `axis` if {size} is not the number of columns. {size} columns are 4 for the "
        f"box and {size - 4} classes, or {size - 5} with `objectness: true`; `objectness` is also needed with columns "
        "after the scores"
    )


def _separate_layout(nms: AddNms, boxes: ir.Value, scores: ir.Value) -> Layout:
    """Return the layout of two outputs. Raises `RequestError` if it is not clear."""
    from ndld_flow.models.input_shapes import show_tensors

    assert boxes.shape is not None
    assert scores.shape is not None
    box_axes = [axis for axis in (1, 2) if boxes.shape[axis] == 4]
    count = boxes.shape[3 - box_axes[0]] if len(box_axes) == 1 else None
    wanted = None if nms.classes is None else nms.classes + nms.background
    axes = [
        axis
        for axis in (1, 2)
        if wanted in (None, scores.shape[axis]) and (count is None or scores.shape[3 - axis] == count)
    ]
    if len(box_axes) != 1 or len(axes) != 1 or boxes is scores:
        raise RequestError(
            f"the layout of {show_tensors([boxes, scores])} is unclear: `boxes` must have one dimension of 4, and "
            "`scores` one of the number of boxes; give `classes` too, the number of classes without the background"
        )
    size, first = scores.shape[axes[0]], int(nms.background)
    return Layout(boxes, scores, box_axes[0], axes[0], first, size - first if isinstance(size, int) else None)


_ADVICE = (
    ", which has boxes and scores, or `boxes`, `scores` and `box_format`. Join the levels first if each has an "
    "output of its own"
)


class _Head:
    """The nodes that turn predictions into detections."""

    def __init__(self, edits: OperationEdits, layout: Layout, nms: AddNms) -> None:
        self._edits, self._layout, self._nms = edits, layout, nms
        self._graph = edits.model.graph

    def results(self) -> list[ir.Value]:
        """Add the nodes; returns the new outputs."""
        boxes, scores = self._boxes(), self._scores()
        if self._nms.is_plugin:
            return self._plugin(boxes, scores)
        return self._operators(boxes, scores)

    def _put(self, op_type: str, *inputs: ir.Value, wish: str = "", **attributes: int) -> ir.Value:
        return self._edits.put_last(self._graph, op_type, inputs, attributes, f"nms_{wish or op_type.lower()}")

    def _ints(self, *numbers: int) -> ir.Value:
        return self._edits.ints(self._graph, numbers, "nms_ints")

    def _number(self, number: float) -> ir.Value:
        import numpy as np

        return self._edits.add_initializer(self._graph, np.array(number, np.float32), "nms_number")

    def _part(self, value: ir.Value, start: int, end: int, axis: int, wish: str) -> ir.Value:
        return self._put("Slice", value, self._ints(start), self._ints(end), self._ints(axis), wish=wish)

    def _columns(self, value: ir.Value, start: int, end: int, axis: int, to: int, wish: str) -> ir.Value:
        """Return a range of columns as float32, at axis `to`."""
        import onnx_ir as ir

        part = self._part(value, start, end, axis, wish)
        if axis != to:
            part = self._edits.put_last(self._graph, "Transpose", [part], {"perm": [0, 2, 1]}, f"nms_{wish}_transposed")
        if value.dtype != ir.DataType.FLOAT and not self._nms.is_plugin:
            part = self._put("Cast", part, to=int(ir.DataType.FLOAT), wish=f"{wish}_float32")
        return part

    def _boxes(self) -> ir.Value:
        """Return [N, boxes, 4]; corners x1, y1, x2, y2, except for the plugin, which also reads centers and sizes."""
        boxes = self._columns(self._layout.boxes, 0, 4, self._layout.box_axis, 2, "boxes")
        if self._nms.box_format == "xyxy":
            return boxes
        if self._nms.box_format == "yxyx":
            return self._put("Gather", boxes, self._ints(1, 0, 3, 2), axis=2, wish="corners")
        if self._nms.is_plugin:
            return boxes
        center, size = self._part(boxes, 0, 2, 2, "center"), self._part(boxes, 2, 4, 2, "size")
        half = self._put("Mul", size, self._number(0.5), wish="half_size")
        return self._put("Concat", self._put("Sub", center, half), self._put("Add", center, half), axis=2)

    def _scores(self) -> ir.Value:
        """Return [N, classes, boxes]; for the plugin [N, boxes, classes]."""
        layout, to = self._layout, 2 if self._nms.is_plugin else 1
        source, axis, first = layout.scores, layout.score_axis, layout.first_score
        softmax = self._nms.activation == "softmax"
        start = 0 if softmax else first  # the background counts in a softmax
        if softmax and layout.scores is layout.boxes:
            start = first
        end = 2**31 - 1 if layout.classes is None else first + layout.classes
        scores = self._columns(source, start, end, axis, to, "scores")
        if self._nms.activation is not None and not (self._nms.is_plugin and not layout.objectness):
            scores = self._put("Softmax", scores, axis=to) if softmax else self._put("Sigmoid", scores)
        if start != first:
            scores = self._part(scores, first, end, to, "foreground")
        if not layout.objectness:
            return scores
        objectness = self._columns(source, first - 1, first, axis, to, "objectness")
        if self._nms.activation == "sigmoid":
            objectness = self._put("Sigmoid", objectness)
        return self._put("Mul", scores, objectness, wish="weighted")

    def _plugin(self, boxes: ir.Value, scores: ir.Value) -> list[ir.Value]:
        import onnx_ir as ir

        layout, nms = self._layout, self._nms
        if layout.extra:
            raise RequestError(
                f"`EfficientNMS_TRT` cannot gather the {layout.extra} columns after the scores; use `NonMaxSuppression`"
            )
        attributes: dict[str, int | float | str] = {
            "background_class": -1,
            "box_coding": int(nms.box_format in (None, "xywh")),
            "class_agnostic": int(nms.class_agnostic),
            "iou_threshold": nms.iou_threshold,
            "max_output_boxes": nms.max_detections,
            "plugin_version": "1",
            "score_activation": int(nms.activation is not None and not layout.objectness),
            "score_threshold": nms.score_threshold,
        }
        node = ir.node(_PLUGIN, [boxes, scores], attributes, domain=_PLUGIN_DOMAIN, num_outputs=4)
        node.name = self._edits.new_name(_PLUGIN)
        self._graph.append(node)
        self._graph.opset_imports.setdefault(_PLUGIN_DOMAIN, 1)
        self._name(node.outputs, _RESULTS)
        self._declare(node.outputs, layout.boxes.dtype or ir.DataType.FLOAT)
        return self._numbered(list(node.outputs))

    def _numbered(self, results: list[ir.Value]) -> list[ir.Value]:
        """Add 1 to the plugin's classes where the background was removed from the scores."""
        if not self._nms.background:
            return results
        import numpy as np

        one = self._edits.add_initializer(self._graph, np.array(1, np.int32), "nms_one")
        name, results[3].name = results[3].name, self._edits.new_name("nms_classes")
        classes = self._put("Add", results[3], one)
        classes.name, classes.type, classes.shape = name, results[3].type, results[3].shape
        return [*results[:3], classes]

    def _declare(self, results: Sequence[ir.Value], floats: ir.DataType) -> None:
        """Set type and shape of outputs for each image, which cannot be inferred where the batch is dynamic."""
        import onnx_ir as ir

        shape, most = self._layout.boxes.shape, self._nms.max_detections
        tails: tuple[tuple[int, ...], ...] = ((1,), (most, 4), (most,), (most,), (most, self._layout.extra))
        if self._nms.result == "joined":
            tails = ((most, 6 + self._layout.extra),)
        for value, dims in zip(results, tails, strict=False):
            counted = (value.name or "").startswith(("num_dets", "det_classes"))
            value.type = ir.TensorType(ir.DataType.INT32 if counted else floats)
            value.shape = ir.Shape([None if shape is None else shape[0], *dims])

    def _name(self, values: Sequence[ir.Value], names: Sequence[str]) -> None:
        for value, name in zip(values, names, strict=True):
            value.name = self._edits.new_name(name)

    def _operators(self, boxes: ir.Value, scores: ir.Value) -> list[ir.Value]:
        """Suppress boxes, sort the detections of each image, and gather their boxes and classes."""
        labels = None
        if self._nms.class_agnostic:
            scores, labels = self._best(scores)
        elif not self._nms.multi_label:
            best, _ = self._best(scores)
            scores = self._put("Where", self._put("Equal", scores, best), scores, self._number(-1), wish="best_only")
        most = self._ints(self._nms.max_detections)
        limits = (self._number(self._nms.iou_threshold), self._number(self._nms.score_threshold))
        selected = self._put("NonMaxSuppression", boxes, scores, most, *limits, wish="selected")
        values, box, label = self._sorted(scores, selected)
        box_index = self._put("Unsqueeze", box, self._ints(2), wish="box_index")
        if labels is not None:
            label = self._put("GatherElements", labels, box, axis=1, wish="labels")
        return self._gathered(boxes, box_index, label, values)

    def _best(self, scores: ir.Value) -> tuple[ir.Value, ir.Value]:
        """Return the best score of each box [N, 1, boxes], and its class [N, boxes]."""
        import onnx_ir as ir

        node = ir.node("TopK", [scores, self._ints(1)], {"axis": 1}, num_outputs=2)
        node.name = self._edits.new_name("nms_best")
        self._graph.append(node)
        self._name(node.outputs, ("nms_best_score", "nms_best_class"))
        return node.outputs[0], self._put("Squeeze", node.outputs[1], self._ints(1), wish="best_class_of_box")

    def _sorted(self, scores: ir.Value, selected: ir.Value) -> tuple[ir.Value, ir.Value, ir.Value]:
        """Return scores, boxes and classes of the best detections of each image, [N, max]; unused scores are -1."""
        import onnx_ir as ir

        minus_one = self._number(-1)
        nothing = self._put("Expand", minus_one, self._put("Shape", scores, wish="scores_shape"), wish="nothing")
        kept = self._put("GatherND", scores, selected, wish="kept_scores")
        dense = self._put("ScatterND", nothing, selected, kept, wish="dense_scores")
        flat = self._put("Reshape", dense, self._ints(0, -1), wish="flat_scores")
        # The number of boxes and classes may be less than the maximum of detections, which TopK requires.
        padding = self._edits.put_last(
            self._graph,
            "Pad",
            [flat, self._ints(0, 0, 0, self._nms.max_detections), minus_one],
            {"mode": "constant"},
            "nms_padded_scores",
        )
        node = ir.node("TopK", [padding, self._ints(self._nms.max_detections)], {"axis": 1}, num_outputs=2)
        node.name = self._edits.new_name("nms_top")
        self._graph.append(node)
        self._name(node.outputs, ("nms_top_scores", "nms_top_places"))
        count = self._put("Gather", self._put("Shape", scores, wish="shape"), self._ints(2), axis=0, wish="box_count")
        box = self._put("Mod", node.outputs[1], count, wish="box")
        return node.outputs[0], box, self._put("Div", node.outputs[1], count, wish="class")

    def _gathered(self, boxes: ir.Value, index: ir.Value, label: ir.Value, values: ir.Value) -> list[ir.Value]:
        """Return the outputs; `index` is [N, max, 1], `label` and `values` are [N, max]."""
        import onnx_ir as ir

        integer, layout = int(ir.DataType.INT32), self._layout
        valid = self._put("Greater", values, self._number(-0.5), wish="valid")
        if self._nms.background:
            label = self._put("Add", label, self._ints(1), wish="class_number")
        columns = {"det_boxes": boxes}
        if layout.extra:
            first = layout.first_score + (layout.classes or 0)
            end = first + layout.extra
            columns["det_extra"] = self._columns(layout.scores, first, end, layout.score_axis, 2, "extra")
        gathered = {
            name: self._put("GatherND", value, index, batch_dims=1, wish=f"{name}_gathered")
            for name, value in columns.items()
        }
        gathered["det_scores"], gathered["det_classes"] = values, self._put("Cast", label, to=integer, wish="class_ids")
        order = ("det_boxes", "det_scores", "det_classes", *(["det_extra"] if layout.extra else []))
        if self._nms.result == "flat":
            return self._flat({name: gathered[name] for name in order}, valid)
        masked = {name: self._masked(gathered[name], valid, name) for name in order}
        if self._nms.result == "joined":
            results = [self._joined(masked)]
            self._declare(results, ir.DataType.FLOAT)
            return results
        count = self._put("Cast", valid, to=integer, wish="valid_int")
        total = self._put("ReduceSum", count, self._ints(1), keepdims=1, wish="num_dets")
        results = [total, *masked.values()]
        self._name(results, ("num_dets", *masked))
        self._declare(results, ir.DataType.FLOAT)
        return results

    def _masked(self, value: ir.Value, valid: ir.Value, name: str) -> ir.Value:
        """Return the values with zeros where there is no detection."""
        import numpy as np

        mask = valid
        if name in ("det_boxes", "det_extra"):
            mask = self._put("Unsqueeze", valid, self._ints(2), wish=f"{name}_mask")
        dtype = np.int32 if name == "det_classes" else np.float32
        zero = self._edits.add_initializer(self._graph, np.zeros((), dtype), "nms_zero")
        return self._put("Where", mask, value, zero, wish=name)

    def _joined(self, results: dict[str, ir.Value]) -> ir.Value:
        import onnx_ir as ir

        float32 = int(ir.DataType.FLOAT)
        classes = self._put("Cast", results["det_classes"], to=float32, wish="class_floats")
        columns = [self._put("Unsqueeze", value, self._ints(2)) for value in (results["det_scores"], classes)]
        extra = [results["det_extra"]] if "det_extra" in results else []
        joined = self._put("Concat", results["det_boxes"], *columns, *extra, axis=2)
        self._name([joined], ["detections"])
        return joined

    def _flat(self, results: dict[str, ir.Value], valid: ir.Value) -> list[ir.Value]:
        """Return the detections of all images without padding, and the image of each."""
        import numpy as np
        import onnx_ir as ir

        positions = self._edits.put_last(
            self._graph, "Transpose", [self._put("NonZero", valid)], {"perm": [1, 0]}, "nms_places"
        )
        values = [self._put("GatherND", value, positions, wish=f"{name}_flat") for name, value in results.items()]
        first = self._edits.add_initializer(self._graph, np.zeros((), np.int64), "nms_first")
        images = self._put("Gather", positions, first, axis=1, wish="images")
        values.append(self._put("Cast", images, to=int(ir.DataType.INT32), wish="image_ids"))
        self._name(values, (*results, "det_images"))
        return values
