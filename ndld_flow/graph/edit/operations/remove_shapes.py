"""Remove shapes and types of intermediate tensors."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ndld_flow.graph.edit.operation import Operation

if TYPE_CHECKING:
    from ndld_flow.graph.edit.edited_model import EditedModel


class RemoveShapes(Operation):
    """Remove the shapes and types of intermediate tensors from the model, subgraphs included.

    Inputs and outputs keep theirs, and so do tensors that later operations add. `infer_shapes` reverses it.

        remove_shapes: {}
    """

    heading = "shapes"
    keeps_outputs = True

    def apply(self, edited: EditedModel) -> str:
        from ndld_flow.graph.edit.interface import discard_shapes

        values = discard_shapes(edited.model)
        edited.bare.update(values)
        return f"{len(values)} tensors are written without shape and type"
