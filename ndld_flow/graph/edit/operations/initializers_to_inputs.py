"""Turn initializers into inputs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ndld_flow.base.errors import RequestError
from ndld_flow.graph.edit.operation import Operation
from ndld_flow.graph.edit.settings import SelectTensors

if TYPE_CHECKING:
    from ndld_flow.graph.edit.edited_model import EditedModel


class InitializersToInputs(Operation):
    """Turn initializers into inputs of the model, appended to the existing ones.

        initializers_to_inputs: {select: [scale, bias], keep_values: true}

    Programs that run the model can then feed other values.
    """

    heading = "weight storage"
    keeps_outputs = True

    select: SelectTensors
    """Initializers of the main graph to turn."""
    keep_values: bool = False
    """Keep the values as defaults; otherwise the inputs must be fed."""
    allow_empty: bool = False
    """Succeed when nothing is selected."""

    def apply(self, edited: EditedModel) -> str:
        import onnx_ir as ir

        from ndld_flow.graph.edit.constant_tensors import select_initializers

        initializers = select_initializers(edited.model, self.select, self.allow_empty)
        for initializer in initializers:
            name = initializer.name
            if initializer.scope:
                where = f"{name!r} is in {initializer.scope!r}"
                raise RequestError(f"initializer {where}; only inputs of the main graph can be fed")
            if initializer.stored == "sparse":
                raise RequestError(f"initializer {name!r} is sparse; use `make_dense` first")
        for initializer in initializers:
            value, tensor = initializer.value, initializer.tensor
            value.type, value.shape = ir.TensorType(tensor.dtype), ir.Shape(tensor.shape.numpy())
            if not value.is_graph_input():
                initializer.graph.inputs.append(value)
            if not self.keep_values:
                del initializer.graph.initializers[initializer.name]
                value.const_value = None
        return f"{len(initializers)} initializers turned into inputs"
