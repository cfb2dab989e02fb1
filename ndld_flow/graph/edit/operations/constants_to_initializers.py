"""Turn Constant nodes into initializers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ndld_flow.graph.edit.operation import Operation
from ndld_flow.graph.edit.tensor_selection import TensorSelect, TensorsSelected

if TYPE_CHECKING:
    from ndld_flow.graph.edit.edited_model import EditedModel


class ConstantsToInitializers(Operation):
    """Turn Constant nodes into initializers of the same names.

        constants_to_initializers: {select: "*"}

    Those of local functions, which hold no initializers, stay, and those that are an output themselves.
    """

    about = "how weights are kept"
    keeps_outputs = True

    select: TensorsSelected = TensorSelect(name=("*",))
    """Which, by the name of what they make."""
    allow_empty: bool = False
    """Let it pass when nothing is selected."""

    def apply(self, edited: EditedModel) -> str:
        from ndld_flow.graph.edit.constant_forms import select_constants, to_initializers

        held = select_constants(edited, self.select, self.allow_empty)
        return f"{to_initializers(edited, held)} Constant nodes made initializers"
