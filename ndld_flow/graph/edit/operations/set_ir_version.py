"""Set the IR version of the model."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pydantic import Field

from ndld_flow.base.errors import RequestError
from ndld_flow.graph.edit.operation import Operation

if TYPE_CHECKING:
    import onnx_ir as ir

    from ndld_flow.graph.edit.edited_model import EditedModel

_OLDEST = 3
"""The oldest supported version; earlier ones have no opset imports."""
_FUNCTIONS = 8
_METADATA = 10


class SetIrVersion(Operation):
    """Set the IR version, which is the version of the file format.

    Before version 4 every initializer of the main graph must be an input too, and becomes one.

        set_ir_version: {to: 10}
    """

    heading = "model"
    keeps_outputs = True

    to: int = Field(ge=_OLDEST)
    """3 to the newest that ONNX Runtime loads."""

    def apply(self, edited: EditedModel) -> str:
        from ndld_flow.graph.edit.edited_model import FIRST_WITH_FREE_INITIALIZERS
        from ndld_flow.models.files import MAX_IR_VERSION

        model, version = edited.model, self.to
        if version > MAX_IR_VERSION:
            raise RequestError(f"there is no IR version {version} to set: {_OLDEST} to {MAX_IR_VERSION} can be run")
        if version < _FUNCTIONS and model.functions:
            raise RequestError(f"local functions came with IR version {_FUNCTIONS}; inline them first")
        before, model.ir_version = model.ir_version, version
        summary = f"IR version {before} -> {version}"
        if version < FIRST_WITH_FREE_INITIALIZERS:
            return f"{summary}; {_make_inputs(model)} initializers are inputs too"
        if version < _METADATA and any(node.metadata_props for graph in edited.graphs() for node in graph):
            edited.note(f"nodes have metadata, which came with IR version {_METADATA}: older readers ignore it")
        return summary


def _make_inputs(model: ir.Model) -> int:
    """Make every initializer an input, which is impossible in a subgraph, whose node provides the inputs."""
    import onnx_ir as ir

    from ndld_flow.models.scopes import scopes_of

    for address, graph in scopes_of(model).items():
        if address and graph.initializers:
            raise RequestError(f"{address} has initializers, which IR version 3 allows only in the main graph")
    inputs = set(model.graph.inputs)
    missing = [value for value in model.graph.initializers.values() if value not in inputs]
    for value in missing:
        tensor = value.const_value
        if tensor is not None:
            value.type, value.shape = ir.TensorType(tensor.dtype), ir.Shape(tensor.shape.numpy())
    model.graph.inputs.extend(missing)
    return len(missing)
