"""Inputs and outputs of a model: selection, types and shapes, and the inference of all other shapes."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import onnx_ir as ir

from ndld_flow.base.errors import ModelError, RequestError
from ndld_flow.base.name_patterns import name_matcher
from ndld_flow.base.text import short_name, suggest
from ndld_flow.graph.edit.edited_model import EditedModel
from ndld_flow.graph.edit.graph_edits import known_shapes
from ndld_flow.graph.edit.value_grammar import parse_dtype
from ndld_flow.models.element_types import Types, dtype_name, dtype_of, infer_types
from ndld_flow.models.files import all_graphs
from ndld_flow.models.input_shapes import (
    Snapshot,
    computed_values,
    dynamic_values,
    real_inputs,
    set_shapes_of_inputs,
    show_shape,
    show_tensors,
    suggest_tensor,
)
from ndld_flow.models.shape_inference import is_invented_name

Dims = Sequence[int | str | None]
_TYPE = re.compile(r"\s*([A-Za-z0-9_]+)\s*\[([^\[\]]*)\]\s*")


@dataclass(frozen=True)
class Declared:
    """Type and shape from settings."""

    dtype: str | None = None
    shape: Dims | None = None

    @property
    def type(self) -> ir.TensorType | None:
        """Return the element type. Raises `RequestError` for an unknown name."""
        return None if self.dtype is None else ir.TensorType(parse_dtype(self.dtype))

    @property
    def dims(self) -> ir.Shape | None:
        return None if self.shape is None else ir.Shape(self.shape)


def pick(values: Iterable[ir.Value], patterns: Sequence[str], what: str, allow_empty: bool = False) -> list[ir.Value]:
    """Return inputs or outputs whose names match one of the patterns, in their order, each once.

    `what` is `input` or `output`. Raises `RequestError` for a pattern that fits none, unless that is allowed.
    """
    known = {value.name or "": value for value in values}
    chosen: set[str] = set()
    for pattern in patterns:
        matching = set(filter(name_matcher(pattern), known))
        if not matching and not allow_empty:
            hint = suggest(pattern, known) or f"it has no {what}s"
            raise RequestError(f"the model has no {what} {short_name(pattern)!r}; {hint}")
        chosen |= matching
    return [value for name, value in known.items() if name in chosen]


def find_output(model: ir.Model, name: str | None, advice: str = "") -> ir.Value:
    """Return the output of a name, or the only one without a name. Raises `RequestError` if there is none."""
    outputs = {value.name or "": value for value in model.graph.outputs}
    if name is None and len(outputs) == 1:
        name = next(iter(outputs))
    if name is None:
        shown = show_tensors(model.graph.outputs)
        raise RequestError(f"the model has {len(outputs)} outputs ({shown}): give `output`{advice}")
    if name not in outputs:
        raise RequestError(f"the model has no output {name!r}; {suggest_tensor(name, model.graph.outputs)}")
    return outputs[name]


def change_shapes(edited: EditedModel, shapes: Mapping[str, Dims], sizes: Mapping[str, int]) -> None:
    """Set shapes of inputs and sizes of named dimensions, and infer all other shapes.

    Raises `ModelError` if the model does not support the shapes.
    """
    snapshot = Snapshot(edited.model)
    set_shapes_of_inputs(edited.model, shapes, sizes)
    shown = ", ".join(f"{value.name}: {show_shape(value.shape)}" for value in real_inputs(edited.model))
    snapshot.infer_again(edited.model, edited.note, f"the model does not support these input shapes ({shown})")


def show_inputs(model: ir.Model) -> str:
    """Return `x: [1, 3, 640, 640], mask: [1]; still dynamic: y`."""
    inputs = show_tensors(real_inputs(model))
    dynamic = ", ".join(str(value.name) for value in dynamic_values(model))
    return f"{inputs}; still dynamic: {dynamic}" if dynamic else inputs


def show_interface(model: ir.Model) -> str:
    """Return `x: [1, 3, 640, 640] -> p3: [1, 64, 80, 80], p4: [1, 128, 40, 40]`."""
    return f"{show_tensors(real_inputs(model))} -> {show_tensors(model.graph.outputs)}"


def discard_shapes(model: ir.Model) -> list[ir.Value]:
    """Discard shapes and types of computed tensors; returns these."""
    values = [value for graph in all_graphs(model) for value in computed_values(graph) if not value.is_graph_output()]
    for value in values:
        value.shape = value.type = None
    return values


def parse_tensor_type(text: str) -> tuple[ir.TensorType, ir.Shape]:
    """Parse `float32[1, 3, H, ?]`: numbers, names, `?` for an unknown dimension; `int64[]` is a scalar.

    Raises `RequestError`.
    """
    match = _TYPE.fullmatch(text)
    if match is None:
        raise RequestError(f"{text!r} is not a tensor type: write a dtype and a shape, such as `float32[1, 3, H, ?]`")
    words = [word.strip() for word in match[2].split(",")] if match[2].strip() else []
    dims = [None if word == "?" else int(word) if word.isascii() and word.isdigit() else word for word in words]
    return ir.TensorType(parse_dtype(match[1])), ir.Shape(dims)


def type_edges(model: ir.Model, edges: Iterable[ir.Value], given: Mapping[str, str]) -> None:
    """Set type and shape of tensors that become inputs or outputs: as given, as inferred, or as recorded.

    Raises `RequestError` for an unknown name, and for a tensor whose dtype or number of dimensions is unknown.
    """
    edges = list(edges)
    known = {value.name or "" for value in edges}
    for name in given:
        if name not in known:
            raise RequestError(f"`types`: {name!r} becomes neither input nor output; {suggest(name, known)}")
    for value in edges:
        if value.name in given:
            value.type, value.shape = parse_tensor_type(given[value.name or ""])
    infer_edges([value for value in edges if value.name not in given], model)
    # Where shape inference stops, operators' signatures give the types.
    untyped = [edge for edge in edges if edge.type is None]
    types = types_by_signatures(model) if untyped else {}
    for edge in untyped:
        if types.get(edge, "").startswith("tensor("):
            edge.type = ir.TensorType(dtype_of(types[edge]))
    _check_known(edges)


def infer_edges(edges: Iterable[ir.Value], model: ir.Model) -> None:
    """Set inferred types and shapes on some tensors of a model; recorded ones complete them, as the model may have
    changed since they were recorded."""
    edges = list(edges)
    if not edges:
        return
    with known_shapes(model):
        inferred = {value: (value.shape, value.type) for value in edges}
    for value, (shape, type_) in inferred.items():
        value.type = type_ or value.type
        value.shape = more_exact(shape, value.shape)  # a new object: shapes that an operation sets are valid


def more_exact(inferred: ir.Shape | None, recorded: ir.Shape | None) -> ir.Shape | None:
    """Return inferred dimensions, or else the recorded ones."""
    if inferred is None:
        return None if recorded is None else recorded.copy()
    if recorded is None or len(recorded) != len(inferred):
        return ir.Shape([None if is_invented_name(dim) else dim for dim in inferred])
    return ir.Shape([dim if isinstance(dim, int) else known for dim, known in zip(inferred, recorded, strict=True)])


def _check_known(edges: Iterable[ir.Value]) -> None:
    # sequences and optionals have no shape
    unknown = [v for v in edges if v.type is None or (isinstance(v.type, ir.TensorType) and v.shape is None)]
    if unknown:
        first = unknown[0]
        word = "float32" if first.type is None else dtype_name(first.type.dtype)
        what = "the dtype" if first.type is None else "the number of dimensions"
        raise RequestError(
            f"{what} of {first.name!r} is not recorded in the model and cannot be inferred; "
            f'give it: `types: {{"{first.name}": "{word}[1, ?, 8]"}}`'
            + (f" (likewise for {', '.join(repr(value.name) for value in unknown[1:])})" if unknown[1:] else "")
        )


def types_by_signatures(model: ir.Model) -> Types:
    """Return types from operators' signatures; none in a model with local functions."""
    try:
        return {} if model.functions else infer_types(model)
    except ModelError:
        return {}
