"""Disconnect inputs of nodes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ndld_flow.graph.edit.operation import Operation
from ndld_flow.graph.edit.selection import Select

if TYPE_CHECKING:
    from ndld_flow.graph.edit.edited_model import EditedModel


class Disconnect(Operation):
    """Leave an optional input of nodes out.

        disconnect: {select: {op_type: Conv}, input: B}

    An input that the operator needs is refused; `connect` gives it another tensor. One tensor of a variadic input is
    taken out, the others close up.
    """

    about = "wires"

    select: Select
    """Which nodes."""
    input: int | str
    """Which input, by number or as the operator calls it; of a variadic one the name means the last."""
    allow_empty: bool = False
    """Let it pass when nothing is selected."""

    def apply(self, edited: EditedModel) -> str:
        from ndld_flow.graph.edit.wiring import disconnect

        nodes = edited.select_nodes(self.select, self.allow_empty)
        return f"input {self.input} of {disconnect(edited, nodes, self.input)} nodes left out"
