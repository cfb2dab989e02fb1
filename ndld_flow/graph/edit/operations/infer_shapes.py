"""Forget the shapes noted in the model and infer them anew, on every edge."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ndld_flow.graph.edit.operation import Operation

if TYPE_CHECKING:
    from ndld_flow.graph.edit.edited_model import EditedModel


class InferShapes(Operation):
    """Forget the shapes noted in the model and infer them anew, on every edge.

    Known sizes are written as numbers, others by their dimension's name; what custom operators make is kept.

        infer_shapes: {strict: true}
    """

    about = "shapes"
    keeps_outputs = True

    strict: bool = False
    """Refuse a model that contradicts itself; otherwise nodes that cannot be inferred are passed over."""

    def apply(self, edited: EditedModel) -> str:
        from ndld_flow.graph.edit.dimensions import infer_all

        return infer_all(edited, self.strict)
