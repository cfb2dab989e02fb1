"""Set, reset and delete attributes of nodes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

import onnx_ir as ir

from ndld_flow.base.errors import RequestError
from ndld_flow.base.name_patterns import is_plain, name_matcher
from ndld_flow.base.text import suggest
from ndld_flow.graph.edit.attribute_making import Given, make_attributes
from ndld_flow.graph.edit.edited_model import EditedModel
from ndld_flow.graph.edit.schemas import Schemas, declared_attribute
from ndld_flow.graph.edit.wiring import told_of
from ndld_flow.models.op_reference import AttributeReference, OperatorVersion


def set_attributes(edited: EditedModel, nodes: Iterable[ir.Node], given: Mapping[str, Given]) -> int:
    """Set attributes; returns of how many nodes. Raises `RequestError` as `make_attributes` does, with the node."""
    schemas = Schemas(edited.model)
    changed = 0
    for node in nodes:
        with told_of(node):
            for attribute in make_attributes(schemas.of(node), given, node.attributes):
                node.attributes.add(attribute)
        changed += 1
    return changed


def reset_attributes(edited: EditedModel, nodes: Iterable[ir.Node], patterns: Sequence[str], allow_empty: bool) -> int:
    """Write defaults; what has none and is not required goes. Returns how many attributes.

    Raises `RequestError` for an operator that nobody knows, an attribute that it lacks or requires, and, unless that is
    allowed, when there is none.
    """
    schemas = Schemas(edited.model)
    changed = 0
    for node in nodes:
        with told_of(node):
            operator = schemas.of(node)
            if operator is None:
                raise RequestError(f"nobody here knows the operator {node.domain}::{node.op_type} and its defaults")
            for declared in _meant(operator, node, patterns):
                _reset(node, declared)
                changed += 1
    if not changed and not allow_empty:
        raise RequestError(f"none of these nodes has an attribute like {patterns[0]!r}")
    return changed


def delete_attributes(edited: EditedModel, nodes: Sequence[ir.Node], patterns: Sequence[str], allow_empty: bool) -> int:
    """Delete attributes; returns how many.

    Raises `RequestError` for one that the operator requires, and when there is none, unless that is allowed.
    """
    schemas = Schemas(edited.model)
    fits = [name_matcher(pattern) for pattern in patterns]
    found = [(node, name) for node in nodes for name in node.attributes if any(fit(name) for fit in fits)]
    if not found and not allow_empty:
        known = {name for node in nodes for name in node.attributes}
        told = suggest(patterns[0], known) or "they have none"
        raise RequestError(f"none of these nodes has an attribute like {patterns[0]!r}; {told}")
    for node, name in found:
        with told_of(node):
            operator = schemas.of(node)
            if operator is not None and any(one.required and one.name == name for one in operator.attributes):
                raise RequestError(f"{operator.name} needs its attribute {name!r}")
        node.attributes.pop(name)
    return len(found)


def _meant(operator: OperatorVersion, node: ir.Node, patterns: Sequence[str]) -> Iterator[AttributeReference]:
    """A plain name is one of the operator's; a pattern means what the node has and may go."""
    for pattern in patterns:
        fits = name_matcher(pattern)
        if is_plain(pattern):
            yield declared_attribute(operator, pattern)
        else:
            present = (one for one in operator.attributes if one.name in node.attributes and fits(one.name))
            yield from (one for one in present if not one.required)


def _reset(node: ir.Node, declared: AttributeReference) -> None:
    if declared.required:
        raise RequestError(f"{node.op_type} needs its attribute {declared.name!r}, which has no default")
    if declared.default is None:
        node.attributes.pop(declared.name, None)
        return
    node.attributes.add(ir.Attr(declared.name, ir.AttributeType[declared.type.upper()], declared.default))
