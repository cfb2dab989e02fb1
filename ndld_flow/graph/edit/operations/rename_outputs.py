"""Rename outputs of the model."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from pydantic import Field

from ndld_flow.graph.edit.operation import Operation

if TYPE_CHECKING:
    from ndld_flow.graph.edit.edited_model import EditedModel


class RenameOutputs(Operation):
    """Rename outputs of the model.

    rename_outputs: {names: {sigmoid_0.tmp_0: map}}
    """

    about = "inputs and outputs"

    names: dict[str, Annotated[str, Field(min_length=1)]] = Field(min_length=1)
    """Old name -> new one, all at once: two may change names."""

    def apply(self, edited: EditedModel) -> str:
        from ndld_flow.graph.edit.interface import rename

        rename(edited, edited.model.graph.outputs, self.names, "output")
        return f"outputs renamed: {', '.join(f'{old} -> {new}' for old, new in self.names.items())}"
