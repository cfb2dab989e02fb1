"""A model of few nodes in another opset, one version at a time.

From one version to the next most operators only learn more types, or get an attribute whose default is what they did
before: such nodes are carried over. The others are left to onnx's version converter, which knows most ways up and few
down. What would mean something else is refused.
"""

from __future__ import annotations

import functools

import numpy as np
import onnx
from onnx import numpy_helper

from ndld_flow.base.errors import RequestError
from ndld_flow.base.text import one_paragraph

_LIKE_NOW = 7
"""Before this opset operators broadcast by attributes: only the converter can convert them."""
_NEGATIVE_AXES = 11
"""The opset that introduced negative axes."""
_OTHER_MEANING = {
    ("DFT", 20): "its axis was counted otherwise",
    ("GridSample", 20): "its modes had other names",
    ("GroupNormalization", 21): "scale and bias were by group, not by channel",
    ("Hardmax", 13): "it flattened its input",
    ("LogSoftmax", 13): "it flattened its input",
    ("Resize", 11): "it took other inputs",
    ("RoiAlign", 16): "it aligned to other pixels",
    ("Softmax", 13): "it flattened its input",
}
"""Operator and the version that changed its meaning without changing its form -> its previous meaning."""
_FLATTENING = ("Hardmax", "LogSoftmax", "Softmax")


class CannotConvertError(RequestError):
    """There is no such node in the other opset, or no conversion to it."""


def convert_proto(model: onnx.ModelProto, target: int) -> onnx.ModelProto:
    """Convert a small model in place to another opset. Raises `CannotConvertError` with the reason."""
    source = model.opset_import[0].version
    way = 1 if target > source else -1
    for opset in range(source, target, way):
        model = _take_step(model, opset, opset + way)
    return model


def _take_step(model: onnx.ModelProto, old: int, new: int) -> onnx.ModelProto:
    """Return the model in the opset after or before its own."""
    changed = [node for node in model.graph.node if _version(node, old) != _version(node, new)]
    for node in changed if new < old else ():
        _prepare_for_older(node, model.graph, new)
    if all(_carries_over(node, old, new) for node in changed):
        for node in changed:
            _carry_over(node, old, new)
        model.opset_import[0].version = new
        return model
    try:
        return _convert(model, new)
    except CannotConvertError as error:
        told = [what for node in changed for what in _newer(node, old, new)]
        raise CannotConvertError("; ".join(told) or f"to opset {new}: {error}") from None


def _newer(node: onnx.NodeProto, old: int, new: int) -> list[str]:
    """Return attributes of a node that the previous opset does not have."""
    known, before = _schema(node, new).attributes, _schema(node, old)
    names = [given.name for given in node.attribute if given.name not in known and not _says_nothing(given, before)]
    return [f"its attribute {name} came with opset {old}" for name in names if new < old]


def _convert(model: onnx.ModelProto, target: int) -> onnx.ModelProto:
    try:
        return onnx.version_converter.convert_version(model, target)
    except (onnx.version_converter.ConvertError, RuntimeError, ValueError, IndexError) as error:
        raise CannotConvertError(_reason(error)) from None


def _reason(error: Exception) -> str:
    """Return the converter's message without the file and line of its C++ source."""
    text = one_paragraph(error)
    if "No initializer or constant input" in text:
        return "one of its inputs would become an attribute, but is no constant"
    if "No Adapter" in text:
        return "onnx knows no way"
    return (text.rpartition("failed: ")[2] if "Assertion" in text else text).rstrip(". ")


def _schema(node: onnx.NodeProto, opset: int) -> onnx.defs.OpSchema:
    return _schema_of(node.op_type, opset)


@functools.cache
def _schema_of(op_type: str, opset: int) -> onnx.defs.OpSchema:
    try:
        return onnx.defs.get_schema(op_type, opset, "")
    except onnx.defs.SchemaError:
        raise CannotConvertError(f"there is no {op_type} in opset {opset}") from None


def _version(node: onnx.NodeProto, opset: int) -> int:
    return int(_schema(node, opset).since_version)


def _prepare_for_older(node: onnx.NodeProto, graph: onnx.GraphProto, opset: int) -> None:
    """Say what the node says so that the opset before understands it too. Raises `CannotConvertError` where it did
    something else.
    """
    before = _OTHER_MEANING.get((node.op_type, _version(node, opset + 1)))
    if before is not None and not (node.op_type in _FLATTENING and _is_last_axis(node, graph)):
        raise CannotConvertError(f"in opset {opset} {before}")
    if opset + 1 == _NEGATIVE_AXES:
        _make_axes_positive(node, graph)
    if node.op_type == "Constant" and opset == 11:
        _hold_a_tensor(node)
    if node.op_type == "Split" and opset == 17:
        _drop_equal_parts(node, graph)


def _carries_over(node: onnx.NodeProto, old: int, new: int) -> bool:
    """Return whether the node has the same meaning in the new opset without changes."""
    before, after = _schema(node, old), _schema(node, new)
    counts = after.min_input <= len(node.input) <= after.max_input and len(node.output) <= after.max_output
    known = all(given.name in after.attributes or _says_nothing(given, before) for given in node.attribute)
    same = new < old or not _means_otherwise(node, new)  # downwards, other meanings are refused before
    return min(old, new) >= _LIKE_NOW and not after.deprecated and counts and known and same


def _means_otherwise(node: onnx.NodeProto, opset: int) -> bool:
    """Return whether this opset's version of the operator changed its meaning."""
    version = (node.op_type, _version(node, opset))
    return version in _OTHER_MEANING or version == ("Split", 18)


def _carry_over(node: onnx.NodeProto, old: int, new: int) -> None:
    before, after = _schema(node, old), _schema(node, new)
    for place in reversed(range(len(node.attribute))):
        if node.attribute[place].name not in after.attributes:
            del node.attribute[place]
    said = {given.name for given in node.attribute}
    for name in before.attributes.keys() & after.attributes.keys() - said:
        default = before.attributes[name].default_value
        if default.type and _value(default) != _value(after.attributes[name].default_value):
            node.attribute.append(default)


def _says_nothing(attribute: onnx.AttributeProto, schema: onnx.defs.OpSchema) -> bool:
    """Return whether an attribute only states its default."""
    if attribute.name == "dilations":
        return all(step == 1 for step in attribute.ints)
    if attribute.name not in schema.attributes:
        return False
    default = schema.attributes[attribute.name].default_value
    return bool(default.type) and _value(default) == _value(attribute)


def _value(attribute: onnx.AttributeProto) -> object:
    return onnx.helper.get_attribute_value(attribute) if attribute.type else None


def _is_last_axis(node: onnx.NodeProto, graph: onnx.GraphProto) -> bool:
    """Return whether Softmax or a similar operator, which flattened all axes from its axis on, uses the last axis."""
    rank = _rank(graph, node.input[0])
    axis = next((attribute.i for attribute in node.attribute if attribute.name == "axis"), -1)
    return rank is not None and axis in (-1, rank - 1)


def _make_axes_positive(node: onnx.NodeProto, graph: onnx.GraphProto) -> None:
    """Count axes from 0 instead of from the end. Raises `CannotConvertError` where the rank is unknown."""
    for attribute in node.attribute:
        if attribute.name not in ("axis", "axes") or min([attribute.i, *attribute.ints]) >= 0:
            continue
        rank = _rank(graph, node.output[0] if node.op_type in ("Unsqueeze", "OneHot") else node.input[0])
        if rank is None:
            raise CannotConvertError("its axis counts from the end, and the number of dimensions is unknown")
        attribute.i %= rank
        attribute.ints[:] = [axis % rank for axis in attribute.ints]


def _rank(graph: onnx.GraphProto, name: str) -> int | None:
    dims = _dims(graph, name)
    return None if dims is None else len(dims)


def _dims(graph: onnx.GraphProto, name: str) -> list[int] | None:
    """Return the sizes of a tensor of the model; 0 for unknown ones."""
    for value in (*graph.input, *graph.output, *graph.value_info):
        if value.name == name and value.type.tensor_type.HasField("shape"):
            return [dim.dim_value for dim in value.type.tensor_type.shape.dim]
    return next((list(tensor.dims) for tensor in graph.initializer if tensor.name == name), None)


def _hold_a_tensor(node: onnx.NodeProto) -> None:
    """Replace the plain numbers of a Constant by a tensor."""
    attribute = node.attribute[0]
    kinds = {"value_float": np.float32, "value_floats": np.float32, "value_int": np.int64, "value_ints": np.int64}
    if attribute.name in kinds:
        tensor = numpy_helper.from_array(np.array(_value(attribute), dtype=kinds[attribute.name]))
        attribute.CopyFrom(onnx.helper.make_attribute("value", tensor))


def _drop_equal_parts(node: onnx.NodeProto, graph: onnx.GraphProto) -> None:
    """Remove `num_outputs` from a Split into equal parts, which the previous opset assumes by default."""
    axis = next((attribute.i for attribute in node.attribute if attribute.name == "axis"), 0)
    dims = _dims(graph, node.input[0]) or []
    size = dims[axis] if -len(dims) <= axis < len(dims) else 0
    for place in reversed(range(len(node.attribute))):
        if node.attribute[place].name == "num_outputs" and size and size % node.attribute[place].i == 0:
            del node.attribute[place]
