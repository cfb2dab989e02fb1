"""Attributes of local functions: types, defaults, and references in the body."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import onnx
import onnx_ir as ir
from pydantic import JsonValue

from ndld_flow.base.errors import RequestError
from ndld_flow.base.text import suggest
from ndld_flow.graph.edit.edited_model import EditedModel
from ndld_flow.graph.edit.function_names import IR_OF_DEFAULTS, need_ir_version
from ndld_flow.graph.edit.node_pieces import deep_nodes
from ndld_flow.models.scopes import function_address, node_label

_CHECKS: dict[ir.AttributeType, type | tuple[type, ...]] = {
    ir.AttributeType.INT: int,
    ir.AttributeType.FLOAT: (int, float),
    ir.AttributeType.STRING: str,
}
_OF_ELEMENT = {
    ir.AttributeType.INTS: ir.AttributeType.INT,
    ir.AttributeType.FLOATS: ir.AttributeType.FLOAT,
    ir.AttributeType.STRINGS: ir.AttributeType.STRING,
}
_LARGEST_FLOAT = 3.4028235e38
_SCHEMA_TYPES = {getattr(onnx.defs.OpSchema.AttrType, kind.name): kind for kind in (*_CHECKS, *_OF_ELEMENT)}


def attribute_types(function: ir.Function) -> dict[str, ir.AttributeType]:
    """Return attribute of the function -> type, where a default or a reference determines it."""
    told = {attr.name: attr.type for attr in function.attributes.values() if attr.value is not None}
    for node in deep_nodes(function.graph):
        for attr in node.attributes.values():
            if attr.is_ref():
                told.setdefault(attr.ref_attr_name or "", attr.type)
    return told


def typed_attribute(name: str, value: JsonValue, kind: ir.AttributeType | None) -> ir.Attr:
    """Return a recipe's value as an attribute of a type, or of the type that it suggests; booleans are 1 or 0.

    Raises `RequestError` for a value that the type cannot hold.
    """
    plain = [_untrue(each) for each in value] if isinstance(value, list) else _untrue(value)
    kind = kind or _kind_of(plain)
    if kind is None or not _fits(plain, kind):
        wanted = "a number, a text or a list of these" if kind is None else f"of type {kind.name}"
        raise RequestError(f"{value!r} cannot be the value of attribute {name!r}, which is {wanted}")
    return ir.convenience.convert_attribute(name, plain, kind)  # type: ignore[arg-type]


def set_attributes(
    edited: EditedModel,
    function: ir.Function,
    defaults: Mapping[str, JsonValue],
    references: Mapping[str, Mapping[str, str]],
) -> int:
    """Set attributes of a function with defaults (None: without), and let nodes of its body refer to them.

    Attributes that only `references` names get the node's own value as default. Returns how many references were made.
    Raises `RequestError` for unknown nodes and attributes, and for values and types that do not fit.
    """
    if "" in (*defaults, *(wanted for places in references.values() for wanted in places.values())):
        raise RequestError("the name of an attribute must not be empty")
    asked = [
        (_node_in(function, label), name, wanted)
        for label, places in references.items()
        for name, wanted in places.items()
    ]
    known = _types_asked(function, defaults, asked)
    for name, value in defaults.items():
        kind = known.get(name)
        if value is None:
            function.attributes[name] = ir.Attr(name, kind or ir.AttributeType.UNDEFINED, None)
        else:
            function.attributes[name] = typed_attribute(name, value, kind)
    for node, name, wanted in asked:
        _refer(function, node, name, wanted, known[wanted])
    if any(attribute.value is not None for attribute in function.attributes.values()):
        need_ir_version(edited, IR_OF_DEFAULTS)
    return len(asked)


def _types_asked(
    function: ir.Function, defaults: Mapping[str, JsonValue], asked: Sequence[tuple[ir.Node, str, str]]
) -> dict[str, ir.AttributeType]:
    """Return attribute of the function -> type, including the new references."""
    known = attribute_types(function)
    for node, name, wanted in asked:
        kind = _type_at(function, node, name) or known.get(wanted) or _kind_of(_untrue(defaults.get(wanted)))
        if kind is None:
            raise RequestError(f"the type of {wanted!r} is unknown: give it a default by `attributes`")
        if known.setdefault(wanted, kind) != kind:
            label = node_label(node)
            raise RequestError(f"{wanted!r} is {known[wanted].name}, but {name!r} of {label!r} is {kind.name}")
    return known


def _refer(function: ir.Function, node: ir.Node, name: str, wanted: str, kind: ir.AttributeType) -> None:
    own = node.attributes.get(name)
    if wanted not in function.attributes:
        value = None if own is None or own.is_ref() else own.value
        function.attributes[wanted] = ir.Attr(wanted, kind, value)
    node.attributes[name] = ir.RefAttr(name, wanted, kind)


def _node_in(function: ir.Function, label: str) -> ir.Node:
    nodes = {node_label(node): node for node in deep_nodes(function.graph)}
    if label not in nodes:
        hint = suggest(label, nodes) or "it has no nodes"
        raise RequestError(f"there is no node {label!r} in {function_address(function)}; {hint}")
    return nodes[label]


def _type_at(function: ir.Function, node: ir.Node, name: str) -> ir.AttributeType | None:
    """Return the type of a node's attribute: its present one, or that of the operator's schema."""
    if name in node.attributes:
        return node.attributes[name].type
    version = function.opset_imports.get(node.domain, 1)
    try:
        schema = onnx.defs.get_schema(node.op_type, version, node.domain)
    except onnx.defs.SchemaError:
        return None
    if name not in schema.attributes:
        hint = suggest(name, schema.attributes) or "it has none"
        raise RequestError(f"{node.op_type} has no attribute {name!r}; {hint}")
    return _SCHEMA_TYPES.get(schema.attributes[name].type)


def _untrue(value: JsonValue) -> JsonValue:
    return int(value) if isinstance(value, bool) else value


def _kind_of(value: JsonValue) -> ir.AttributeType | None:
    if isinstance(value, list):
        inner = [_kind_of(each) for each in value]
        kinds = {kind for kind in inner if kind is not None}
        numbers = {ir.AttributeType.INT, ir.AttributeType.FLOAT}
        if kinds == numbers:
            return ir.AttributeType.FLOATS
        return next((many for many, one in _OF_ELEMENT.items() if kinds == {one}), None)
    return next((kind for kind, types in _CHECKS.items() if isinstance(value, types)), None)


def _fits(value: JsonValue, kind: ir.AttributeType) -> bool:
    if kind in _OF_ELEMENT:
        return isinstance(value, list) and all(_fits(each, _OF_ELEMENT[kind]) for each in value)
    return kind in _CHECKS and isinstance(value, _CHECKS[kind]) and _in_range(value, kind)


def _in_range(value: JsonValue, kind: ir.AttributeType) -> bool:
    """Return the number as ONNX stores it: integers in 64 bits, others as fp32."""
    if kind == ir.AttributeType.INT:
        return isinstance(value, int) and -(2**63) <= value < 2**63
    return not isinstance(value, int | float) or not math.isfinite(value) or abs(value) <= _LARGEST_FLOAT
