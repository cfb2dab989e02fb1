"""Infer all shapes again."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ndld_flow.graph.edit.operation import Operation

if TYPE_CHECKING:
    from ndld_flow.graph.edit.edited_model import EditedModel


class InferShapes(Operation):
    """Discard the recorded shapes and infer the shape and type of every tensor again.

    Static dimensions are written as numbers, dynamic ones by name. Shapes of custom operators' outputs are kept.

        infer_shapes: {strict: true}
    """

    heading = "shapes"
    keeps_outputs = True

    strict: bool = False
    """Refuse a model with inconsistent shapes; by default nodes whose shapes cannot be inferred are skipped."""

    def apply(self, edited: EditedModel) -> str:
        from ndld_flow.graph.edit.interface import infer_all

        return infer_all(edited, self.strict)
