"""Rename nodes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ndld_flow.editing.operation import Operation
from ndld_flow.editing.selection import Select

if TYPE_CHECKING:
    from ndld_flow.backends.editing.edited_model import EditedModel


class RenameNodes(Operation):
    """Rename nodes; no two of a model get one name.

        rename_nodes: {select: {op_type: Conv}, to: "conv_{index}"}
    """

    select: Select
    """Which nodes."""
    to: str
    """The new name. `{name}` is the old one, `{op_type}` the operator, `{index}` counts what was selected from 0."""
    allow_empty: bool = False
    """Let it pass when nothing is selected."""

    def apply(self, edited: EditedModel) -> str:
        nodes = edited.select_nodes(self.select, self.allow_empty)
        for index, node in enumerate(nodes):
            node.name = None
            node.name = edited.fresh_name(self.to.format(name=node.name, op_type=node.op_type, index=index))
        return f"{len(nodes)} nodes renamed"
