"""Let tensors be outputs no longer, and remove what only they needed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ndld_flow.graph.edit.operation import Operation
from ndld_flow.graph.edit.selection import Patterns

if TYPE_CHECKING:
    from ndld_flow.graph.edit.edited_model import EditedModel


class RemoveOutputs(Operation):
    """Let tensors be outputs no longer, and remove what only they needed.

    remove_outputs: {outputs: aux_*}
    """

    about = "inputs and outputs"
    keeps_outputs = True

    outputs: Patterns
    """Names, globs or `/regex/`."""
    prune: bool = True
    """Remove the nodes and weights that no output depends on any more. What was unused before stays."""
    allow_empty: bool = False
    """Let it pass when no name fits."""

    def apply(self, edited: EditedModel) -> str:
        from ndld_flow.graph.edit.interface import pick, remove_outputs

        values = pick(edited.model.graph.outputs, self.outputs, "output", self.allow_empty)
        count = remove_outputs(edited, values, self.prune) if values else 0
        return f"outputs removed: {', '.join(str(value.name) for value in values)}; {count} nodes with them"
