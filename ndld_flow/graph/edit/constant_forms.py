"""The same constant as an initializer, a Constant node, or an input with a default value."""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as ir

from ndld_flow.base.errors import RequestError
from ndld_flow.graph.edit.edited_model import EditedModel
from ndld_flow.graph.edit.format_version import FREE_INITIALIZERS, raise_ir_version
from ndld_flow.graph.edit.initializers import put_constant
from ndld_flow.graph.edit.tensor_criteria import TensorCriteria
from ndld_flow.graph.edit.tensor_selecting import ConstantTensor, fitting_tensors
from ndld_flow.models.sparse_tensors import SparseInitializer


def select_initializers(edited: EditedModel, select: TensorCriteria, allow_empty: bool) -> list[ConstantTensor]:
    """The initializers among what is selected. Raises `RequestError` when there are none and that is not allowed."""
    return _only(edited, select, allow_empty, "initializer")


def select_constants(edited: EditedModel, select: TensorCriteria, allow_empty: bool) -> list[ConstantTensor]:
    """The Constant nodes that are selected, `constants` said or not. Raises `RequestError` as for initializers."""
    return _only(edited, select, allow_empty, "Constant node")


def _only(edited: EditedModel, select: TensorCriteria, allow_empty: bool, kind: str) -> list[ConstantTensor]:
    wants_nodes = kind == "Constant node"
    found = [
        one
        for one in fitting_tensors(edited.model, select, allow_empty, constants=wants_nodes or None)
        if (one.node is not None) == wants_nodes
    ]
    if not found and not allow_empty:
        raise RequestError(f"nothing that is selected is a {kind}")
    return found


def to_initializers(edited: EditedModel, held: Sequence[ConstantTensor]) -> int:
    """Constant nodes -> initializers of the same names; returns how many. Local functions hold none: theirs stay."""
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
        raise_ir_version(edited, FREE_INITIALIZERS)
    return moved


def to_constants(held: Sequence[ConstantTensor]) -> None:
    """Initializers -> Constant nodes that make tensors of the same names.

    Raises `RequestError` for one that is an input too, and for a sparse one.
    """
    for one in held:
        if one.value.is_graph_input():
            raise RequestError(f"initializer {one.name!r} is an input too; use drop_initializer_inputs before")
        if isinstance(one.tensor, SparseInitializer):
            raise RequestError(f"initializer {one.name!r} is sparse; use make_dense before")
        if one.stored == "external":
            raise RequestError(f"initializer {one.name!r} lies in a data file, which Constant nodes rarely may")
    for one in held:
        value = ir.Value(name=one.name, type=ir.TensorType(one.tensor.dtype), shape=one.value.shape)
        del one.graph.initializers[one.name]
        one.value.replace_all_uses_with(value, replace_graph_outputs=True)
        put_constant(one.graph, value, one.tensor)


def to_inputs(held: Sequence[ConstantTensor], keep_values: bool) -> None:
    """Initializers of the main graph -> inputs, last; their values stay as defaults, or are forgotten.

    Raises `RequestError` for a sparse one, for one of a subgraph, and for one that is an output too.
    """
    for one in held:
        if one.scope:
            raise RequestError(
                f"initializer {one.name!r} stands in {one.scope!r}; only the main graph has inputs to feed"
            )
        if isinstance(one.tensor, SparseInitializer):
            raise RequestError(f"initializer {one.name!r} is sparse; use make_dense before")
    for one in held:
        value = one.value
        value.type = ir.TensorType(one.tensor.dtype)
        value.shape = ir.Shape(one.tensor.shape.numpy())
        if not value.is_graph_input():
            one.graph.inputs.append(value)
        if not keep_values:
            del one.graph.initializers[one.name]
            value.const_value = None


def drop_inputs(edited: EditedModel, held: Sequence[ConstantTensor], allow_empty: bool) -> int:
    """Initializers that are inputs too are inputs no longer; returns how many.

    Raises `RequestError` when none is one and that is not allowed.
    """
    dropped = 0
    for one in held:
        if one.value.is_graph_input():
            one.graph.inputs.remove(one.value)
            dropped += 1
    if not dropped and not allow_empty:
        raise RequestError("no initializer that is selected is an input")
    if dropped:
        raise_ir_version(edited, FREE_INITIALIZERS)
    return dropped
