"""Turn Constant nodes into initializers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ndld_flow.graph.edit.operation import Operation
from ndld_flow.graph.edit.settings import SelectTensors, TensorSelect

if TYPE_CHECKING:
    from ndld_flow.graph.edit.edited_model import EditedModel


class ConstantsToInitializers(Operation):
    """Turn Constant nodes into initializers of the same names.

        constants_to_initializers: {select: "*"}

    Constant nodes of local functions, which cannot have initializers, and those whose output is a graph output stay.
    """

    heading = "weight storage"
    keeps_outputs = True

    select: SelectTensors = TensorSelect(name=("*",))
    """Constant nodes, by the names of their outputs."""
    allow_empty: bool = False
    """Succeed when nothing is selected."""

    def apply(self, edited: EditedModel) -> str:
        from ndld_flow.graph.edit.initializers import select_constants, to_initializers

        held = select_constants(edited, self.select, self.allow_empty)
        return f"{to_initializers(edited, held)} Constant nodes turned into initializers"
