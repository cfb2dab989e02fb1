"""One node in another version of its operator, by onnx's version converter.

The converter reads whole models, loads their weights and loses subgraphs, functions, sparse tensors and metadata. So it
gets a model of one node: what the node reads becomes inputs of known type and shape, small constants come along.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import onnx
import onnx_ir as ir

from ndld_flow.base.text import one_paragraph
from ndld_flow.graph.edit.opset_steps import CannotConvertError, convert_proto
from ndld_flow.graph.sanitize.edits import is_standard
from ndld_flow.models.element_types import type_name
from ndld_flow.models.op_signatures import signature_of
from ndld_flow.models.sparse_tensors import SparseInitializer

_READ_BYTES = 2**16
"""Adapters read axes, shapes, scales and paddings; of larger constants they get only type and shape."""
_CONTROL_FLOW = frozenset({"If", "Loop", "Scan", "SequenceMap"})
"""The converter does not support subgraphs; all versions of these operators but Scan's first are the same."""


@dataclass(frozen=True)
class Adapted:
    """Nodes that replace one node."""

    nodes: list[ir.Node]
    outputs: list[ir.Value]
    """The outputs of the old node, from the new nodes."""

    def heir(self, op_type: str) -> ir.Node:
        """Return the node that corresponds to the old one: the last of its operator, or that of the first output."""
        same = [node for node in self.nodes if node.op_type == op_type]
        return same[-1] if same else next(node for node in self.nodes if self.outputs[0] in node.outputs)

    def drop(self) -> None:
        """Disconnect all inputs: the nodes are not used."""
        for node in self.nodes:
            node.resize_inputs(0)


def must_change(node: ir.Node, source: int, target: int) -> bool:
    """Return whether the node's operator has another version in the other opset.

    Raises `CannotConvertError` when that opset does not have it.
    """
    if not is_standard(node):
        return False
    old, new = _since(node.op_type, source), _since(node.op_type, target)
    if old is None:
        raise CannotConvertError(f"opset {source} does not have this operator")
    if new is None:
        raise CannotConvertError(f"it came with opset {_introduced(node.op_type)}")
    if node.op_type == "Scan" and (old < 9) != (new < 9):
        raise CannotConvertError("Scan was another operator before opset 9")
    if node.op_type in _CONTROL_FLOW:
        _check_types(node, target)
    return old != new and node.op_type not in _CONTROL_FLOW


def adapt_node(node: ir.Node, source: int, target: int) -> Adapted:
    """Return the node in the other opset; the original is unchanged. Raises `CannotConvertError` with the reason."""
    read = list(dict.fromkeys(value for value in node.inputs if value is not None))
    names = {value: f"in_{number}" for number, value in enumerate(read)}
    converted = convert_proto(_alone(node, names, source), target)
    _check(converted)
    adapted = _adapted(node, converted, {name: value for value, name in names.items()})
    try:
        _give_back_references(node, adapted, source, target)
        for new in adapted.nodes:
            _check_types(new, target)
    except CannotConvertError:
        adapted.drop()
        raise
    return adapted


def _check(converted: onnx.ModelProto) -> None:
    """Raise `CannotConvertError` for a node that the checker refuses."""
    context = onnx.checker.C.CheckerContext()
    context.ir_version, context.opset_imports = converted.ir_version, {"": converted.opset_import[0].version}
    try:
        for node in converted.graph.node:
            onnx.checker.check_node(node, context)
    except onnx.checker.ValidationError as error:
        raise CannotConvertError(f"the result would not be valid: {one_paragraph(error)}") from None


def _give_back_references(node: ir.Node, adapted: Adapted, source: int, target: int) -> None:
    """Check attributes that refer to a function's call: their values are unknown, so they must have the same meaning.

    Raises `CannotConvertError` where they do not.
    """
    for attribute in node.attributes.values():
        if not attribute.is_ref():
            continue
        schemas = [onnx.defs.get_schema(node.op_type, opset, "") for opset in (source, target)]
        defaults = [
            schema.attributes[attribute.name].default_value for schema in schemas if attribute.name in schema.attributes
        ]
        if len(adapted.nodes) > 1 or len(defaults) < 2 or defaults[0] != defaults[1]:
            raise CannotConvertError(
                f"its attribute {attribute.name} is the function's; inline the function first by `inline_functions`"
            )
        adapted.nodes[0].attributes[attribute.name] = attribute


def _check_types(node: ir.Node, opset: int) -> None:
    signature = signature_of(node, {"": opset})
    if signature is None:
        return
    for verb, values, variables in (
        ("take", node.inputs, signature.inputs),
        ("make", node.outputs, signature.outputs),
    ):
        for value, variable in zip(values, variables, strict=False):
            type_ = None if value is None else type_name(value.type)
            if type_ is not None and not signature.admits(variable, type_):
                raise CannotConvertError(f"in opset {opset} it does not {verb} {type_}")


def _since(op_type: str, opset: int) -> int | None:
    try:
        return int(onnx.defs.get_schema(op_type, opset, "").since_version)
    except onnx.defs.SchemaError:
        return None


def _introduced(op_type: str) -> int:
    return min(
        (s.since_version for s in onnx.defs.get_all_schemas_with_history() if (s.domain, s.name) == ("", op_type)),
        default=0,
    )


def _alone(node: ir.Node, names: dict[ir.Value, str], opset: int) -> onnx.ModelProto:
    """Return a model of this node only."""
    proto = onnx.NodeProto(op_type=node.op_type, name="node")
    proto.input.extend("" if value is None else names[value] for value in node.inputs)
    proto.output.extend(_output_names(node))
    own = (attribute for attribute in node.attributes.values() if not attribute.is_ref())
    proto.attribute.extend(map(ir.serde.serialize_attribute, own))
    graph = onnx.GraphProto(name="alone", node=[proto])
    for value, name in names.items():
        tensor = _small_constant(value)
        if tensor is None:
            graph.input.append(_declared(value, name))
        else:
            graph.initializer.append(
                ir.serde.serialize_tensor(ir.Tensor(tensor.numpy(), dtype=tensor.dtype, name=name))
            )
    for value, name in zip(node.outputs, proto.output, strict=True):
        if name:
            graph.output.append(_declared(value, name))
    return onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", opset)], ir_version=8)


def _output_names(node: ir.Node) -> list[str]:
    return [f"out_{number}" if value.name else "" for number, value in enumerate(node.outputs)]


def _small_constant(value: ir.Value) -> ir.TensorProtocol | None:
    # An initializer that is also an input is only a default: conclusions from it would be wrong for another value.
    tensor = None if value.is_graph_input() else ir.convenience.get_const_tensor(value)
    if tensor is None or isinstance(tensor, SparseInitializer) or tensor.dtype == ir.DataType.STRING:
        return None
    return tensor if tensor.nbytes <= _READ_BYTES else None


def _declared(value: ir.Value, name: str) -> onnx.ValueInfoProto:
    return ir.serde.serialize_value(ir.Value(name=name, type=value.type, shape=value.shape))


def _adapted(node: ir.Node, converted: onnx.ModelProto, known: dict[str, ir.Value]) -> Adapted:
    """Copy the converter's nodes, connected to the values of the model."""
    values = dict(known)
    nodes: list[ir.Node] = []
    made = [tensor for tensor in converted.graph.initializer if tensor.name not in known]
    protos = [*map(_constant, made), *converted.graph.node]
    for proto in protos:
        inputs = [values[name] if name else None for name in proto.input]
        new = ir.Node(
            proto.domain,
            proto.op_type,
            inputs,
            [ir.serde.deserialize_attribute(attribute) for attribute in proto.attribute],
            num_outputs=len(proto.output),
        )
        values |= dict(zip(proto.output, new.outputs, strict=True))
        nodes.append(new)
    outputs = [values[name] if name else ir.Value() for name in _output_names(node)]
    for old, heir in zip(node.outputs, outputs, strict=True):
        heir.type = old.type
    return Adapted(list(_used(nodes, outputs)), outputs)


def _constant(tensor: onnx.TensorProto) -> onnx.NodeProto:
    return onnx.helper.make_node("Constant", [], [tensor.name], value=tensor)


def _used(nodes: list[ir.Node], outputs: list[ir.Value]) -> Iterator[ir.Node]:
    for node in nodes:
        if any(value.uses() or value in outputs for value in node.outputs):
            yield node
