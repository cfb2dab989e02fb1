"""Copy nodes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pydantic import Field

from ndld_flow.graph.edit.operation import Operation
from ndld_flow.graph.edit.selection import Select

if TYPE_CHECKING:
    from ndld_flow.graph.edit.edited_model import EditedModel


class CopyNodes(Operation):
    """Copy nodes beside themselves; copies read each other where the originals do, and share all else they read.

        copy_nodes: {select: {between: [stem, head]}, prefix: twin_}

    What the copies make is read by nobody until it is connected. Weights are shared.
    """

    about = "nodes"
    keeps_outputs = True

    select: Select
    """Which nodes."""
    prefix: str = Field(default="copy_", min_length=1)
    """Before the names of the copies and of what they make; a number follows where the name is taken."""
    allow_empty: bool = False
    """Let it pass when nothing is selected."""

    def apply(self, edited: EditedModel) -> str:
        from ndld_flow.graph.edit.node_copying import copy_beside

        copies = copy_beside(edited, edited.select_nodes(self.select, self.allow_empty), self.prefix)
        return f"{copies} nodes copied"
