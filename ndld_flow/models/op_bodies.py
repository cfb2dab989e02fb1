"""Operators that are functions, written out in other operators."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import onnx
from onnx import helper

from ndld_flow.models.op_reference import OperatorVersion

_USUAL_TYPES = ("tensor(float)", "tensor(int64)", "tensor(bool)")


@dataclass(frozen=True)
class OperatorBody:
    """What an operator stands for."""

    text: str
    """As onnx prints a function."""
    is_example: bool
    """True where the body depends on a node's attributes and types: then it is that of the defaults, on floats."""


def body_of(version: OperatorVersion) -> OperatorBody | None:
    """None where the operator is no function, or where its body cannot be told without a model."""
    if not version.is_function:
        return None
    # onnx' stubs do not know all that its schemas have.
    schema: Any = onnx.defs.get_schema(version.name, version.since_version, version.domain)
    if schema.has_function:
        return OperatorBody(onnx.printer.to_text(schema.function_body), is_example=False)
    opsets = schema.context_dependent_function_opset_versions
    try:
        data = schema.get_context_dependent_function_with_opset_version(
            max(opsets), _example(schema).SerializeToString(), [_type(port) for port in schema.inputs]
        )
    except (ValueError, RuntimeError):  # it needs what no example has, such as a graph
        return None
    body = onnx.FunctionProto.FromString(data)
    return OperatorBody(onnx.printer.to_text(body), is_example=True) if body.node else None


def _example(schema: onnx.defs.OpSchema) -> onnx.NodeProto:
    """A node with all inputs and outputs, and every attribute at its default."""
    inputs, outputs = [port.name for port in schema.inputs], [port.name for port in schema.outputs]
    node = helper.make_node(schema.name, inputs, outputs, domain=schema.domain)
    node.attribute.extend(one.default_value for one in schema.attributes.values() if one.default_value.type)
    return node


def _type(port: onnx.defs.OpSchema.FormalParameter) -> bytes:
    found = next((type_ for type_ in _USUAL_TYPES if type_ in port.types), min(port.types))
    proto = onnx.TypeProto()
    if found.startswith("tensor("):
        proto.tensor_type.elem_type = onnx.TensorProto.DataType.Value(found[7:-1].upper())
    return bytes(proto.SerializeToString())
