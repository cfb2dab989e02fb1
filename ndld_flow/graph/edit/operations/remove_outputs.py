"""Remove outputs of the model."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ndld_flow.graph.edit.operation import Operation
from ndld_flow.graph.edit.settings import Patterns

if TYPE_CHECKING:
    from ndld_flow.graph.edit.edited_model import EditedModel


class RemoveOutputs(Operation):
    """Remove outputs, and the nodes that only they depend on.

    remove_outputs: {select: aux_*}
    """

    heading = "inputs and outputs"
    keeps_outputs = True

    select: Patterns
    """Outputs to remove, by names, globs or `/regex/`."""
    prune: bool = True
    """Remove nodes and weights that no output depends on any more. Those that were unused before stay."""
    allow_empty: bool = False
    """Succeed when no name matches."""

    def apply(self, edited: EditedModel) -> str:
        from ndld_flow.graph.edit.interface import pick, remove_outputs

        values = pick(edited.model.graph.outputs, self.select, "output", self.allow_empty)
        count = remove_outputs(edited, values, self.prune) if values else 0
        return f"outputs removed: {', '.join(str(value.name) for value in values)}; {count} nodes with them"
