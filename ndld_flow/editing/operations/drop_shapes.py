"""Forget the shapes and types noted of computed tensors, wrong ones for example."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ndld_flow.editing.operation import Operation

if TYPE_CHECKING:
    from ndld_flow.backends.editing.edited_model import EditedModel


class DropShapes(Operation):
    """Forget the shapes and types noted of computed tensors, wrong ones for example.

    Inputs and outputs keep theirs. What follows from those is inferred again at the end of the list.

        drop_shapes: {}
    """

    about = "shapes"

    def apply(self, edited: EditedModel) -> str:
        from ndld_flow.backends.editing.dimensions import drop_shapes

        return f"{drop_shapes(edited.model)} shapes dropped"
