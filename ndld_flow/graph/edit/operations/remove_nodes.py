"""Remove nodes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ndld_flow.graph.edit.operation import Operation
from ndld_flow.graph.edit.settings import Select

if TYPE_CHECKING:
    from ndld_flow.graph.edit.edited_model import EditedModel


class RemoveNodes(Operation):
    """Remove nodes, with their subgraphs.

        remove_nodes: {select: {op_type: [Dropout, Identity]}, bridge: true}

    Without `bridge`, their outputs must be unused: neither read by other nodes nor outputs of the model. Weights that
    become unused stay.
    """

    heading = "nodes"

    select: Select
    """Nodes to remove."""
    bridge: bool = False
    """Connect the readers of a node's output to its input: the first that is no constant and has the type and shape of
    the output, or else the most similar one. Outputs of the model keep their names."""
    through: int | str | None = None
    """With `bridge`: the input, by index or by the operator's name for it."""
    allow_empty: bool = False
    """Succeed when nothing is selected."""

    def apply(self, edited: EditedModel) -> str:
        from ndld_flow.graph.edit.wiring import bridge_nodes, remove_nodes

        nodes = edited.select_nodes(self.select, self.allow_empty)
        if self.bridge:
            bridge_nodes(edited, nodes, self.through)
        remove_nodes(edited, nodes)
        return f"{len(nodes)} nodes removed"
