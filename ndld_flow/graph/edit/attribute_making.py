"""Attributes of nodes from settings, with the types that the operators require."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import onnx_ir as ir

from ndld_flow.base.errors import RequestError
from ndld_flow.graph.edit.dtype_names import parse_dtype
from ndld_flow.graph.edit.new_tensors import make_tensor
from ndld_flow.graph.edit.schemas import declared_attribute
from ndld_flow.graph.edit.shared_settings import TensorValue
from ndld_flow.graph.edit.value_grammar import Array, Value, parse_value, to_array
from ndld_flow.models.op_reference import OperatorVersion

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
