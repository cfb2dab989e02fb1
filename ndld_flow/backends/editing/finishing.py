"""Make an edited model whole again: names, order, shapes."""

from __future__ import annotations

from collections.abc import Mapping

import onnx_ir as ir

from ndld_flow.backends.editing.stale_shapes import NotedShapes
from ndld_flow.backends.models.input_shapes import drop_all_made_up_names
from ndld_flow.backends.models.shape_inference import infer_shapes
from ndld_flow.errors import ModelError


def settle_model(model: ir.Model, noted: NotedShapes) -> None:
    """What the next operation may rely on: nodes in order, and no shape that no longer holds.

    Raises `ModelError` as `finish_model` does.
    """
    _sort(model)
    if noted.touched(model):
        finish_model(model, noted)


def finish_model(model: ir.Model, noted: NotedShapes) -> list[str]:
    """Sort the model, forget shapes that may no longer hold, infer them anew. Returns what people should know.

    Raises `ModelError` when nodes depend on each other in a circle.
    """
    _sort(model)
    declared = {value: value.shape for value in model.graph.outputs}
    stale = noted.forget_stale(model)
    infer_shapes(model)
    drop_all_made_up_names(model)
    return _declare_outputs(declared, stale)


def _sort(model: ir.Model) -> None:
    try:
        model.graph.sort()
        for function in model.functions.values():
            function.sort()
    except ValueError:
        raise ModelError(
            "the operations leave nodes that depend on each other in a circle: look where tensors were connected"
        ) from None


def _declare_outputs(declared: Mapping[ir.Value, ir.Shape | None], stale: set[ir.Value]) -> list[str]:
    """ONNX wants a shape on every output: where none could be inferred, as many open dimensions as there were.

    Names of dimensions stay where nothing is known that says otherwise.
    """
    notes = []
    for value, shape in declared.items():
        if value not in stale or shape is None:
            continue
        names = [None if isinstance(dim, int) else dim for dim in shape]
        if value.shape is None:
            value.shape = ir.Shape(names)
            notes.append(f"output {value.name}: its shape could not be inferred; it is left open")
        elif len(value.shape) == len(names):
            value.shape = ir.Shape([_known(dim, name) for dim, name in zip(value.shape, names, strict=True)])
    return notes


def _known(dim: int | ir.SymbolicDim, name: ir.SymbolicDim | None) -> int | ir.SymbolicDim | None:
    return name if isinstance(dim, ir.SymbolicDim) and dim.value is None else dim
