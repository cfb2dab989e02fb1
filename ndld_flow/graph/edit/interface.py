"""Inputs and outputs of a model: adding, removing, and their order."""

from __future__ import annotations

from collections.abc import Iterable, MutableSequence, Sequence
from dataclasses import dataclass

import onnx_ir as ir

from ndld_flow.base.errors import RequestError
from ndld_flow.base.name_patterns import name_matcher
from ndld_flow.base.text import short_name, suggest
from ndld_flow.graph.edit.dtype_names import parse_dtype
from ndld_flow.graph.edit.edited_model import EditedModel, values_of
from ndld_flow.graph.edit.ir_version import FIRST_WITH_FREE_INITIALIZERS, raise_ir_version
from ndld_flow.graph.edit.removal import is_used, prune_values
from ndld_flow.models.element_types import dtype_of, infer_types
from ndld_flow.models.input_shapes import show_shape
from ndld_flow.models.scopes import node_label, scopes_of
from ndld_flow.models.shape_inference import infer_shapes

Dims = Sequence[int | str | None]


@dataclass(frozen=True)
class Declared:
    """Type and shape from settings."""

    dtype: str | None = None
    shape: Dims | None = None

    @property
    def type(self) -> ir.TensorType | None:
        """Raises `RequestError` for a word that is no element type."""
        return None if self.dtype is None else ir.TensorType(parse_dtype(self.dtype))

    @property
    def dims(self) -> ir.Shape | None:
        return None if self.shape is None else ir.Shape(self.shape)


REST = "*"
"""In an order: all that are not listed, in their present order."""


def pick(values: Iterable[ir.Value], patterns: Sequence[str], what: str, allow_empty: bool = False) -> list[ir.Value]:
    """Return inputs or outputs whose names match one of the patterns, in their order, each once.

    `what` is `input` or `output`. Raises `RequestError` for a pattern that fits none, unless that is allowed.
    """
    known = {value.name or "": value for value in values}
    chosen: set[str] = set()
    for pattern in patterns:
        found = set(filter(name_matcher(pattern), known))
        if not found and not allow_empty:
            hint = suggest(pattern, known) or f"it has no {what}s"
            raise RequestError(f"the model has no {what} {short_name(pattern)!r}; {hint}")
        chosen |= found
    return [value for name, value in known.items() if name in chosen]


# --- inputs ----------------------------------------------------------------------------------------------------------


def add_input(edited: EditedModel, name: str, declared: Declared) -> None:
    """Add an unused input. Raises `RequestError` for a name that is already used."""
    refuse_taken(edited, name)
    edited.model.graph.inputs.append(ir.Value(name=name, type=declared.type, shape=declared.dims))


def refuse_taken(edited: EditedModel, name: str) -> None:
    """Raises `RequestError` when a tensor of any graph has this name."""
    for address, graph in scopes_of(edited.model).items():
        if any(value.name == name for value in values_of(graph)):
            where = f" in {short_name(address)}" if address else ""
            raise RequestError(f"there is a tensor {short_name(name)!r} already{where}; choose another name")


def remove_input(edited: EditedModel, value: ir.Value) -> None:
    """Remove an unused input; one with a default value becomes that constant.

    Raises `RequestError` for an input that is used.
    """
    if is_used(value) and not value.is_initializer():
        raise RequestError(
            f"input {value.name!r} is read by {_readers(value)}; give a constant by `replace_by`, "
            "or remove its readers first"
        )
    edited.model.graph.inputs.remove(value)
    if value.is_initializer():
        raise_ir_version(edited, FIRST_WITH_FREE_INITIALIZERS)
    prune_values([value])


def _readers(value: ir.Value) -> str:
    nodes = [f"{node.op_type} {short_name(node_label(node))!r}" for node in value.consumers()]
    told = ", ".join(nodes[:3]) + (f" and {len(nodes) - 3} more" if len(nodes) > 3 else "")
    return told or "an output"


def fix_input(edited: EditedModel, value: ir.Value, tensor: ir.TensorProtocol) -> None:
    """Replace an input by a constant. Raises `RequestError` for an output, and for another type or shape."""
    if value.dtype not in (None, tensor.dtype):
        raise RequestError(f"input {value.name!r} is {value.dtype}, but the value given is {tensor.dtype}")
    dims = tuple(tensor.shape.numpy())
    own = value.shape
    if own is not None and not _fits(own, dims):
        raise RequestError(f"input {value.name!r} has the shape {show_shape(own)}, the value given {list(dims)}")
    raise_ir_version(edited, FIRST_WITH_FREE_INITIALIZERS)
    graph = edited.model.graph
    graph.inputs.remove(value)
    value.const_value = tensor
    value.type, value.shape = ir.TensorType(tensor.dtype), ir.Shape(dims)
    if not value.is_initializer():
        graph.register_initializer(value)


def _fits(own: ir.Shape, dims: Sequence[int]) -> bool:
    return len(own) == len(dims) and all(
        not isinstance(dim, int) or dim == given for dim, given in zip(own, dims, strict=True)
    )


# --- outputs ---------------------------------------------------------------------------------------------------------


def add_outputs(edited: EditedModel, patterns: Sequence[str], unknown: Declared) -> list[ir.Value]:
    """Make tensors of the main graph outputs, unless they are. Returns the new outputs.

    A pattern means what nodes make; an input or an initializer must be named in full. Raises `RequestError` where one
    is in a subgraph, or has an unknown type or rank that is not given.
    """
    graph = edited.model.graph
    made = [value for node in graph for value in node.outputs if value.name]
    given = [value for value in values_of(graph) if value.name in patterns]
    chosen: dict[ir.Value, None] = {}
    for pattern in patterns:
        fits = name_matcher(pattern)
        found = [value for value in given if value.name == pattern] or [v for v in made if fits(v.name or "")]
        if not found:
            raise RequestError(_why_no_output(edited, pattern))
        chosen |= dict.fromkeys(found)
    new = [value for value in chosen if not value.is_graph_output()]
    _declare(edited.model, new, unknown)
    graph.outputs.extend(new)
    return new


def _why_no_output(edited: EditedModel, pattern: str) -> str:
    fits = name_matcher(pattern)
    for address, graph in edited.scopes().items():
        inside = next((value.name for value in values_of(graph) if fits(value.name or "")), None)
        if address and inside is not None:
            return (
                f"{short_name(inside)!r} is in {short_name(address)}, which may run any number of times, while a model "
                "has one value for each output. Make it an output of the subgraph first, or move the nodes out"
            )
    names = [value.name or "" for value in values_of(edited.model.graph)]
    return f"no tensor has a name like {short_name(pattern)!r}; {suggest(pattern, names)}"


def _declare(model: ir.Model, values: Sequence[ir.Value], unknown: Declared) -> None:
    """Set the type and rank of outputs, which ONNX requires."""
    if any(value.type is None or value.shape is None for value in values):
        infer_shapes(model)
    types = infer_types(model) if any(value.type is None for value in values) and not model.functions else {}
    for value in values:
        if value.type is None:
            value.type = unknown.type or _tensor_type(types.get(value, ""))
        if value.type is None:
            raise RequestError(f"the type of {value.name!r} cannot be inferred; give it by `dtype`")
        if value.shape is None and isinstance(value.type, ir.TensorType):
            value.shape = unknown.dims
            if value.shape is None:
                raise RequestError(f"the shape of {value.name!r} cannot be inferred; give it by `shape`")


def _tensor_type(type_: str) -> ir.TensorType | None:
    return ir.TensorType(dtype_of(type_)) if type_.startswith("tensor(") else None


def remove_outputs(edited: EditedModel, values: Sequence[ir.Value], prune: bool) -> int:
    """Remove outputs and return the number of nodes that were removed as unused.

    Raises `RequestError` when none would be left.
    """
    outputs = edited.model.graph.outputs
    kept = [value for value in outputs if value not in values]
    if not kept:
        raise RequestError("no output would be left; add others first by `add_outputs`")
    inputs = [value for value in edited.model.graph.inputs if value.uses()]
    outputs[:] = kept
    removed = prune_values(values) if prune else []
    idle = [value.name for value in inputs if not is_used(value)]
    if idle:
        edited.note(f"nothing reads {', '.join(map(short_name, filter(None, idle)))} any more; see `remove_inputs`")
    return len(removed)


# --- order -------------------------------------------------------------------------------------------------


def reorder(values: MutableSequence[ir.Value], order: Sequence[str], what: str) -> None:
    """Reorder inputs or outputs by name; `*` stands for all that are not listed.

    Raises `RequestError` for an unknown name, for one that is listed twice, and for one that is missing without `*`.
    """
    known = {value.name or "": value for value in values}
    for name in order:
        if name != REST and name not in known:
            raise RequestError(f"the model has no {what} {short_name(name)!r}; {suggest(name, known)}")
        if order.count(name) > 1:
            raise RequestError(f"{name!r} is listed twice in the order")
    if len(known) < len(values):
        raise RequestError(f"one {what} of the model is listed twice; remove it first")
    rest = [value for name, value in known.items() if name not in order]
    if rest and REST not in order:
        left = ", ".join(short_name(value.name or "") for value in rest)
        raise RequestError(f"the order does not list {left}; `*` stands for all that are not listed")
    sorted_values = [value for name in order for value in (rest if name == REST else [known[name]])]
    values[:] = sorted_values
