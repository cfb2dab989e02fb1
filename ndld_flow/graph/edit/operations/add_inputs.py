"""Add inputs, which nothing reads until it is told to."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from pydantic import Field

from ndld_flow.graph.edit.declaration import TensorDeclaration
from ndld_flow.graph.edit.operation import Operation

if TYPE_CHECKING:
    from ndld_flow.graph.edit.edited_model import EditedModel


class AddInputs(Operation):
    """Add inputs, which nothing reads until it is told to.

    add_inputs: {inputs: {mask: {dtype: bool, shape: [batch, 1]}}}
    """

    about = "inputs and outputs"
    keeps_outputs = True

    inputs: dict[Annotated[str, Field(min_length=1)], TensorDeclaration] = Field(min_length=1)
    """Name -> its type and shape; they come after the inputs there are."""

    def apply(self, edited: EditedModel) -> str:
        from ndld_flow.graph.edit.interface import Declared, add_input

        for name, declared in self.inputs.items():
            add_input(edited, name, Declared(declared.dtype, declared.shape))
        return f"inputs added: {', '.join(self.inputs)}"
