"""Types and shapes of new inputs and outputs: given, recorded, or inferred."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

import onnx_ir as ir

from ndld_flow.base.errors import ModelError, RequestError
from ndld_flow.base.text import suggest
from ndld_flow.graph.edit.graph_edits import known_shapes
from ndld_flow.graph.edit.value_grammar import parse_dtype
from ndld_flow.models.element_types import Types, dtype_of, infer_types
from ndld_flow.models.shape_inference import is_invented_name
from ndld_flow.models.tensor_statistics import dtype_name

_TYPE = re.compile(r"\s*([A-Za-z0-9_]+)\s*\[([^\[\]]*)\]\s*")


def parse_tensor_type(text: str) -> tuple[ir.TensorType, ir.Shape]:
    """Parse `float32[1, 3, H, ?]`: numbers, names, `?` for an unknown dimension; `int64[]` is a scalar.

    Raises `RequestError`.
    """
    match = _TYPE.fullmatch(text)
    if match is None:
        raise RequestError(f"{text!r} is no tensor type: write a dtype and a shape, such as `float32[1, 3, H, ?]`")
    words = [word.strip() for word in match[2].split(",")] if match[2].strip() else []
    dims = [None if word == "?" else int(word) if word.isascii() and word.isdigit() else word for word in words]
    return ir.TensorType(parse_dtype(match[1])), ir.Shape(dims)


def type_edges(model: ir.Model, edges: Iterable[ir.Value], given: Mapping[str, str], where: str = "types") -> None:
    """Set type and shape of tensors that become inputs or outputs: as given, as inferred, or as recorded.

    Raises `RequestError` for a given name that is none of them, and for a tensor of which neither is known.
    """
    edges = list(edges)
    known = {value.name or "" for value in edges}
    for name in given:
        if name not in known:
            raise RequestError(f"`{where}`: {name!r} becomes neither input nor output; {suggest(name, known)}")
    for value in edges:
        if value.name in given:
            value.type, value.shape = parse_tensor_type(given[value.name or ""])
    infer_edges([value for value in edges if value.name not in given], model)
    _add_dtypes(model, edges)
    _check_known(edges, where)


def infer_edges(edges: Iterable[ir.Value], model: ir.Model) -> None:
    """Set inferred types and shapes on some tensors of a model; recorded ones complete them, as the model may have
    changed since they were recorded."""
    with known_shapes(model):
        inferred = {value: (value.shape, value.type) for value in edges}
    for value, (shape, type_) in inferred.items():
        value.type = type_ or value.type
        value.shape = _more_exact(shape, value.shape)  # a new object: shapes that an operation sets are valid


def _more_exact(inferred: ir.Shape | None, recorded: ir.Shape | None) -> ir.Shape | None:
    """Return inferred dimensions, or else the recorded ones."""
    if inferred is None:
        return None if recorded is None else recorded.copy()
    if recorded is None or len(recorded) != len(inferred):
        return ir.Shape([None if is_invented_name(dim) else dim for dim in inferred])
    return ir.Shape([dim if isinstance(dim, int) else known for dim, known in zip(inferred, recorded, strict=True)])


def _add_dtypes(model: ir.Model, edges: Iterable[ir.Value]) -> None:
    """Set types from operators' signatures, where shape inference stops."""
    untyped = [value for value in edges if value.type is None]
    types = types_by_signatures(model) if untyped else {}
    for value in untyped:
        if types.get(value, "").startswith("tensor("):
            value.type = ir.TensorType(dtype_of(types[value]))


def _check_known(edges: Iterable[ir.Value], where: str) -> None:
    # sequences and optionals have no shape
    unknown = [v for v in edges if v.type is None or (isinstance(v.type, ir.TensorType) and v.shape is None)]
    if unknown:
        first = unknown[0]
        word = "float32" if first.type is None else dtype_name(first.type.dtype)
        what = "the dtype" if first.type is None else "the number of dimensions"
        raise RequestError(
            f"{what} of {first.name!r} is not noted in the model and cannot be inferred; "
            f'give it: `{where}: {{"{first.name}": "{word}[1, ?, 8]"}}`'
            + (f" (so for {', '.join(repr(value.name) for value in unknown[1:])})" if unknown[1:] else "")
        )


def types_by_signatures(model: ir.Model) -> Types:
    """Return types from operators' signatures; none in a model with local functions."""
    try:
        return {} if model.functions else infer_types(model)
    except ModelError:
        return {}
