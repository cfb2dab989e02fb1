"""Remove attributes of nodes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pydantic import Field

from ndld_flow.graph.edit.operation import Operation
from ndld_flow.graph.edit.settings import Patterns, Select

if TYPE_CHECKING:
    from ndld_flow.graph.edit.edited_model import EditedModel


class RemoveAttributes(Operation):
    """Remove attributes of nodes; an attribute that the operator requires is refused.

        remove_attributes: {select: {domain: com.acme}, attributes: "debug_*"}

    Without the attribute, a node uses its operator's default.
    """

    heading = "attributes"

    select: Select
    """Nodes to change."""
    attributes: Patterns = Field(min_length=1)
    """Names of the attributes."""
    allow_empty: bool = False
    """Succeed when nothing is selected, or no node has such an attribute."""

    def apply(self, edited: EditedModel) -> str:
        from ndld_flow.graph.edit.nodes import remove_attributes

        nodes = edited.select_nodes(self.select, self.allow_empty)
        return f"{remove_attributes(edited, nodes, self.attributes, self.allow_empty)} attributes removed"
