"""Make initializers inputs of the model."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ndld_flow.graph.edit.operation import Operation
from ndld_flow.graph.edit.tensor_selection import TensorsSelected

if TYPE_CHECKING:
    from ndld_flow.graph.edit.edited_model import EditedModel


class InitializersToInputs(Operation):
    """Make initializers inputs of the model, after those that it has.

        initializers_to_inputs: {select: [scale, bias], keep_values: true}

    Whoever runs the model can then feed them.
    """

    about = "how weights are kept"
    keeps_outputs = True

    select: TensorsSelected
    """Which initializers of the main graph."""
    keep_values: bool = False
    """Keep the values for callers that feed none; without, callers must feed them."""
    allow_empty: bool = False
    """Let it pass when nothing is selected."""

    def apply(self, edited: EditedModel) -> str:
        from ndld_flow.graph.edit.constant_forms import select_initializers, to_inputs

        held = select_initializers(edited, self.select, self.allow_empty)
        to_inputs(held, self.keep_values)
        return f"{len(held)} initializers made inputs"
