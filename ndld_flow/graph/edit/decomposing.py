"""Nodes decomposed into simpler operators: Gemm into MatMul and Add, others into ONNX's function bodies."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import onnx
import onnx_ir as ir

from ndld_flow.base.errors import RequestError
from ndld_flow.base.text import one_paragraph
from ndld_flow.graph.edit.edited_model import EditedModel
from ndld_flow.graph.edit.graph_edits import OperationEdits, known_shapes, label, prune_values, transposed
from ndld_flow.graph.edit.node_groups import copy_nodes
from ndld_flow.graph.sanitize.fusion import fuse_gemm
from ndld_flow.models.element_types import is_op, schema_of
from ndld_flow.models.lazy_tensors import SparseInitializer
from ndld_flow.models.nodes import graph_of, is_used, precision_metadata

_FIRST_OPSET = 7
"""Before, Gemm and Add broadcast only by an attribute."""
_Transposes = dict[tuple[ir.Value, ir.Graph], ir.Value]
"""Constant and the graph that reads it -> its transpose."""
_GRAPHS = (onnx.AttributeProto.GRAPH, onnx.AttributeProto.GRAPHS)
_WITH_SUBGRAPHS = frozenset(("Range", "SequenceMap"))
"""Operators whose definitions are loops."""


def split_gemms(edited: EditedModel, nodes: Sequence[ir.Node]) -> int:
    """Replace Gemm(a, b, c) by alpha * MatMul(a', b') + beta * c; returns the number of additional nodes.

    Raises `RequestError` for attributes that refer to a function's call, for an opset that is too old, and for an
    unknown element type.
    """
    if not nodes:
        return 0
    edits = OperationEdits(edited)
    count = sum(len(graph) for graph in edited.graphs())
    transposes: _Transposes = {}
    with known_shapes(edited.model):
        for node in nodes:
            _split(edits, node, transposes)
    return sum(len(graph) for graph in edited.graphs()) - count


def is_gemm(node: ir.Node) -> bool:
    """Return whether a node is ONNX's Gemm."""
    return is_op(node, "Gemm")


def fuse_gemms(edited: EditedModel, nodes: Sequence[ir.Node]) -> int:
    """Replace MatMul(a, b) + c by Gemm(a, b, c) for matrices and a constant row c; returns the number of pairs."""
    edits = OperationEdits(edited)
    with known_shapes(edited.model):
        for node in nodes:
            if is_op(node, "Add") and edits.opset_of(node) >= _FIRST_OPSET:
                fuse_gemm(edits, node)
    return edits.done.total()


def _split(edits: OperationEdits, node: ir.Node, transposes: _Transposes) -> None:
    if any(attribute.is_ref() for attribute in node.attributes.values()):
        raise RequestError(f"{label(node)} refers to attributes of its function's call: inline functions first")
    if edits.opset_of(node) < _FIRST_OPSET:
        raise RequestError(f"{label(node)} has opset {edits.opset_of(node)}: convert the model to {_FIRST_OPSET} first")
    name = node.name or "gemm"
    bias = node.inputs[2] if len(node.inputs) > 2 else None
    factors = [_factor(edits, node, 0, "transA", transposes), _factor(edits, node, 1, "transB", transposes)]
    product = edits.put_for(node, "MatMul", factors, wish=f"{name}_matmul")
    value = _scaled(edits, node, product, "alpha")
    if bias is not None and _number(node, "beta", 1.0) != 0:
        value = edits.put_for(node, "Add", [value, _scaled(edits, node, bias, "beta")], wish=f"{name}_add")
    edits.take_over(value, node.outputs[0])
    edits.remove(node)
    if bias is not None and edits.constant(bias) is not None:
        prune_values([bias])


def _factor(
    edits: OperationEdits, node: ir.Node, index: int, attribute: str, transposes: _Transposes
) -> ir.Value | None:
    """Return the matrix to multiply. A constant is transposed now, once for all nodes that share it."""
    value = node.inputs[index]
    if value is None or not _number(node, attribute, 0):
        return value
    tensor = edits.constant(value)
    if tensor is None or isinstance(tensor, SparseInitializer):
        return edits.put_for(node, "Transpose", [value], {"perm": [1, 0]}, f"{node.name or 'gemm'}_{attribute}")
    key = (value, graph_of(node))
    if key not in transposes:
        transposes[key] = edits.add_constant(graph_of(node), transposed(tensor, (1, 0)), f"{value.name}_transposed")
    node.replace_input_with(index, None)
    prune_values([value])
    return transposes[key]


def _scaled(edits: OperationEdits, node: ir.Node, value: ir.Value, attribute: str) -> ir.Value:
    factor = _number(node, attribute, 1.0)
    if factor == 1:
        return value
    dtype = next((port.dtype for port in (*node.outputs, *node.inputs) if port is not None and port.dtype), None)
    if dtype is None:
        raise RequestError(f"{label(node)}: its element type is unknown, so it cannot be multiplied by {attribute}")
    wish = f"{node.name or 'gemm'}_{attribute}"
    return edits.put_for(
        node, "Mul", [value, edits.constant_like(graph_of(node), factor, dtype, wish)], wish=f"{wish}_mul"
    )


def _number(node: ir.Node, name: str, default: float) -> float:
    attribute = node.attributes.get(name)
    return default if attribute is None else attribute.value


def decompose_nodes(edited: EditedModel, nodes: Sequence[ir.Node]) -> int:
    """Replace nodes by their operators' definitions; returns the number of additional nodes.

    Raises `RequestError` for an operator without a definition at the model's opset, and for unknown types.
    """
    if not nodes:
        return 0
    edits = OperationEdits(edited)
    more = 0
    with known_shapes(edited.model):
        for node in nodes:
            more += _put_body(edits, node, _body(edits, node)) - 1
    return more


def _versions(schema: onnx.defs.OpSchema | None, opset: int) -> list[int]:
    """Return the opsets of an operator's definitions, up to the model's; none for an unknown operator."""
    if schema is None:
        return []
    members: Any = schema  # onnx's stubs lack some
    versions = (*members.function_opset_versions, *members.context_dependent_function_opset_versions)
    return sorted(version for version in versions if version <= opset)


def _body(edits: OperationEdits, node: ir.Node) -> onnx.FunctionProto:
    opset = edits.opset_of(node)
    domain_opset = opset if node.domain == "" else edits.model.opset_imports.get(node.domain, 1)
    schema: Any = schema_of(node.op_type, domain_opset, node.domain)  # onnx's stubs lack some members
    versions = _versions(schema, opset)
    if schema is None or not versions:
        raise RequestError(f"{label(node)} is not defined by other operators at opset {opset}; {_advice(node, opset)}")
    if any(attribute.is_ref() for attribute in node.attributes.values()):
        raise RequestError(f"{label(node)} refers to attributes of its function's call: inline functions first")
    plain = [version for version in versions if version in schema.function_opset_versions]
    data = schema.get_function_with_opset_version(plain[-1]) if plain else _typed_body(schema, versions, node)
    body: onnx.FunctionProto = onnx.FunctionProto.FromString(data)
    if not body.node:
        raise RequestError(f"{label(node)}: ONNX has no definition for these inputs and attributes")
    _check_versions(node, body, opset)
    body.attribute_proto.extend(
        [
            attribute.default_value
            for name, attribute in schema.attributes.items()
            if attribute.default_value.type and name not in node.attributes
        ]
    )
    return body


def _advice(node: ir.Node, opset: int) -> str:
    """Return advice: the first later opset with a definition, or the operators that have one in this opset."""
    for later in range(opset + 1, onnx.defs.onnx_opset_version() + 1):
        if not node.domain and _versions(schema_of(node.op_type, later), later):
            return f"it is from opset {later} on: convert the model first"
    known = {schema.name for schema in onnx.defs.get_all_schemas() if schema.domain == ""} - _WITH_SUBGRAPHS
    return f"these are: {', '.join(sorted(name for name in known if _versions(schema_of(name, opset), opset)))}"


def _typed_body(schema: Any, versions: Sequence[int], node: ir.Node) -> bytes:  # noqa: ANN401 - an OpSchema
    """Return the definition for this node's attributes and types, serialized."""
    types = []
    for value in node.inputs:
        if value is not None and value.dtype is None:
            raise RequestError(f"{label(node)}: the type of {value.name} is unknown, and its definition requires it")
        types.append(b"" if value is None else _type(value).SerializeToString())
    proto = ir.serde.serialize_node(node)
    return bytes(
        schema.get_context_dependent_function_with_opset_version(versions[-1], proto.SerializeToString(), types)
    )


def _type(value: ir.Value) -> onnx.TypeProto:
    assert value.dtype is not None
    dims = None if value.shape is None else [dim if isinstance(dim, int) else None for dim in value.shape]
    return onnx.helper.make_tensor_type_proto(value.dtype.value, dims)


def _check_versions(node: ir.Node, body: onnx.FunctionProto, opset: int) -> None:
    """Check that the definition's operators have the same inputs and attributes at the model's opset."""
    for inner in body.node:
        schema = schema_of(inner.op_type, opset, inner.domain)
        if any(attribute.type in _GRAPHS for attribute in inner.attribute):
            raise RequestError(f"{label(node)} is defined by a subgraph, which cannot be inserted")
        known = schema is not None and all(attribute.name in schema.attributes for attribute in inner.attribute)
        if schema is None or len(inner.input) > schema.max_input or not known:
            written = next((entry.version for entry in body.opset_import if entry.domain == ""), 0)
            raise RequestError(
                f"{label(node)}: its definition is written for opset {written}, and {inner.op_type} differs at the "
                f"model's opset {opset}: convert the model to {written} first"
            )


def _put_body(edits: OperationEdits, node: ir.Node, body: onnx.FunctionProto) -> int:
    """Replace the node by the nodes of its definition; returns their number."""
    computed = {name for inner in body.node for name in inner.output} | set(body.input)
    # The definition has all outputs, even those that the node omits.
    wanted = [(output, name) for output, name in zip(node.outputs, body.output, strict=False) if name in computed]
    body.output[:] = [name for _, name in wanted]
    function = ir.serde.deserialize_function(body)
    defaults = {attribute.name: ir.serde.deserialize_attribute(attribute) for attribute in body.attribute_proto}
    attributes = {**defaults, **node.attributes}
    given = [*node.inputs, *[None] * (len(function.inputs) - len(node.inputs))]
    read: dict[ir.Value, ir.Value | None] = dict(zip(function.inputs, given, strict=True))
    base = node.name or node.op_type
    copies = copy_nodes(function, read, attributes)
    nodes = copies.nodes
    for inner in nodes:
        inner.name = edits.new_name(f"{base}_{inner.op_type}")
        inner.metadata_props.update(precision_metadata(node))
        for output in inner.outputs:
            output.name = edits.new_name(f"{base}_{output.name}") if output.name else ""
    graph_of(node).insert_before(node, nodes)
    for (output, _), result in zip(wanted, function.outputs, strict=True):
        if is_used(output):
            value = copies.values.get(result) or read[result]
            if value is None or value in node.inputs or value.name == output.name:
                value = edits.put_for(node, "Identity", [value], wish=f"{base}_same")
            edits.take_over(value, output)
    _check_types(node, nodes, edits.opset_of(node))
    edits.remove(node)
    for inner in reversed(nodes):  # some compute outputs that the node omits
        if not any(map(is_used, inner.outputs)):
            edits.remove(inner)
    return sum(inner.graph is not None for inner in nodes)


def _check_types(node: ir.Node, body: Sequence[ir.Node], opset: int) -> None:
    """Raise `RequestError` for a definition that does not support the node's types, such as FP16."""
    given = [value for value in dict.fromkeys(node.inputs) if value is not None]
    if any(value.dtype is None for value in given):
        return
    inputs = [onnx.ValueInfoProto(name=value.name, type=_type(value)) for value in given]
    nodes = [ir.serde.serialize_node(inner) for inner in body]
    graph = onnx.helper.make_graph(nodes, "body", inputs, [])
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", opset)])
    try:
        onnx.shape_inference.infer_shapes(model, check_type=True, strict_mode=True)
    except onnx.shape_inference.InferenceError as error:
        raise RequestError(f"{label(node)}: ONNX's definition does not fit its types: {one_paragraph(error)}") from None
