"""Add inputs to the model."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pydantic import Field

from ndld_flow.base.errors import RequestError
from ndld_flow.base.text import short_name
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
        import onnx_ir as ir

        from ndld_flow.graph.edit.interface import Declared

        for name, setting in self.inputs.items():
            _refuse_taken(edited, name)
            declared = Declared(setting.dtype, setting.shape)
            edited.model.graph.inputs.append(ir.Value(name=name, type=declared.type, shape=declared.dims))
        return f"inputs added: {', '.join(self.inputs)}"


def _refuse_taken(edited: EditedModel, name: str) -> None:
    """Raise `RequestError` if a tensor of any graph has this name."""
    from ndld_flow.graph.edit.names import values_of

    for address, graph in edited.scopes().items():
        if any(value.name == name for value in values_of(graph)):
            where = f" in {short_name(address)}" if address else ""
            raise RequestError(f"there is already a tensor {short_name(name)!r}{where}; choose another name")
