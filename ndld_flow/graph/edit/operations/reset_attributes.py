"""Reset attributes of nodes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from pydantic import Field

from ndld_flow.base.errors import RequestError
from ndld_flow.base.name_patterns import is_plain, name_matcher
from ndld_flow.graph.edit.operation import Operation
from ndld_flow.graph.edit.settings import Patterns, Select

if TYPE_CHECKING:
    import onnx_ir as ir

    from ndld_flow.graph.edit.edited_model import EditedModel
    from ndld_flow.models.op_reference import AttributeReference, OperatorVersion


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
        from ndld_flow.graph.edit.schemas import Schemas
        from ndld_flow.graph.edit.wiring import errors_of

        nodes, schemas = edited.select_nodes(self.select, self.allow_empty), Schemas(edited.model)
        changed = 0
        for node in nodes:
            with errors_of(node):
                operator = schemas.of(node)
                if operator is None:
                    raise RequestError(f"the operator {node.domain}::{node.op_type} and its defaults are unknown")
                for attribute in _selected(operator, node, self.attributes):
                    _reset(node, attribute)
                    changed += 1
        if not changed and not self.allow_empty:
            raise RequestError(f"none of these nodes has an attribute like {self.attributes[0]!r}")
        return f"{changed} attributes reset"


def _selected(operator: OperatorVersion, node: ir.Node, patterns: Sequence[str]) -> Iterator[AttributeReference]:
    """Yield the operator's attribute of a plain name; for a pattern, the optional ones that the node has."""
    from ndld_flow.graph.edit.schemas import declared_attribute

    for pattern in patterns:
        fits = name_matcher(pattern)
        if is_plain(pattern):
            yield declared_attribute(operator, pattern)
        else:
            optional = (attribute for attribute in operator.attributes if not attribute.required)
            yield from (known for known in optional if known.name in node.attributes and fits(known.name))


def _reset(node: ir.Node, declared: AttributeReference) -> None:
    """Set an attribute to its default, or remove it if it has none. Raises `RequestError` for a required one."""
    import onnx_ir as ir

    if declared.required:
        raise RequestError(f"{node.op_type} requires its attribute {declared.name!r}, which has no default")
    if declared.default is None:
        node.attributes.pop(declared.name, None)
        return
    node.attributes.add(ir.Attr(declared.name, ir.AttributeType[declared.type.upper()], declared.default))
