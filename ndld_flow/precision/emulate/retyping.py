"""Give every stored value of a model fp32 elements: types, weights, and what attributes say of types."""

from __future__ import annotations

from collections.abc import Collection, Mapping

import onnx_ir as ir

from ndld_flow.models.element_types import held_tensor
from ndld_flow.models.float_tensors import FORMATS
from ndld_flow.models.op_signatures import is_op
from ndld_flow.models.type_groups import TYPE_ATTRIBUTES, is_constant
from ndld_flow.models.unique_names import UniqueNames
from ndld_flow.precision.fp16.constants import RoundedConstants, type_with

_ARITHMETIC = ("precision", "softmax_precision", "stash_type")
"""Attributes that say what type a node computes in."""
_FIRST_CLIP_WITH_INPUTS = 11
_REDUCED = (ir.DataType.FLOAT16, ir.DataType.BFLOAT16)


class Retyper:
    """Carries it out in place, once. Main inputs stay as they are, and so do the nodes that are named native."""

    def __init__(self, model: ir.Model, stored: Mapping[ir.Value, ir.DataType], native: Collection[ir.Node]) -> None:
        self._model = model
        self._stored = stored
        self._native = native
        self._names = UniqueNames(model)
        self._constants = RoundedConstants(self._names, lambda done, total, what: None)

    def retype(self) -> None:
        """Change the model."""
        for node in list(self._model.graph.all_nodes()):
            if node not in self._native:
                self._set_attributes(node)
                self._bound(node)
        for value in self._stored:
            self._retype(value)

    def _retype(self, value: ir.Value) -> None:
        producer = value.producer()
        if producer in self._native:
            return
        if is_constant(value):
            self._constants.convert(value, ir.DataType.FLOAT)
        elif value.const_value is not None and value.is_initializer():
            value.const_value = self._constants.rounded(value.const_value, ir.DataType.FLOAT, value.name or "")
        elif value in self._model.graph.inputs:
            return
        value.type = type_with(value.type, ir.DataType.FLOAT)

    def _set_attributes(self, node: ir.Node) -> None:
        """Say fp32 where an attribute says the type of an output, or what to compute in. Casts keep what they make."""
        makes = next((self._stored[value] for value in node.outputs if value in self._stored), None)
        if is_op(node, "Constant", "Cast") or not (makes or self._reads(node)):
            return
        names = [*_ARITHMETIC, *([TYPE_ATTRIBUTES[node.op_type]] if makes and is_op(node, *TYPE_ATTRIBUTES) else [])]
        for name in names:
            attribute = node.attributes.get(name)
            if attribute is not None:
                node.attributes[name] = self._in_fp32(attribute)
        type_ = node.attributes.get("type")
        if makes and type_ is not None and type_.type == ir.AttributeType.TYPE_PROTO:
            given: ir.TypeAndShape = type_.value
            node.attributes["type"] = ir.AttrTypeProto(
                "type", ir.TypeAndShape(type_with(given.type, ir.DataType.FLOAT), given.shape)
            )

    def _reads(self, node: ir.Node) -> bool:
        return any(value in self._stored for value in node.inputs if value is not None)

    def _in_fp32(self, attribute: ir.Attr) -> ir.Attr:
        if attribute.type == ir.AttributeType.TENSOR:
            tensor = self._constants.rounded(held_tensor(attribute), ir.DataType.FLOAT, attribute.name)
            return ir.AttrTensor(attribute.name, tensor)
        reduced = attribute.type == ir.AttributeType.INT and ir.DataType(attribute.as_int()) in _REDUCED
        return ir.AttrInt64(attribute.name, ir.DataType.FLOAT.value) if reduced else attribute

    def _bound(self, node: ir.Node) -> None:
        """Without bounds Clip has those of its type: from -65504 to 65504 in fp16."""
        opset = self._model.opset_imports.get("", _FIRST_CLIP_WITH_INPUTS)
        if not is_op(node, "Clip") or opset < _FIRST_CLIP_WITH_INPUTS or node.outputs[0] not in self._stored:
            return
        largest = FORMATS[self._stored[node.outputs[0]]].largest
        given = [*node.inputs, None, None][:3]
        for index, limit in ((1, -largest), (2, largest)):
            if given[index] is None:
                name = self._names.value(f"{node.outputs[0].name}_{'lowest' if limit < 0 else 'largest'}")
                given[index] = self._scalar(limit, name, node)
        node.resize_inputs(3)
        for index, value in enumerate(given):
            node.replace_input_with(index, value)

    def _scalar(self, number: float, name: str, reader: ir.Node) -> ir.Value:
        value = ir.Value(name=name, shape=ir.Shape([]), type=ir.TensorType(ir.DataType.FLOAT))
        attribute = ir.AttrTensor("value", ir.tensor(number, dtype=ir.DataType.FLOAT, name=name))
        constant = ir.Node("", "Constant", [], [attribute], outputs=[value], name=self._names.node(name))
        if reader.graph is not None:
            reader.graph.insert_before(reader, constant)
        return value
