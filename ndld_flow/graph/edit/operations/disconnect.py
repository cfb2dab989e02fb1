"""Disconnect inputs of nodes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ndld_flow.graph.edit.operation import Operation
from ndld_flow.graph.edit.settings import Select

if TYPE_CHECKING:
    from ndld_flow.graph.edit.edited_model import EditedModel


class Disconnect(Operation):
    """Disconnect an optional input of nodes.

        disconnect: {select: {op_type: Conv}, input: B}

    An input that the operator requires is refused; `connect` gives it another tensor. A tensor of a variadic input is
    removed, and those after it move up.
    """

    heading = "connections"

    select: Select
    """Nodes to disconnect."""
    input: int | str
    """The input, by index or by the operator's name for it; the name of a variadic input means its last tensor."""
    allow_empty: bool = False
    """Succeed when nothing is selected."""

    def apply(self, edited: EditedModel) -> str:
        from ndld_flow.graph.edit.wiring import disconnect

        nodes = edited.select_nodes(self.select, self.allow_empty)
        return f"input {self.input} of {disconnect(edited, nodes, self.input)} nodes disconnected"
