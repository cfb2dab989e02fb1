"""Outputs that name a class or score classes, and the classes that samples reach."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import onnx_ir as ir

from ndld_flow.models.input_uses import SAME_VALUES
from ndld_flow.models.tensors import Array
from ndld_flow.records.power import ClassesReached

_LAST_AXIS_FROM = 13
"""Opset from which Softmax has one axis; before, it joined all axes from that one on."""
_KEEPS_AXES = ("Cast", "Identity")
_MOST_NAMED = 10
_CLASSIFIERS = ("LinearClassifier", "SVMClassifier", "TreeEnsembleClassifier")


@dataclass
class ClassOutput:
    """An output of classes, and what samples reach of them."""

    name: str
    axis: int | None
    """The axis along which classes are scored; None if the values are classes."""
    classes: Sequence[object] = ()
    """Labels of the classes; empty for the length of the axis."""
    reached: set[object] = field(default_factory=set)

    def add(self, values: Array) -> None:
        """Add the classes of one sample."""
        if self.axis is not None:
            if not values.size or values.ndim < 2:
                return
            if len(self.classes) < values.shape[self.axis]:
                self.classes = range(values.shape[self.axis])
            values = np.argmax(values, self.axis)
            self.reached.update(self.classes[place] for place in np.unique(values).tolist())
        else:
            self.reached.update(np.unique(values).tolist())

    def record(self) -> ClassesReached:
        missing = [str(each) for each in self.classes if each not in self.reached]
        return ClassesReached(
            output=self.name,
            reached=len(self.reached),
            classes=len(self.classes),
            missing=tuple(missing[:_MOST_NAMED]),
        )


def find_class_outputs(model: ir.Model) -> list[ClassOutput]:
    """Return the outputs of a model that are classes, or scores of classes."""
    return [found for value in model.graph.outputs for found in _class_output(value, model.opset_imports.get("", 1))]


def _class_output(value: ir.Value, opset: int) -> Iterator[ClassOutput]:
    name, source, keeps_axes = str(value.name), value, True
    while (node := source.producer()) is not None and node.op_type in SAME_VALUES and node.inputs[0] is not None:
        keeps_axes = keeps_axes and node.op_type in _KEEPS_AXES
        source = node.inputs[0]
    if node is None:
        return
    if node.op_type in ("Softmax", "LogSoftmax") and keeps_axes and opset >= _LAST_AXIS_FROM:
        yield ClassOutput(name, node.attributes.get_int("axis", -1))
    elif node.op_type == "ArgMax" and node.inputs[0] is not None:
        shape, axis = node.inputs[0].shape, node.attributes.get_int("axis", 0)
        count = shape[axis] if shape is not None and -len(shape) <= axis < len(shape) else None
        if isinstance(count, int):
            yield ClassOutput(name, None, range(count))
    elif node.op_type in _CLASSIFIERS:
        labels = [node.attributes[each].value for each in node.attributes if each.startswith("classlabels")]
        classes = max(labels, key=len, default=())
        is_label = source is node.outputs[0]
        if classes and keeps_axes and (is_label or not node.outputs[0].is_graph_output()):
            yield ClassOutput(name, None if is_label else -1, classes)
