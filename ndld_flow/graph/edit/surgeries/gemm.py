"""Decomposition of Gemm into MatMul and Add, and the reverse fusion."""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as ir

from ndld_flow.base.errors import RequestError
from ndld_flow.graph.edit.edited_model import EditedModel
from ndld_flow.graph.edit.surgeries.rewriting import Rewriting, graph_of, known_shapes, label
from ndld_flow.graph.edit.surgeries.transposed_tensors import transposed
from ndld_flow.graph.sanitize.edits import is_standard
from ndld_flow.graph.sanitize.fuse_nodes import fuse_gemm
from ndld_flow.models.sparse_tensors import SparseInitializer

_FIRST_OPSET = 7
"""Before, Gemm and Add broadcast only by an attribute."""
_Turned = dict[tuple[ir.Value, ir.Graph], ir.Value]
"""Constant and the graph that reads it -> its transpose."""


def split_gemms(edited: EditedModel, nodes: Sequence[ir.Node]) -> int:
    """Gemm(a, b, c) -> alpha * MatMul(a', b') + beta * c; returns the number of additional nodes.

    Raises `RequestError` for attributes that refer to a function's call, for an opset that is too old, and for an
    unknown element type.
    """
    if not nodes:
        return 0
    edits = Rewriting(edited)
    count = sum(len(graph) for graph in edited.graphs())
    turned: _Turned = {}
    with known_shapes(edited.model):
        for node in nodes:
            _split(edits, node, turned)
    return sum(len(graph) for graph in edited.graphs()) - count


def is_gemm(node: ir.Node) -> bool:
    """Return whether a node is ONNX's Gemm."""
    return node.op_type == "Gemm" and is_standard(node)


def fuse_gemms(edited: EditedModel, nodes: Sequence[ir.Node]) -> int:
    """MatMul(a, b) + c -> Gemm(a, b, c) for matrices and a constant row c; returns the number of fused pairs."""
    edits = Rewriting(edited)
    with known_shapes(edited.model):
        for node in nodes:
            if node.op_type == "Add" and is_standard(node) and edits.opset_of(node) >= _FIRST_OPSET:
                fuse_gemm(edits, node)
    return edits.done.total()


def _split(edits: Rewriting, node: ir.Node, turned: _Turned) -> None:
    _check(edits, node)
    name = node.name or "gemm"
    bias = node.inputs[2] if len(node.inputs) > 2 else None
    factors = [_factor(edits, node, 0, "transA", turned), _factor(edits, node, 1, "transB", turned)]
    product = edits.put_for(node, "MatMul", factors, wish=f"{name}_matmul")
    value = _scaled(edits, node, product, "alpha")
    if bias is not None and _number(node, "beta", 1.0) != 0:
        value = edits.put_for(node, "Add", [value, _scaled(edits, node, bias, "beta")], wish=f"{name}_add")
    edits.take_over(value, node.outputs[0])
    edits.remove(node)
    if bias is not None and edits.constant(bias) is not None:
        edits.drop_unread(bias)


def _check(edits: Rewriting, node: ir.Node) -> None:
    if any(attribute.is_ref() for attribute in node.attributes.values()):
        raise RequestError(f"{label(node)} refers to attributes of its function's call: inline functions first")
    if edits.opset_of(node) < _FIRST_OPSET:
        raise RequestError(f"{label(node)} has opset {edits.opset_of(node)}: convert the model to {_FIRST_OPSET} first")


def _factor(edits: Rewriting, node: ir.Node, index: int, attribute: str, turned: _Turned) -> ir.Value | None:
    """Return the matrix to multiply. A constant is transposed now, once for all nodes that share it."""
    value = node.inputs[index]
    if value is None or not _number(node, attribute, 0):
        return value
    tensor = edits.constant(value)
    if tensor is None or isinstance(tensor, SparseInitializer):
        return edits.put_for(node, "Transpose", [value], {"perm": [1, 0]}, f"{node.name or 'gemm'}_{attribute}")
    key = (value, graph_of(node))
    if key not in turned:
        turned[key] = edits.add_constant(graph_of(node), transposed(tensor, (1, 0)), f"{value.name}_transposed")
    node.replace_input_with(index, None)
    edits.drop_unread(value)
    return turned[key]


def _scaled(edits: Rewriting, node: ir.Node, value: ir.Value, attribute: str) -> ir.Value:
    factor = _number(node, attribute, 1.0)
    if factor == 1:
        return value
    dtype = next((one.dtype for one in (*node.outputs, *node.inputs) if one is not None and one.dtype), None)
    if dtype is None:
        raise RequestError(f"{label(node)}: its element type is unknown, so it cannot be multiplied by {attribute}")
    wish = f"{node.name or 'gemm'}_{attribute}"
    return edits.put_for(
        node, "Mul", [value, edits.constant_like(graph_of(node), factor, dtype, wish)], wish=f"{wish}_mul"
    )


def _number(node: ir.Node, name: str, default: float) -> float:
    attribute = node.attributes.get(name)
    return default if attribute is None else attribute.value
