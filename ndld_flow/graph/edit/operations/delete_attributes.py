"""Delete attributes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pydantic import Field

from ndld_flow.graph.edit.operation import Operation
from ndld_flow.graph.edit.selection import Patterns, Select

if TYPE_CHECKING:
    from ndld_flow.graph.edit.edited_model import EditedModel


class DeleteAttributes(Operation):
    """Delete attributes of nodes; one that the operator requires is refused.

        delete_attributes: {select: {domain: com.acme}, attributes: "debug_*"}

    Without an attribute a node does what its operator does by default.
    """

    about = "attributes"

    select: Select
    """Which nodes."""
    attributes: Patterns = Field(min_length=1)
    """Their names."""
    allow_empty: bool = False
    """Let it pass when nothing is selected, or no node has such an attribute."""

    def apply(self, edited: EditedModel) -> str:
        from ndld_flow.graph.edit.attributes import delete_attributes

        nodes = edited.select_nodes(self.select, self.allow_empty)
        return f"{delete_attributes(edited, nodes, self.attributes, self.allow_empty)} attributes deleted"
