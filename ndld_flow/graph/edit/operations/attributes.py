"""Operations on the attributes of nodes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from pydantic import Field

from ndld_flow.base.errors import RequestError, UnknownNameError
from ndld_flow.base.name_patterns import is_plain, name_matcher
from ndld_flow.base.quantities import counted
from ndld_flow.graph.edit.operation import Operation
from ndld_flow.graph.edit.settings import AllowEmpty, AttributeValue, NewName, Patterns, Select

if TYPE_CHECKING:
    import onnx_ir as ir

    from ndld_flow.graph.edit.edited_model import EditedModel
    from ndld_flow.models.op_reference import AttributeReference, OperatorVersion


class SetAttributes(Operation):
    """Set attributes of nodes; names and types are checked against the operator.

        set_attributes: {select: {op_type: Conv}, attributes: {auto_pad: VALID, dilations: [2, 2]}}
        set_attributes: {select: to_half, attributes: {to: float16}}
        set_attributes: {select: scale, attributes: {value: {value: [0.5], dtype: float32}}}

    Values are YAML values, or strings such as `"[1, 1]"`, `0x1F`, `-inf`, `"'It\\'s alive!'"`.
    """

    select: Select
    """Nodes to change."""
    attributes: dict[NewName, AttributeValue] = Field(min_length=1)
    """Attribute -> value. A tensor is `{value: [[1, 2]], dtype: int64}` or `{file: w.npy}`."""
    allow_empty: AllowEmpty = False

    def apply(self, edited: EditedModel) -> str:
        from ndld_flow.graph.edit.graph_edits import errors_of
        from ndld_flow.graph.edit.nodes import make_attributes
        from ndld_flow.graph.edit.schemas import Schemas

        schemas, nodes = Schemas(edited.model), edited.select_nodes(self.select, self.allow_empty)
        for node in nodes:
            with errors_of(node):
                for attribute in make_attributes(schemas.of(node), self.attributes, node.attributes):
                    node.attributes.add(attribute)
        return f"{', '.join(self.attributes)} set on {counted(len(nodes), 'node')}"


class RemoveAttributes(Operation):
    """Remove attributes of nodes; an attribute that the operator requires is refused.

        remove_attributes: {select: {domain: com.acme}, attributes: "debug_*"}

    Without the attribute, a node uses its operator's default.
    """

    select: Select
    """Nodes to change."""
    attributes: Patterns = Field(min_length=1)
    """Names of the attributes."""
    allow_empty: bool = False
    """Succeed when nothing is selected, or no node has such an attribute."""

    def apply(self, edited: EditedModel) -> str:
        from ndld_flow.graph.edit.graph_edits import errors_of
        from ndld_flow.graph.edit.schemas import Schemas

        nodes, schemas = edited.select_nodes(self.select, self.allow_empty), Schemas(edited.model)
        matchers = [name_matcher(pattern) for pattern in self.attributes]
        selected = [(node, name) for node in nodes for name in node.attributes if any(fits(name) for fits in matchers)]
        if not selected and not self.allow_empty:
            known = {name for node in nodes for name in node.attributes}
            what = f"these nodes have no attribute like {self.attributes[0]!r}"
            raise UnknownNameError(what, self.attributes[0], known, "they have none")
        for node, name in selected:
            with errors_of(node):
                operator = schemas.of(node)
                if operator is not None and any(each.required and each.name == name for each in operator.attributes):
                    raise RequestError(f"{operator.name} requires its attribute {name!r}")
            node.attributes.pop(name)
        return f"{len(selected)} attributes removed"


class ResetAttributes(Operation):
    """Reset attributes to the defaults of the operator in the model's opset.

        reset_attributes: {select: {op_type: Conv}, attributes: [group, auto_pad]}

    Optional attributes without a default are removed.
    """

    select: Select
    """Nodes to change."""
    attributes: Patterns = Field(min_length=1)
    """Names of the attributes; `"*"` means all that a node has and its operator does not require."""
    allow_empty: bool = False
    """Succeed when nothing is selected, or there is nothing to reset."""

    def apply(self, edited: EditedModel) -> str:
        import onnx_ir as ir

        from ndld_flow.graph.edit.graph_edits import errors_of
        from ndld_flow.graph.edit.schemas import Schemas

        nodes, schemas = edited.select_nodes(self.select, self.allow_empty), Schemas(edited.model)
        changed = 0
        for node in nodes:
            with errors_of(node):
                operator = schemas.of(node)
                if operator is None:
                    raise RequestError(f"{node.domain}::{node.op_type} has no known defaults: use `set_attributes`")
                for attribute in _selected(operator, node, self.attributes):
                    if attribute.required:
                        raise RequestError(
                            f"{node.op_type} requires its attribute {attribute.name!r}, which has no default"
                        )
                    if attribute.default is None:
                        node.attributes.pop(attribute.name, None)
                    else:
                        kind = ir.AttributeType[attribute.type.upper()]
                        node.attributes.add(ir.Attr(attribute.name, kind, attribute.default))
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
