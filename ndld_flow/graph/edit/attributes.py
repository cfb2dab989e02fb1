"""Setting, resetting and removing attributes of nodes, with the types that the operators require."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import onnx_ir as ir

from ndld_flow.base.errors import RequestError
from ndld_flow.base.name_patterns import is_plain, name_matcher
from ndld_flow.base.text import suggest
from ndld_flow.graph.edit.dtype_names import parse_dtype
from ndld_flow.graph.edit.edited_model import EditedModel
from ndld_flow.graph.edit.new_tensors import make_tensor
from ndld_flow.graph.edit.schemas import Schemas, declared_attribute
from ndld_flow.graph.edit.shared_settings import TensorValue
from ndld_flow.graph.edit.value_grammar import Array, Value, parse_value, to_array
from ndld_flow.graph.edit.wiring import errors_of
from ndld_flow.models.op_reference import AttributeReference, OperatorVersion

Given: TypeAlias = "bool | int | float | str | Sequence[Any] | TensorValue"
"""A YAML value, text in the grammar of values, or a tensor."""

_ELEMENTS = {"int": ir.DataType.INT64, "float": ir.DataType.FLOAT, "string": ir.DataType.STRING}
_KINDS = {bool: "int", int: "int", float: "float", str: "string"}


def make_attributes(
    operator: OperatorVersion | None, given: Mapping[str, Given], present: Mapping[str, ir.Attr]
) -> list[ir.Attr]:
    """Return attributes for a node that has the `present` ones.

    Raises `RequestError` for a name or a type that the operator does not have. An attribute of an unknown operator has
    the type of the present one, or the one that its value suggests.
    """
    attributes = []
    for name, value in given.items():
        try:
            kind = _kind(operator, name, value, present)
            attributes.append(_make(name, value, kind))
        except RequestError as error:
            raise RequestError(f"attribute `{name}`: {error}") from None
    return attributes


def _kind(operator: OperatorVersion | None, name: str, value: Given, present: Mapping[str, ir.Attr]) -> str:
    """`int`, `floats`, `tensor`, ..."""
    declared = "" if operator is None else declared_attribute(operator, name).type
    if declared not in ("", "undefined"):  # local functions may leave the type undefined
        return declared
    if name in present:
        return present[name].type.name.lower()
    return _suggested(_read(value))


def _suggested(value: Given) -> str:
    if isinstance(value, Sequence) and not isinstance(value, str):
        kinds = {_KINDS.get(type(element), "") for element in value}
        if kinds == {"int", "float"}:
            return "floats"
        if len(kinds) != 1 or kinds == {""}:
            raise RequestError("its type is ambiguous; give a list of numbers or of texts, or a tensor as {value: ...}")
        return f"{kinds.pop()}s"
    return _KINDS.get(type(value), "tensor")


def _read(value: Given) -> Given:
    """Return the value of a text; an unquoted word is a text itself."""
    if not isinstance(value, str):
        return value
    try:
        return parse_value(value)
    except RequestError:
        if value[:1] in ("[", "'", '"'):
            raise
        return value


def _make(name: str, value: Given, kind: str) -> ir.Attr:
    element = kind.removesuffix("s")
    if kind == "tensor":
        tensor = value if isinstance(value, TensorValue) else TensorValue(value=_listed(value))
        return ir.AttrTensor(name, make_tensor(tensor, name))
    if element not in _ELEMENTS:
        raise RequestError(f"its type is {kind.replace('_', ' ')}, which settings cannot express")
    array = _array(value, element)
    if array.ndim != (kind != element):
        expected = f"a list of {element}s" if kind != element else f"one {element}"
        raise RequestError(f"it is {expected}; the value has the shape {list(array.shape)}")
    return ir.Attr(name, ir.AttributeType[kind.upper()], tuple(array.tolist()) if array.ndim else array.item())


def _array(value: Given, element: str) -> Array:
    if isinstance(value, TensorValue):
        return make_tensor(value, "", _ELEMENTS[element]).numpy()
    parsed = _parsed(value, element)
    return to_array(_numbers(parsed) if element == "int" else parsed, _ELEMENTS[element])


def _listed(value: Any) -> Any:  # noqa: ANN401 - YAML's value
    return list(value) if isinstance(value, tuple) else value


def _parsed(value: Any, element: str) -> Value:  # noqa: ANN401 - YAML's value
    if not isinstance(value, str):
        parsed: Value = _listed(value)
        return parsed
    if element == "string" and value[:1] not in ("[", "'", '"'):
        return value
    if element == "int":
        try:
            return int(parse_dtype(value))
        except RequestError:
            pass
    return parse_value(value)


def _numbers(value: Value) -> Value:
    """Return the value with true and false as 1 and 0, as ONNX stores them."""
    if isinstance(value, list):
        return [_numbers(element) for element in value]
    return int(value) if isinstance(value, bool) else value


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
