"""Let initializers be inputs no longer."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ndld_flow.graph.edit.operation import Operation
from ndld_flow.graph.edit.tensor_selection import TensorSelect, TensorsSelected

if TYPE_CHECKING:
    from ndld_flow.graph.edit.edited_model import EditedModel


class DropInitializerInputs(Operation):
    """Let initializers that are inputs too be inputs no longer: nobody can feed another value then.

        drop_initializer_inputs: {}

    Old exporters list all weights as inputs, which keeps programs from folding and fusing them.
    """

    about = "how weights are kept"
    keeps_outputs = True

    select: TensorsSelected = TensorSelect(name=("*",))
    """Which initializers; all unless said."""
    allow_empty: bool = False
    """Let it pass when none of them is an input."""

    def apply(self, edited: EditedModel) -> str:
        from ndld_flow.graph.edit.constant_forms import drop_inputs, select_initializers

        held = select_initializers(edited, self.select, self.allow_empty)
        return f"{drop_inputs(edited, held, self.allow_empty)} initializers are inputs no longer"
