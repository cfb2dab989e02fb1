"""Remove initializers from the inputs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ndld_flow.graph.edit.operation import Operation
from ndld_flow.graph.edit.settings import SelectTensors, TensorSelect

if TYPE_CHECKING:
    from ndld_flow.graph.edit.edited_model import EditedModel


class RemoveInitializerInputs(Operation):
    """Remove initializers from the model's inputs: they become constants, which programs can no longer override.

        remove_initializer_inputs: {}

    Old exporters list all weights as inputs, which prevents constant folding and fusion.
    """

    heading = "weight storage"
    keeps_outputs = True

    select: SelectTensors = TensorSelect(name=("*",))
    """Initializers to remove from the inputs; all by default."""
    allow_empty: bool = False
    """Succeed when none of them is an input."""

    def apply(self, edited: EditedModel) -> str:
        from ndld_flow.graph.edit.initializers import remove_from_inputs, select_initializers

        held = select_initializers(edited, self.select, self.allow_empty)
        return f"{remove_from_inputs(edited, held, self.allow_empty)} initializers removed from the inputs"
