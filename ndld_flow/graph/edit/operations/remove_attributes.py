"""Remove attributes of nodes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pydantic import Field

from ndld_flow.base.errors import RequestError
from ndld_flow.base.name_patterns import name_matcher
from ndld_flow.base.text import suggest
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
        from ndld_flow.graph.edit.schemas import Schemas
        from ndld_flow.graph.edit.wiring import errors_of

        nodes, schemas = edited.select_nodes(self.select, self.allow_empty), Schemas(edited.model)
        matchers = [name_matcher(pattern) for pattern in self.attributes]
        selected = [(node, name) for node in nodes for name in node.attributes if any(fits(name) for fits in matchers)]
        if not selected and not self.allow_empty:
            known = {name for node in nodes for name in node.attributes}
            nearest = suggest(self.attributes[0], known) or "they have none"
            raise RequestError(f"none of these nodes has an attribute like {self.attributes[0]!r}; {nearest}")
        for node, name in selected:
            with errors_of(node):
                operator = schemas.of(node)
                if operator is not None and any(each.required and each.name == name for each in operator.attributes):
                    raise RequestError(f"{operator.name} requires its attribute {name!r}")
            node.attributes.pop(name)
        return f"{len(selected)} attributes removed"
