"""Inputs and outputs as a model declares them."""

from __future__ import annotations

from pathlib import Path

import onnx_ir as ir

from ndld_flow.models.files import load_model, load_without_nodes
from ndld_flow.models.tensor_statistics import dtype_name
from ndld_flow.models.tensors import TensorSpec


def model_inputs(path: Path) -> tuple[TensorSpec, ...]:
    """Return the inputs that a model declares and has no initializer for; weights are not read.

    Raises `ModelError` if the file cannot be read as ONNX.
    """
    graph = load_without_nodes(path).graph
    return tuple(_declared(value) for value in graph.inputs if value.name not in graph.initializers)


def model_outputs(path: Path) -> tuple[TensorSpec, ...]:
    """Return the outputs that a model declares; weights are not read.

    Raises `ModelError` if the file cannot be read as ONNX.
    """
    return tuple(_declared(value) for value in load_model(path).graph.outputs)


def _declared(value: ir.Value) -> TensorSpec:
    if not isinstance(value.type, ir.TensorType):
        return TensorSpec(str(value.name), str(value.type), None)
    shape = None if value.shape is None else tuple(_dimension(dim) for dim in value.shape)
    return TensorSpec(str(value.name), dtype_name(value.type.dtype), shape)


def _dimension(dim: int | ir.SymbolicDim) -> int | str | None:
    """Return a dimension; -1, which old exporters write, is a free one as in ONNX Runtime."""
    if isinstance(dim, int):
        return dim if dim >= 0 else None
    return dim.value
