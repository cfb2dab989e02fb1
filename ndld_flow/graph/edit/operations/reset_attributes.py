"""Reset attributes of nodes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pydantic import Field

from ndld_flow.graph.edit.operation import Operation
from ndld_flow.graph.edit.settings import Patterns, Select

if TYPE_CHECKING:
    from ndld_flow.graph.edit.edited_model import EditedModel


class ResetAttributes(Operation):
    """Reset attributes to the defaults of the operator in the model's opset.

        reset_attributes: {select: {op_type: Conv}, attributes: [group, auto_pad]}

    Optional attributes without a default are removed.
    """

    heading = "attributes"

    select: Select
    """Nodes to change."""
    attributes: Patterns = Field(min_length=1)
    """Names of the attributes; `"*"` means all that a node has and its operator does not require."""
    allow_empty: bool = False
    """Succeed when nothing is selected, or there is nothing to reset."""

    def apply(self, edited: EditedModel) -> str:
        from ndld_flow.graph.edit.nodes import reset_attributes

        nodes = edited.select_nodes(self.select, self.allow_empty)
        changed = reset_attributes(edited, nodes, self.attributes, self.allow_empty)
        return f"{changed} attributes reset"
