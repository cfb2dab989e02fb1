"""Turn initializers into Constant nodes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ndld_flow.base.errors import RequestError
from ndld_flow.graph.edit.operation import Operation
from ndld_flow.graph.edit.settings import SelectTensors

if TYPE_CHECKING:
    from ndld_flow.graph.edit.constant_tensors import ConstantTensor
    from ndld_flow.graph.edit.edited_model import EditedModel


class InitializersToConstants(Operation):
    """Turn initializers into Constant nodes whose outputs have the same names.

        initializers_to_constants: {select: {smaller_than: 1 KiB}}

    Initializers in data files are refused.
    """

    heading = "weight storage"
    keeps_outputs = True

    select: SelectTensors
    """Initializers to turn."""
    allow_empty: bool = False
    """Succeed when nothing is selected."""

    def apply(self, edited: EditedModel) -> str:
        import onnx_ir as ir

        from ndld_flow.graph.edit.constant_tensors import put_constant, select_initializers

        initializers = select_initializers(edited.model, self.select, self.allow_empty)
        for initializer in initializers:
            _check(initializer)
        for initializer in initializers:
            value, tensor = initializer.value, initializer.tensor
            output = ir.Value(name=value.name, type=ir.TensorType(tensor.dtype), shape=value.shape)
            del initializer.graph.initializers[initializer.name]
            value.replace_all_uses_with(output, replace_graph_outputs=True)
            put_constant(initializer.graph, output, tensor)
        return f"{len(initializers)} initializers turned into Constant nodes"


def _check(initializer: ConstantTensor) -> None:
    """Raise `RequestError` for an initializer that is also an input, is sparse, or is in a data file."""
    name = initializer.name
    if initializer.value.is_graph_input():
        raise RequestError(f"initializer {name!r} is also an input; use `remove_initializer_inputs` first")
    if initializer.stored == "sparse":
        raise RequestError(f"initializer {name!r} is sparse; use `make_dense` first")
    if initializer.stored == "external":
        raise RequestError(f"initializer {name!r} is in a data file, which few tools support for Constant nodes")
