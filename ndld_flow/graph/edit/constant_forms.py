"""Conversions between initializers, Constant nodes, and inputs with default values."""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as ir

from ndld_flow.base.errors import RequestError
from ndld_flow.graph.edit.constant_tensors import ConstantTensor, find_tensors
from ndld_flow.graph.edit.edited_model import EditedModel
from ndld_flow.graph.edit.initializers import put_constant
from ndld_flow.graph.edit.ir_version import FIRST_WITH_FREE_INITIALIZERS, raise_ir_version
from ndld_flow.graph.edit.selection import TensorSelect
from ndld_flow.models.sparse_tensors import SparseInitializer


def select_initializers(edited: EditedModel, select: TensorSelect, allow_empty: bool) -> list[ConstantTensor]:
    """Return the selected initializers. Raises `RequestError` when there are none, unless that is allowed."""
    return _only(edited, select, allow_empty, "initializer")


def select_constants(edited: EditedModel, select: TensorSelect, allow_empty: bool) -> list[ConstantTensor]:
    """Return the selected Constant nodes, with or without `constants`. Raises `RequestError` as for initializers."""
    return _only(edited, select, allow_empty, "Constant node")


def _only(edited: EditedModel, select: TensorSelect, allow_empty: bool, kind: str) -> list[ConstantTensor]:
    wants_nodes = kind == "Constant node"
    found = [
        one
        for one in find_tensors(edited.model, select, allow_empty, constants=wants_nodes or None)
        if (one.node is not None) == wants_nodes
    ]
    if not found and not allow_empty:
        raise RequestError(f"no {kind} is selected")
    return found


def to_initializers(edited: EditedModel, held: Sequence[ConstantTensor]) -> int:
    """Turn Constant nodes into initializers and return how many. Those of local functions stay."""
    moved = 0
    for one in held:
        node = one.node
        if node is None or "::" in one.scope or one.value.is_graph_output():
            continue
        tensor = one.tensor
        value = ir.Value(
            name=one.name, type=ir.TensorType(tensor.dtype), shape=ir.Shape(tensor.shape.numpy()), const_value=tensor
        )
        one.value.replace_all_uses_with(value)
        one.graph.remove(node, safe=True)
        one.graph.register_initializer(value)
        moved += 1
    if moved:
        raise_ir_version(edited, FIRST_WITH_FREE_INITIALIZERS)
    return moved


def to_constants(held: Sequence[ConstantTensor]) -> None:
    """Turn initializers into Constant nodes whose outputs have the same names.

    Raises `RequestError` for one that is also an input, is sparse, or is in a data file.
    """
    for one in held:
        if one.value.is_graph_input():
            raise RequestError(f"initializer {one.name!r} is also an input; use `remove_initializer_inputs` first")
        if isinstance(one.tensor, SparseInitializer):
            raise RequestError(f"initializer {one.name!r} is sparse; use `make_dense` first")
        if one.stored == "external":
            raise RequestError(
                f"initializer {one.name!r} is in a data file, which few tools support for Constant nodes"
            )
    for one in held:
        value = ir.Value(name=one.name, type=ir.TensorType(one.tensor.dtype), shape=one.value.shape)
        del one.graph.initializers[one.name]
        one.value.replace_all_uses_with(value, replace_graph_outputs=True)
        put_constant(one.graph, value, one.tensor)


def to_inputs(held: Sequence[ConstantTensor], keep_values: bool) -> None:
    """Append initializers of the main graph to its inputs; their values are kept as defaults or removed.

    Raises `RequestError` for a sparse one, and for one of a subgraph.
    """
    for one in held:
        if one.scope:
            raise RequestError(
                f"initializer {one.name!r} is in {one.scope!r}; only inputs of the main graph can be fed"
            )
        if isinstance(one.tensor, SparseInitializer):
            raise RequestError(f"initializer {one.name!r} is sparse; use `make_dense` first")
    for one in held:
        value = one.value
        value.type = ir.TensorType(one.tensor.dtype)
        value.shape = ir.Shape(one.tensor.shape.numpy())
        if not value.is_graph_input():
            one.graph.inputs.append(value)
        if not keep_values:
            del one.graph.initializers[one.name]
            value.const_value = None


def remove_from_inputs(edited: EditedModel, held: Sequence[ConstantTensor], allow_empty: bool) -> int:
    """Remove initializers from the inputs and return how many were inputs.

    Raises `RequestError` when none was, unless that is allowed.
    """
    dropped = 0
    for one in held:
        if one.value.is_graph_input():
            one.graph.inputs.remove(one.value)
            dropped += 1
    if not dropped and not allow_empty:
        raise RequestError("no selected initializer is an input")
    if dropped:
        raise_ir_version(edited, FIRST_WITH_FREE_INITIALIZERS)
    return dropped
