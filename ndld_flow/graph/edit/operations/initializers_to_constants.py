"""Turn initializers into Constant nodes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ndld_flow.graph.edit.operation import Operation
from ndld_flow.graph.edit.tensor_selection import TensorsSelected

if TYPE_CHECKING:
    from ndld_flow.graph.edit.edited_model import EditedModel


class InitializersToConstants(Operation):
    """Turn initializers into Constant nodes that make tensors of the same names.

        initializers_to_constants: {select: {smaller_than: 1 KiB}}

    For small ones: what lies in a data file is refused.
    """

    about = "how weights are kept"
    keeps_outputs = True

    select: TensorsSelected
    """Which initializers."""
    allow_empty: bool = False
    """Let it pass when nothing is selected."""

    def apply(self, edited: EditedModel) -> str:
        from ndld_flow.graph.edit.constant_forms import select_initializers, to_constants

        held = select_initializers(edited, self.select, self.allow_empty)
        to_constants(held)
        return f"{len(held)} initializers made Constant nodes"
