"""Turn initializers into inputs."""

from __future__ import annotations

from typing import TYPE_CHECKING

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
        from ndld_flow.graph.edit.initializers import select_initializers, to_inputs

        held = select_initializers(edited, self.select, self.allow_empty)
        to_inputs(held, self.keep_values)
        return f"{len(held)} initializers turned into inputs"
