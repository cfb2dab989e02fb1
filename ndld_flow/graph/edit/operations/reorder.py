"""Reorder inputs and outputs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Self

from pydantic import model_validator

from ndld_flow.graph.edit.operation import Operation

if TYPE_CHECKING:
    from ndld_flow.graph.edit.edited_model import EditedModel


class Reorder(Operation):
    """Reorder the inputs and outputs of the model.

    reorder: {inputs: [mask, x, "*"], outputs: [boxes, scores]}
    """

    heading = "inputs and outputs"
    keeps_outputs = True

    inputs: tuple[str, ...] = ()
    """Inputs in the new order; `*` means all that are not listed, in their present order."""
    outputs: tuple[str, ...] = ()
    """Outputs in the new order, in the same way."""

    @model_validator(mode="after")
    def _check_something(self) -> Self:
        if not self.inputs and not self.outputs:
            raise ValueError("give the order of `inputs`, `outputs`, or both")
        return self

    def apply(self, edited: EditedModel) -> str:
        from ndld_flow.graph.edit.interface import reorder

        graph, changes = edited.model.graph, []
        for kind, values, order in (("input", graph.inputs, self.inputs), ("output", graph.outputs, self.outputs)):
            if order:
                reorder(values, order, kind)
                changes.append(f"{kind}s are now {', '.join(str(value.name) for value in values)}")
        return "; ".join(changes)
