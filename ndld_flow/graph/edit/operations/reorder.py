"""Reorder inputs and outputs."""

from __future__ import annotations

from collections.abc import MutableSequence, Sequence
from typing import TYPE_CHECKING, Self

from pydantic import model_validator

from ndld_flow.base.errors import RequestError
from ndld_flow.base.text import short_name, suggest
from ndld_flow.graph.edit.operation import Operation

if TYPE_CHECKING:
    import onnx_ir as ir

    from ndld_flow.graph.edit.edited_model import EditedModel


class Reorder(Operation):
    """Reorder the inputs and outputs of the model.

    reorder: {inputs: [mask, x, "*"], outputs: [boxes, scores]}
    """

    heading = "inputs and outputs"
    keeps_outputs = True

    inputs: tuple[str, ...] = ()
    """Inputs in the new order; `*` means all that are not listed, in their current order."""
    outputs: tuple[str, ...] = ()
    """Outputs in the new order, in the same way."""

    @model_validator(mode="after")
    def _check_something(self) -> Self:
        if not self.inputs and not self.outputs:
            raise ValueError("give the order of `inputs`, `outputs`, or both")
        return self

    def apply(self, edited: EditedModel) -> str:
        graph, changes = edited.model.graph, []
        for kind, values, order in (("input", graph.inputs, self.inputs), ("output", graph.outputs, self.outputs)):
            if order:
                _reorder(values, order, kind)
                changes.append(f"{kind}s are now {', '.join(str(value.name) for value in values)}")
        return "; ".join(changes)


_REST = "*"
"""In an order: all that are not listed, in their current order."""


def _reorder(values: MutableSequence[ir.Value], order: Sequence[str], what: str) -> None:
    """Reorder inputs or outputs by name; `*` means all others.

    Raises `RequestError` for an unknown name, for one that is listed twice, and for one that is missing without `*`.
    """
    known = {value.name or "": value for value in values}
    for name in order:
        if name != _REST and name not in known:
            raise RequestError(f"the model has no {what} {short_name(name)!r}; {suggest(name, known)}")
        if order.count(name) > 1:
            raise RequestError(f"{name!r} is listed twice in the order")
    if len(known) < len(values):
        raise RequestError(f"one {what} of the model is listed twice; remove it first")
    rest = [value for name, value in known.items() if name not in order]
    if rest and _REST not in order:
        left = ", ".join(short_name(value.name or "") for value in rest)
        raise RequestError(f"the order does not list {left}; `*` means all others")
    sorted_values = [value for name in order for value in (rest if name == _REST else [known[name]])]
    values[:] = sorted_values
