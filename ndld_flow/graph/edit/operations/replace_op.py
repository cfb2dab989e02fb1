"""Replace operators."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ndld_flow.graph.edit.new_node import MakesNode
from ndld_flow.graph.edit.selection import Select

if TYPE_CHECKING:
    from ndld_flow.graph.edit.edited_model import EditedModel


class ReplaceOp(MakesNode):
    """Give nodes another operator in their place: names and wiring stay.

        replace_op: {select: {op_type: Relu}, op_type: LeakyRelu, attributes: {alpha: 0.1}}

    Attributes that the new operator has too stay; those it does not have go, and the record says which.
    """

    about = "nodes"

    select: Select
    """Which nodes."""
    allow_empty: bool = False
    """Let it pass when nothing is selected."""

    def apply(self, edited: EditedModel) -> str:
        from ndld_flow.graph.edit.node_adding import NewNode, NodeMaker
        from ndld_flow.graph.edit.wiring import told_of

        nodes = edited.select_nodes(self.select, self.allow_empty)
        maker, new = NodeMaker(edited), NewNode(self.op_type, self.own_domain, self.attributes)
        dropped: set[str] = set()
        for node in nodes:
            with told_of(node):
                dropped.update(maker.replace_op(node, new))
        if dropped:
            edited.note(f"{self.op_type} has no attribute {', '.join(sorted(dropped))}: dropped")
        return f"{len(nodes)} nodes are {self.op_type} now"
