"""Write no shapes and types of computed tensors into the model."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ndld_flow.graph.edit.operation import Operation

if TYPE_CHECKING:
    from ndld_flow.graph.edit.edited_model import EditedModel


class DropShapes(Operation):
    """Write no shapes and types of computed tensors into the model, subgraphs included.

    Inputs and outputs keep theirs, and so does what is made after this operation. `infer_shapes` takes it back.

        drop_shapes: {}
    """

    about = "shapes"
    keeps_outputs = True

    def apply(self, edited: EditedModel) -> str:
        from ndld_flow.graph.edit.dimensions import drop_shapes

        return f"{drop_shapes(edited)} tensors are written without shape and type"
