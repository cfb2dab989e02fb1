"""Setting, resetting and removing attributes of nodes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

import onnx_ir as ir

from ndld_flow.base.errors import RequestError
from ndld_flow.base.name_patterns import is_plain, name_matcher
from ndld_flow.base.text import suggest
from ndld_flow.graph.edit.attribute_making import Given, make_attributes
from ndld_flow.graph.edit.edited_model import EditedModel
from ndld_flow.graph.edit.schemas import Schemas, declared_attribute
from ndld_flow.graph.edit.wiring import errors_of
from ndld_flow.models.op_reference import AttributeReference, OperatorVersion


def set_attributes(edited: EditedModel, nodes: Iterable[ir.Node], given: Mapping[str, Given]) -> int:
    """Set attributes and return the number of nodes. Raises `RequestError` like `make_attributes`, with the node."""
    schemas = Schemas(edited.model)
    changed = 0
    for node in nodes:
        with errors_of(node):
            for attribute in make_attributes(schemas.of(node), given, node.attributes):
                node.attributes.add(attribute)
        changed += 1
    return changed


def reset_attributes(edited: EditedModel, nodes: Iterable[ir.Node], patterns: Sequence[str], allow_empty: bool) -> int:
    """Set attributes to their defaults, remove optional ones without a default, and return how many.

    Raises `RequestError` for an unknown operator, for an attribute that it lacks or requires, and for none, unless that
    is allowed.
    """
    schemas = Schemas(edited.model)
    changed = 0
    for node in nodes:
        with errors_of(node):
            operator = schemas.of(node)
            if operator is None:
                raise RequestError(f"the operator {node.domain}::{node.op_type} and its defaults are unknown")
            for declared in _meant(operator, node, patterns):
                _reset(node, declared)
                changed += 1
    if not changed and not allow_empty:
        raise RequestError(f"none of these nodes has an attribute like {patterns[0]!r}")
    return changed


def remove_attributes(edited: EditedModel, nodes: Sequence[ir.Node], patterns: Sequence[str], allow_empty: bool) -> int:
    """Remove attributes and return how many.

    Raises `RequestError` for one that the operator requires, and for none, unless that is allowed.
    """
    schemas = Schemas(edited.model)
    fits = [name_matcher(pattern) for pattern in patterns]
    found = [(node, name) for node in nodes for name in node.attributes if any(fit(name) for fit in fits)]
    if not found and not allow_empty:
        known = {name for node in nodes for name in node.attributes}
        nearest = suggest(patterns[0], known) or "they have none"
        raise RequestError(f"none of these nodes has an attribute like {patterns[0]!r}; {nearest}")
    for node, name in found:
        with errors_of(node):
            operator = schemas.of(node)
            if operator is not None and any(one.required and one.name == name for one in operator.attributes):
                raise RequestError(f"{operator.name} requires its attribute {name!r}")
        node.attributes.pop(name)
    return len(found)


def _meant(operator: OperatorVersion, node: ir.Node, patterns: Sequence[str]) -> Iterator[AttributeReference]:
    """Yield the operator's attribute of a plain name; for a pattern, the optional ones that the node has."""
    for pattern in patterns:
        fits = name_matcher(pattern)
        if is_plain(pattern):
            yield declared_attribute(operator, pattern)
        else:
            present = (one for one in operator.attributes if one.name in node.attributes and fits(one.name))
            yield from (one for one in present if not one.required)


def _reset(node: ir.Node, declared: AttributeReference) -> None:
    if declared.required:
        raise RequestError(f"{node.op_type} requires its attribute {declared.name!r}, which has no default")
    if declared.default is None:
        node.attributes.pop(declared.name, None)
        return
    node.attributes.add(ir.Attr(declared.name, ir.AttributeType[declared.type.upper()], declared.default))
