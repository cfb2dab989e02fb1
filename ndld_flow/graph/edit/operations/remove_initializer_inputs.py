"""Remove initializers from the inputs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ndld_flow.base.errors import RequestError
from ndld_flow.graph.edit.operation import Operation
from ndld_flow.graph.edit.settings import EVERY_TENSOR, SelectTensors

if TYPE_CHECKING:
    from ndld_flow.graph.edit.edited_model import EditedModel


class RemoveInitializerInputs(Operation):
    """Remove initializers from the model's inputs: they become constants, which programs can no longer override.

        remove_initializer_inputs: {}

    Old exporters list all weights as inputs, which prevents constant folding and fusion.
    """

    heading = "weight storage"
    keeps_outputs = True

    select: SelectTensors = EVERY_TENSOR
    """Initializers to remove from the inputs; all by default."""
    allow_empty: bool = False
    """Succeed when none of them is an input."""

    def apply(self, edited: EditedModel) -> str:
        from ndld_flow.graph.edit.constant_tensors import select_initializers
        from ndld_flow.graph.edit.edited_model import FIRST_WITH_FREE_INITIALIZERS

        allow_empty = self.allow_empty or self.select == EVERY_TENSOR
        initializers = select_initializers(edited.model, self.select, allow_empty)
        inputs = [initializer for initializer in initializers if initializer.value.is_graph_input()]
        for initializer in inputs:
            initializer.graph.inputs.remove(initializer.value)
        if not inputs and not allow_empty:
            raise RequestError("no selected initializer is an input")
        if not inputs:
            edited.note("no initializer is an input")
            return "nothing to do"
        edited.raise_ir_version(FIRST_WITH_FREE_INITIALIZERS)
        return f"{len(inputs)} initializers removed from the inputs"
