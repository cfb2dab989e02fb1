"""Dtype and shape of tensors at the edge of a model: as people write them, as noted, as they can be inferred."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

import onnx_ir as ir

from ndld_flow.backends.editing.dtype_words import dtype_of_word, word_of_dtype
from ndld_flow.backends.models.element_types import Types, dtype_of, infer_types
from ndld_flow.backends.models.input_shapes import drop_all_made_up_names
from ndld_flow.backends.models.shape_inference import infer_shapes
from ndld_flow.errors import ModelError, RequestError
from ndld_flow.nearest import say_nearest

_TYPE = re.compile(r"\s*([A-Za-z0-9_]+)\s*\[([^\[\]]*)\]\s*")


def parse_tensor_type(text: str) -> tuple[ir.TensorType, ir.Shape]:
    """`float32[1, 3, H, ?]`: numbers, names, `?` for a dimension that is not known; `int64[]` is a scalar.

    Raises `RequestError`.
    """
    found = _TYPE.fullmatch(text)
    if found is None:
        raise RequestError(f"{text!r} is no tensor type: write a dtype and a shape, such as `float32[1, 3, H, ?]`")
    dims = [dim.strip() for dim in found[2].split(",")] if found[2].strip() else []
    return ir.TensorType(dtype_of_word(found[1])), ir.Shape([_dim(dim) for dim in dims])


def type_edges(model: ir.Model, edges: Iterable[ir.Value], given: Mapping[str, str], where: str = "types") -> None:
    """Write dtype and shape on tensors that become inputs or outputs: as given, as noted, or as they can be inferred.

    Raises `RequestError` for a given name that is none of them, and for a tensor of which neither is known.
    """
    edges = list(edges)
    known = {value.name or "" for value in edges}
    for name in given:
        if name not in known:
            raise RequestError(f"`{where}`: {name!r} becomes neither input nor output; {say_nearest(name, known)}")
    for value in edges:
        if value.name in given:
            value.type, value.shape = parse_tensor_type(given[value.name or ""])
    if any(map(_is_open, edges)):
        infer_shapes(model)
        drop_all_made_up_names(model)
    _add_dtypes(model, edges)
    _check_known(edges, where)


def _add_dtypes(model: ir.Model, edges: Iterable[ir.Value]) -> None:
    """What operators' signatures tell where shape inference stops."""
    untyped = [value for value in edges if value.type is None]
    types = types_by_signatures(model) if untyped else {}
    for value in untyped:
        if types.get(value, "").startswith("tensor("):
            value.type = ir.TensorType(dtype_of(types[value]))


def _check_known(edges: Iterable[ir.Value], where: str) -> None:
    unknown = [value for value in edges if _is_open(value)]
    if unknown:
        first = unknown[0]
        word = "float32" if first.type is None else word_of_dtype(first.type.dtype)
        what = "the dtype" if first.type is None else "the number of dimensions"
        raise RequestError(
            f"{what} of {first.name!r} is not noted in the model and cannot be inferred; "
            f'give it: `{where}: {{"{first.name}": "{word}[1, ?, 8]"}}`'
            + (f" (so for {', '.join(repr(value.name) for value in unknown[1:])})" if unknown[1:] else "")
        )


def _is_open(value: ir.Value) -> bool:
    """ONNX wants a shape on every tensor at the edge; sequences and optionals need none."""
    return value.type is None or (isinstance(value.type, ir.TensorType) and value.shape is None)


def types_by_signatures(model: ir.Model) -> Types:
    """Types as far as operators' signatures tell them; none in a model with local functions."""
    try:
        return {} if model.functions else infer_types(model)
    except ModelError:
        return {}


def _dim(text: str) -> int | str | None:
    if text == "?":
        return None
    return int(text) if text.isascii() and text.isdigit() else text
