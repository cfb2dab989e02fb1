"""Add inputs to the model."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pydantic import Field

from ndld_flow.graph.edit.operation import Operation
from ndld_flow.graph.edit.settings import NewName, TensorDeclaration

if TYPE_CHECKING:
    from ndld_flow.graph.edit.edited_model import EditedModel


class AddInputs(Operation):
    """Add inputs, which operations that follow can connect.

    add_inputs: {inputs: {mask: {dtype: bool, shape: [batch, 1]}}}
    """

    heading = "inputs and outputs"
    keeps_outputs = True

    inputs: dict[NewName, TensorDeclaration] = Field(min_length=1)
    """Name -> type and shape. New inputs are appended to the existing ones."""

    def apply(self, edited: EditedModel) -> str:
        from ndld_flow.graph.edit.interface import Declared, add_input

        for name, declared in self.inputs.items():
            add_input(edited, name, Declared(declared.dtype, declared.shape))
        return f"inputs added: {', '.join(self.inputs)}"
