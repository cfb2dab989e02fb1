"""Replace operators."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ndld_flow.graph.edit.operation import NodeOperation
from ndld_flow.graph.edit.settings import Select

if TYPE_CHECKING:
    from ndld_flow.graph.edit.edited_model import EditedModel


class ReplaceOp(NodeOperation):
    """Replace the operator of nodes; their names and connections stay.

        replace_op: {select: {op_type: Relu}, op_type: LeakyRelu, attributes: {alpha: 0.1}}

    Attributes that the new operator also has are kept; the others are removed and listed in the record.
    """

    heading = "nodes"

    select: Select
    """Nodes to change."""
    allow_empty: bool = False
    """Succeed when nothing is selected."""

    def apply(self, edited: EditedModel) -> str:
        from ndld_flow.graph.edit.nodes import NewNode, NodeMaker
        from ndld_flow.graph.edit.wiring import errors_of

        nodes = edited.select_nodes(self.select, self.allow_empty)
        maker, new = NodeMaker(edited), NewNode(self.op_type, self.own_domain, self.attributes)
        dropped: set[str] = set()
        for node in nodes:
            with errors_of(node):
                dropped.update(maker.replace_op(node, new))
        if dropped:
            edited.note(f"{self.op_type} has no attribute {', '.join(sorted(dropped))}: removed")
        return f"{len(nodes)} nodes are now {self.op_type}"
