"""Turn Constant nodes into initializers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ndld_flow.graph.edit.operation import Operation
from ndld_flow.graph.edit.settings import EVERY_TENSOR, SelectTensors

if TYPE_CHECKING:
    from ndld_flow.graph.edit.edited_model import EditedModel


class ConstantsToInitializers(Operation):
    """Turn Constant nodes into initializers of the same names.

        constants_to_initializers: {select: "*"}

    Constant nodes of local functions, which cannot have initializers, and those whose output is a graph output stay.
    """

    heading = "weight storage"
    keeps_outputs = True

    select: SelectTensors = EVERY_TENSOR
    """Constant nodes, by the names of their outputs."""
    allow_empty: bool = False
    """Succeed when nothing is selected."""

    def apply(self, edited: EditedModel) -> str:
        import onnx_ir as ir

        from ndld_flow.graph.edit.constant_tensors import select_constants
        from ndld_flow.graph.edit.edited_model import FIRST_WITH_FREE_INITIALIZERS

        moved = 0
        allow_empty = self.allow_empty or self.select == EVERY_TENSOR
        for constant in select_constants(edited.model, self.select, allow_empty):
            node, tensor = constant.node, constant.tensor
            if node is None or "::" in constant.scope or constant.value.is_graph_output():
                continue
            shape = ir.Shape(tensor.shape.numpy())
            value = ir.Value(name=constant.name, type=ir.TensorType(tensor.dtype), shape=shape, const_value=tensor)
            constant.value.replace_all_uses_with(value)
            constant.graph.remove(node, safe=True)
            constant.graph.register_initializer(value)
            moved += 1
        if not moved:
            edited.note("no Constant node becomes an initializer")
            return "nothing to do"
        edited.raise_ir_version(FIRST_WITH_FREE_INITIALIZERS)
        return f"{moved} Constant nodes turned into initializers"
