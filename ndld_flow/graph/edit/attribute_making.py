"""Attributes of nodes from what a recipe says, in the type that the operator wants."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import onnx_ir as ir

from ndld_flow.base.errors import RequestError
from ndld_flow.graph.edit.dtype_words import dtype_of_word
from ndld_flow.graph.edit.schemas import declared_attribute
from ndld_flow.graph.edit.tensor_sources import SaidTensor, ValueSettings, Wanted, make_tensor
from ndld_flow.graph.edit.value_grammar import Array, Value, parse_value, to_array
from ndld_flow.models.op_reference import OperatorVersion

Given: TypeAlias = "bool | int | float | str | Sequence[Any] | ValueSettings"
"""A YAML value, or text in the grammar of values, or where a tensor comes from."""

_ELEMENTS = {"int": ir.DataType.INT64, "float": ir.DataType.FLOAT, "string": ir.DataType.STRING}
_KINDS = {bool: "int", int: "int", float: "float", str: "string"}


def make_attributes(
    operator: OperatorVersion | None, given: Mapping[str, Given], present: Mapping[str, ir.Attr]
) -> list[ir.Attr]:
    """Attributes for a node that has the `present` ones.

    Raises `RequestError` for a name or a type that the operator does not have. Of an operator that nobody knows, an
    attribute has the type of the present one, or the one that its value suggests.
    """
    made = []
    for name, value in given.items():
        try:
            kind = _kind(operator, name, value, present)
            made.append(_make(name, value, kind))
        except RequestError as error:
            raise RequestError(f"attribute `{name}`: {error}") from None
    return made


def _kind(operator: OperatorVersion | None, name: str, value: Given, present: Mapping[str, ir.Attr]) -> str:
    """`int`, `floats`, `tensor`, ..."""
    declared = "" if operator is None else declared_attribute(operator, name).type
    if declared not in ("", "undefined"):  # a local function need not say the type
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
            raise RequestError(
                "its type is not clear; lists of numbers or texts can be written, tensors as {value: ...}"
            )
        return f"{kinds.pop()}s"
    return _KINDS.get(type(value), "tensor")


def _read(value: Given) -> Given:
    """What text says that may be a value or a bare word."""
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
        said = SaidTensor(value) if isinstance(value, bool | int | float | str | Sequence) else value
        return ir.AttrTensor(name, make_tensor(said, Wanted(name)))
    if element not in _ELEMENTS:
        raise RequestError(f"it holds a {kind.replace('_', ' ')}, which cannot be written as a value")
    array = _array(value, element)
    if array.ndim != (kind != element):
        wants = f"a list of {element}s" if kind != element else f"one {element}"
        raise RequestError(f"it is {wants}; the value has the shape {list(array.shape)}")
    return ir.Attr(name, ir.AttributeType[kind.upper()], tuple(array.tolist()) if array.ndim else array.item())


def _array(value: Given, element: str) -> Array:
    if not isinstance(value, bool | int | float | str | Sequence):
        return make_tensor(value, Wanted("", _ELEMENTS[element])).numpy()
    said = _worded(value, element)
    return to_array(_numbers(said) if element == "int" else said, _ELEMENTS[element])


def _worded(value: Any, element: str) -> Value:  # noqa: ANN401 - YAML's value
    if not isinstance(value, str):
        return list(value) if isinstance(value, tuple) else value
    if element == "string" and value[:1] not in ("[", "'", '"'):
        return value
    if element == "int":
        try:
            return int(dtype_of_word(value))
        except RequestError:
            pass
    return parse_value(value)


def _numbers(value: Value) -> Value:
    """ONNX writes true and false as 1 and 0."""
    if isinstance(value, list):
        return [_numbers(element) for element in value]
    return int(value) if isinstance(value, bool) else value
