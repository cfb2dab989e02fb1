"""Remove nodes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ndld_flow.graph.edit.operation import Operation
from ndld_flow.graph.edit.selection import Select

if TYPE_CHECKING:
    from ndld_flow.graph.edit.edited_model import EditedModel


class RemoveNodes(Operation):
    """Remove nodes, with the subgraphs they hold.

        remove_nodes: {select: {op_type: [Dropout, Identity]}, bridge: true}

    Without `bridge`, nothing may read what they make: not other nodes, and not the model's outputs. Weights that
    nothing reads any more stay.
    """

    about = "nodes"

    select: Select
    """Which nodes."""
    bridge: bool = False
    """Reconnect: who read a node's output reads its input instead, the first of the same dtype and shape that is no
    constant, or the one most like this. Outputs of the model keep their names."""
    through: int | str | None = None
    """With `bridge`: which input, by number or as the operator calls it."""
    allow_empty: bool = False
    """Let it pass when nothing is selected."""

    def apply(self, edited: EditedModel) -> str:
        from ndld_flow.graph.edit.removing import bridge_nodes, remove_nodes

        nodes = edited.select_nodes(self.select, self.allow_empty)
        if self.bridge:
            bridge_nodes(edited, nodes, self.through)
        remove_nodes(edited, nodes)
        return f"{len(nodes)} nodes removed"
