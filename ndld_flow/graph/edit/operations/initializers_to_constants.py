"""Turn initializers into Constant nodes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ndld_flow.graph.edit.operation import Operation
from ndld_flow.graph.edit.settings import SelectTensors

if TYPE_CHECKING:
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
        from ndld_flow.graph.edit.initializers import select_initializers, to_constants

        held = select_initializers(edited, self.select, self.allow_empty)
        to_constants(held)
        return f"{len(held)} initializers turned into Constant nodes"
