"""Make an edited model whole again: names, order, shapes."""

from __future__ import annotations

from collections.abc import Mapping

import onnx_ir as ir

from ndld_flow.backends.editing.stale_shapes import NotedShapes
from ndld_flow.backends.models.input_shapes import drop_all_made_up_names
from ndld_flow.backends.models.shape_inference import infer_shapes
from ndld_flow.errors import ModelError


def finish_model(model: ir.Model, noted: NotedShapes) -> list[str]:
    """Sort the model, forget shapes that may no longer hold, infer them anew. Returns what people should know.

    Raises `ModelError` when nodes depend on each other in a circle.
    """
    try:
        model.graph.sort()
        for function in model.functions.values():
            function.sort()
    except ValueError:
        raise ModelError(
            "the operations leave nodes that depend on each other in a circle: look where tensors were connected"
        ) from None
    declared = {value: value.shape for value in model.graph.outputs}
    stale = noted.forget_stale(model)
    infer_shapes(model)
    drop_all_made_up_names(model)
    return _declare_outputs(model, declared, stale)


def _declare_outputs(
    model: ir.Model, declared: Mapping[ir.Value, ir.Shape | None], stale: set[ir.Value]
) -> list[str]:
    """ONNX wants a shape on every output: where none could be inferred, as many open dimensions as there were."""
    notes = []
    for value in model.graph.outputs:
        shape = declared[value]
        if value in stale and value.shape is None and shape is not None:
            value.shape = ir.Shape([None] * len(shape))
            notes.append(f"output {value.name}: its shape could not be inferred; it is left open")
    return notes


