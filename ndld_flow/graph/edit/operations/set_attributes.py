"""Set attributes of nodes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pydantic import Field

from ndld_flow.base.quantities import counted
from ndld_flow.graph.edit.operation import Operation
from ndld_flow.graph.edit.settings import AttributeValue, NewName, Select

if TYPE_CHECKING:
    from ndld_flow.graph.edit.edited_model import EditedModel


class SetAttributes(Operation):
    """Set attributes of nodes; names and types are checked against the operator.

        set_attributes: {select: {op_type: Conv}, attributes: {auto_pad: VALID, dilations: [2, 2]}}
        set_attributes: {select: to_half, attributes: {to: float16}}
        set_attributes: {select: scale, attributes: {value: {value: [0.5], dtype: float32}}}

    Values are YAML values, or strings such as `"[1, 1]"`, `0x1F`, `-inf`, `"'It\\'s alive!'"`.
    """

    heading = "attributes"

    select: Select
    """Nodes to change."""
    attributes: dict[NewName, AttributeValue] = Field(min_length=1)
    """Attribute -> value. A tensor is `{value: [[1, 2]], dtype: int64}` or `{file: w.npy}`."""
    allow_empty: bool = False
    """Succeed when nothing is selected."""

    def apply(self, edited: EditedModel) -> str:
        from ndld_flow.graph.edit.nodes import make_attributes
        from ndld_flow.graph.edit.schemas import Schemas
        from ndld_flow.graph.edit.wiring import errors_of

        schemas, nodes = Schemas(edited.model), edited.select_nodes(self.select, self.allow_empty)
        for node in nodes:
            with errors_of(node):
                for attribute in make_attributes(schemas.of(node), self.attributes, node.attributes):
                    node.attributes.add(attribute)
        return f"{', '.join(self.attributes)} set on {counted(len(nodes), 'node')}"
