"""Connect inputs of nodes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ndld_flow.graph.edit.operation import Operation
from ndld_flow.graph.edit.settings import Select

if TYPE_CHECKING:
    from ndld_flow.graph.edit.edited_model import EditedModel


class Connect(Operation):
    """Connect an input of nodes to a tensor.

        connect: {select: conv_1, input: B, tensor: bias}
        connect: {select: concat, input: inputs, tensor: more}

    The tensor replaces what the input read before. Optional inputs are added as needed; the name of a variadic input
    appends a tensor. A tensor that depends on the node is refused.
    """

    heading = "connections"

    select: Select
    """Nodes to connect."""
    input: int | str
    """The input, by index or by the operator's name for it."""
    tensor: str
    """The tensor to read, of the same graph or of an enclosing one."""
    allow_empty: bool = False
    """Succeed when nothing is selected."""

    def apply(self, edited: EditedModel) -> str:
        from ndld_flow.graph.edit.wiring import connect

        nodes = edited.select_nodes(self.select, self.allow_empty)
        return f"input {self.input} of {connect(edited, nodes, self.input, self.tensor)} nodes reads {self.tensor}"
