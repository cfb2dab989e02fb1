"""The IR version, and the minimum for each feature."""

from __future__ import annotations

import onnx_ir as ir

from ndld_flow.base.errors import RequestError
from ndld_flow.graph.edit.edited_model import EditedModel
from ndld_flow.models.files import MAX_IR_VERSION, all_graphs
from ndld_flow.models.scopes import scopes_of

_OLDEST = 3
"""The oldest supported version; earlier ones have no opset imports."""
FIRST_WITH_FREE_INITIALIZERS = 4
"""The first version in which an initializer need not be an input."""
_FUNCTIONS = 8
_METADATA = 10


def set_ir_version(edited: EditedModel, version: int) -> str:
    """Set the version and return a summary. Raises `RequestError` for a version that cannot hold the model."""
    model = edited.model
    if not _OLDEST <= version <= MAX_IR_VERSION:
        raise RequestError(f"there is no IR version {version} to set: {_OLDEST} to {MAX_IR_VERSION} can be run")
    if version < _FUNCTIONS and model.functions:
        raise RequestError(f"local functions came with IR version {_FUNCTIONS}; inline them first")
    before, model.ir_version = model.ir_version, version
    done = f"IR version {before} -> {version}"
    if version < FIRST_WITH_FREE_INITIALIZERS:
        return f"{done}; {_make_inputs(model)} initializers are inputs too"
    if version < _METADATA and any(node.metadata_props for graph in all_graphs(model) for node in graph):
        edited.note(f"nodes have metadata, which came with IR version {_METADATA}: older readers pass over it")
    return done


def raise_ir_version(edited: EditedModel, least: int) -> None:
    """Raise the model's IR version to a minimum, with a note."""
    if (edited.model.ir_version or 0) < least:
        edited.note(f"IR version {edited.model.ir_version} -> {least}: the first that can hold this")
        edited.model.ir_version = least


def _make_inputs(model: ir.Model) -> int:
    """Make every initializer an input, which is impossible in a subgraph, whose node provides the inputs."""
    for address, graph in scopes_of(model).items():
        if address and graph.initializers:
            raise RequestError(f"{address} has initializers, which IR version 3 only knows in the main graph")
    inputs = set(model.graph.inputs)
    missing = [value for value in model.graph.initializers.values() if value not in inputs]
    for value in missing:
        tensor = value.const_value
        if tensor is not None:
            value.type, value.shape = ir.TensorType(tensor.dtype), ir.Shape(tensor.shape.numpy())
    model.graph.inputs.extend(missing)
    return len(missing)
