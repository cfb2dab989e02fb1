"""Completion of an edited model: names, order, shapes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import onnx_ir as ir

from ndld_flow.base.errors import ModelError
from ndld_flow.graph.edit.stale_shapes import NotedShapes
from ndld_flow.models.input_shapes import drop_all_invented_names
from ndld_flow.models.scopes import own_subgraphs
from ndld_flow.models.shape_inference import infer_shapes

Dim = int | ir.SymbolicDim | None


def settle_model(model: ir.Model, noted: NotedShapes) -> NotedShapes:
    """Remove invalid shapes before the next operation; returns the shapes that are recorded then.

    The model must be sorted.
    """
    touched = noted.touched(model)
    if not touched:
        return noted
    _infer_again(model, noted, touched)
    return NotedShapes(model)


def finish_model(model: ir.Model, noted: NotedShapes) -> list[str]:
    """Sort the model, remove shapes that may be invalid, and infer them again. Returns notes for the record.

    Raises `ModelError` when nodes depend on each other in a cycle, and when a model with nodes has no output left.
    """
    sort_model(model)
    if len(model.graph) and not model.graph.outputs:
        raise ModelError("the operations leave a model without outputs: make some with `add_outputs`")
    return _infer_again(model, noted, noted.touched(model))


def sort_model(model: ir.Model) -> None:
    """Put nodes after the producers of their inputs. Raises `ModelError` when they depend on each other in a cycle.

    Nodes that are in order stay as they are.
    """
    try:
        for graph in (model.graph, *(function.graph for function in model.functions.values())):
            if not _is_sorted(graph, set()):
                graph.sort()
    except ValueError:
        raise ModelError("nodes depend on each other in a cycle") from None


def _is_sorted(graph: ir.Graph, before: set[ir.Node]) -> bool:
    for node in graph:
        if not all(value is None or _is_made(value, before) for value in node.inputs):
            return False
        if not all(_is_sorted(body, before) for _, body in own_subgraphs(node)):
            return False
        before.add(node)
    return all(_is_made(value, before) for value in graph.outputs)


def _is_made(value: ir.Value, before: set[ir.Node]) -> bool:
    producer = value.producer()
    return producer is None or producer in before


def _infer_again(model: ir.Model, noted: NotedShapes, touched: set[ir.Value]) -> list[str]:
    declared = {value: _believed(value.shape, noted) for value in model.graph.outputs if value.shape is not None}
    stale = noted.forget_stale(touched, model)
    infer_shapes(model)
    drop_all_invented_names(model)
    return [note for value, dims in declared.items() if value in stale for note in _declare(value, dims)]


def _believed(shape: ir.Shape, noted: NotedShapes) -> list[Dim]:
    """Return the declared facts that still hold for an output: names always, numbers only where it is unchanged."""
    return [dim if noted.outputs_hold or not isinstance(dim, int) else None for dim in shape]


def _declare(value: ir.Value, dims: Sequence[Dim]) -> Iterator[str]:
    """Give outputs without an inferred shape as many unknown dimensions as they had; ONNX requires a shape."""
    if value.shape is None:
        value.shape = ir.Shape(dims)
        if None in dims:
            yield f"output {value.name}: its shape could not be inferred; it is left open"
    elif len(value.shape) == len(dims):
        value.shape = ir.Shape([_known(found, dim) for found, dim in zip(value.shape, dims, strict=True)])


def _known(found: int | ir.SymbolicDim, dim: Dim) -> Dim:
    return dim if isinstance(found, ir.SymbolicDim) and found.value is None else found
