"""Connect inputs of nodes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ndld_flow.graph.edit.operation import Operation
from ndld_flow.graph.edit.selection import Select

if TYPE_CHECKING:
    from ndld_flow.graph.edit.edited_model import EditedModel


class Connect(Operation):
    """Let an input of nodes read a tensor.

        connect: {select: conv_1, input: B, tensor: bias}
        connect: {select: concat, input: inputs, tensor: more}

    An input reads one tensor: what it read before is taken off. Optional inputs come into being; the name of a variadic
    one means a further tensor. What depends on the node cannot be its input.
    """

    about = "wires"

    select: Select
    """Which nodes."""
    input: int | str
    """Which input, by number or as the operator calls it."""
    tensor: str
    """What to read: a tensor of the same graph, or of one around it."""
    allow_empty: bool = False
    """Let it pass when nothing is selected."""

    def apply(self, edited: EditedModel) -> str:
        from ndld_flow.graph.edit.wiring import connect

        nodes = edited.select_nodes(self.select, self.allow_empty)
        return f"input {self.input} of {connect(edited, nodes, self.input, self.tensor)} nodes reads {self.tensor}"
