"""Infer all shapes again."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ndld_flow.base.errors import ModelError
from ndld_flow.graph.edit.operation import Operation

if TYPE_CHECKING:
    from ndld_flow.graph.edit.edited_model import EditedModel


class InferShapes(Operation):
    """Discard the recorded shapes and infer the shape and type of every tensor again.

    Static dimensions are written as numbers, dynamic ones by name or formula (`2*seq + 1`). Outputs of ONNX Runtime's
    operators and of common TensorRT plugins are inferred too; recorded shapes of other custom operators' outputs are
    kept.

        infer_shapes: {strict: true}
    """

    heading = "shapes"
    keeps_outputs = True

    strict: bool = False
    """Reject a model with inconsistent shapes; by default nodes whose shapes cannot be inferred are skipped."""

    def apply(self, edited: EditedModel) -> str:
        from ndld_flow.graph.edit.interface import Snapshot, discard_shapes
        from ndld_flow.models.input_shapes import drop_all_invented_names
        from ndld_flow.models.shape_inference import infer_shapes
        from ndld_flow.models.symbolic_dims import name_computed_dims

        model = edited.model
        snapshot = Snapshot(model)
        discard_shapes(model)
        try:
            infer_shapes(model, self.strict)
        except ModelError:
            snapshot.restore()
            raise
        edited.bare.clear()
        drop_all_invented_names(model)
        name_computed_dims(model)
        snapshot.fill_open_outputs(model)
        values = [value for graph in edited.graphs() for node in graph for value in node.outputs]
        known = sum(value.type is not None and value.shape is not None for value in values)
        return f"{known} of {len(values)} tensors have a type and a shape"
