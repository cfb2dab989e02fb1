"""Element types of inputs and outputs, changed by a Cast or by redeclaration."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import onnx_ir as ir

from ndld_flow.base.errors import RequestError
from ndld_flow.base.text import short_name, suggest
from ndld_flow.graph.edit.dimensions import Snapshot
from ndld_flow.graph.edit.dtype_names import parse_dtype
from ndld_flow.graph.edit.edited_model import EditedModel
from ndld_flow.models.element_types import tensor_of
from ndld_flow.models.op_signatures import signature_of
from ndld_flow.models.tensor_statistics import dtype_name

_STRING_TARGETS = 6
"""Before this opset, the target of Cast was a string."""


def find_edges(edited: EditedModel, names: Sequence[str]) -> list[ir.Value]:
    """Return inputs and outputs by name. Raises `RequestError` for one that is unknown, both, or no tensor."""
    graph = edited.model.graph
    known = {value.name or "": value for value in (*graph.inputs, *graph.outputs)}
    for name in names:
        value = known.get(name)
        if value is None:
            raise RequestError(f"the model has no input or output {short_name(name)!r}; {suggest(name, known)}")
        if value.is_graph_input() and value.is_graph_output():
            raise RequestError(f"{name!r} is an input and an output at once; put an Identity between them first")
        if not isinstance(value.type, ir.TensorType):
            raise RequestError(f"{name!r} is no tensor of known type: {value.type}")
    return [known[name] for name in names]


def cast_edges(edited: EditedModel, dtypes: Mapping[str, str]) -> int:
    """Change types of inputs and outputs by Casts that keep the types inside. Returns the number of Casts.

    Raises `RequestError` where a Cast of the model's opset cannot do it.
    """
    count = 0
    for value in find_edges(edited, tuple(dtypes)):
        dtype = parse_dtype(dtypes[value.name or ""])
        if dtype == value.dtype:
            continue
        _cast_input(edited, value, dtype) if value.is_graph_input() else _cast_output(edited, value, dtype)
        count += 1
    return count


def _cast_input(edited: EditedModel, value: ir.Value, dtype: ir.DataType) -> None:
    if value.is_initializer():
        raise RequestError(f"input {value.name!r} has a default value; give that another type, or remove it, first")
    inside = value.dtype
    assert inside is not None
    value.type = ir.TensorType(dtype)
    cast = _cast(edited, value, inside)
    made = cast.outputs[0]
    made.name, made.shape = edited.fresh_name(f"{value.name}_{dtype_name(inside)}"), value.shape
    for node, index in tuple(value.uses()):
        if node is not cast:
            node.replace_input_with(index, made)
    graph = edited.model.graph
    first = next(iter(graph), None)
    graph.append(cast) if first is None else graph.insert_before(first, cast)


def _cast_output(edited: EditedModel, value: ir.Value, dtype: ir.DataType) -> None:
    cast = _cast(edited, value, dtype)
    made = cast.outputs[0]
    name = value.name
    value.name = edited.fresh_name(f"{name}_{dtype_name(value.dtype or ir.DataType.UNDEFINED)}")
    made.name, made.shape = name, value.shape
    made.metadata_props.update(value.metadata_props)
    graph = edited.model.graph
    graph.outputs[graph.outputs.index(value)] = made
    graph.append(cast)


def _cast(edited: EditedModel, value: ir.Value, to: ir.DataType) -> ir.Node:
    """Raises `RequestError` where the operator does not take or make such a type."""
    opset = edited.model.opset_imports.get("", 1)
    target = ir.AttrString("to", to.name) if opset < _STRING_TARGETS else ir.AttrInt64("to", to)
    name = edited.fresh_name(f"{value.name}_cast")
    node = ir.Node("", "Cast", [value], [target], name=name)
    node.outputs[0].type = ir.TensorType(to)
    signature = signature_of(node, {"": opset})
    ports = zip((value.dtype, to), (*signature.inputs, *signature.outputs), strict=True) if signature else ()
    for dtype, variable in ports:
        if signature and dtype is not None and not signature.admits(variable, tensor_of(dtype)):
            node.replace_input_with(0, None)
            raise RequestError(f"Cast of opset {opset} does not know {dtype_name(dtype)} ({value.name!r})")
    return node


def retype_edges(edited: EditedModel, dtypes: Mapping[str, str]) -> int:
    """Declare other types and infer all that depend on them. Returns the number of changed declarations.

    Raises `ModelError` when the model cannot have them, which it was able to have before.
    """
    values = find_edges(edited, tuple(dtypes))
    snapshot = Snapshot(edited.model)
    changed = 0
    for value in values:
        dtype = parse_dtype(dtypes[value.name or ""])
        changed += dtype != value.dtype
        value.type = ir.TensorType(dtype)
    told = ", ".join(f"{name}: {dtype}" for name, dtype in dtypes.items())
    snapshot.infer_again(edited, f"the model cannot have these types ({told})", types=True)
    return changed
