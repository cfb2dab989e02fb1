"""Names of dimensions of two models that are joined: equal names mean equal dimensions, which must not be assumed."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

import onnx_ir as ir

from ndld_flow.graph.edit.edited_model import values_of
from ndld_flow.models.files import all_graphs
from ndld_flow.models.unique_names import free_name

_WORD = re.compile(r"[A-Za-z_]\w*")


def join_dims(model: ir.Model, guest: ir.Model, connect: Mapping[ir.Value, ir.Value], prefix: str) -> None:
    """Rename a guest's dimensions to those of the model that they equal; other names that the model uses get `prefix`.

    `connect`: the guest's tensor -> the model's that it will be one with.
    """
    bound: dict[str, int | str | None] = {}
    for theirs, ours in connect.items():
        for dim, known in zip(theirs.shape or (), ours.shape or (), strict=False):
            name, found = _name(dim), known if isinstance(known, int) else _name(known)
            if name and found:
                bound.setdefault(name, found)
    taken = {name for value in _values(model) for dim in value.shape or () if (name := _name(dim))}
    for name in dict.fromkeys(name for value in _values(guest) for dim in value.shape or () if (name := _name(dim))):
        if name not in bound and name in taken:
            bound[name] = free_name(f"{prefix}{name}", taken)
    changed = {name: dim for name, dim in bound.items() if name != dim}
    for value in _values(guest):
        if value.shape is not None and any(_touches(dim, changed) for dim in value.shape):
            value.shape = ir.Shape([_joined(dim, changed) for dim in value.shape])


def _values(model: ir.Model) -> Iterator[ir.Value]:
    for graph in all_graphs(model):
        yield from values_of(graph)


def _name(dim: object) -> str:
    return (dim.value or "") if isinstance(dim, ir.SymbolicDim) else ""


def _touches(dim: object, changed: Mapping[str, object]) -> bool:
    name = _name(dim)
    return name in changed or any(word in changed for word in _WORD.findall(name))


def _joined(dim: int | ir.SymbolicDim, changed: Mapping[str, int | str | None]) -> int | str | ir.SymbolicDim | None:
    if not _touches(dim, changed):
        return dim
    return changed.get(_name(dim))  # an expression of changed names is left open: inference finds it again
