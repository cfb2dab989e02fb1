"""Merging of the local functions of two models."""

from __future__ import annotations

import onnx_ir as ir

from ndld_flow.base.errors import RequestError
from ndld_flow.models.files import all_graphs
from ndld_flow.models.scopes import function_address
from ndld_flow.models.unique_names import free_name

_Key = tuple[str, str, str]
"""Domain, name and overload of a function."""


def join_functions(model: ir.Model, guest: ir.Model, name: str) -> None:
    """Add a guest's functions to a model. One of the same name and body is not added twice; one of another body gets
    another name, as do those that call it.

    Raises `RequestError` when a function of one model is a custom operator of the other.
    """
    _check_custom_operators(model, guest, name)
    _rename(model, guest, _differing(model, guest))
    for key, function in guest.functions.items():
        model.functions.setdefault(key, function)


def _differing(model: ir.Model, guest: ir.Model) -> list[_Key]:
    """Return the guest's functions that differ from the model's of the same name, also by what they call."""
    shared = [key for key in guest.functions if key in model.functions]
    different = {key for key in shared if _text(guest.functions[key]) != _text(model.functions[key])}
    while True:
        callers = {key for key in shared if key not in different and different & _called(guest.functions[key])}
        if not callers:
            return [key for key in shared if key in different]
        different |= callers


def _rename(model: ir.Model, guest: ir.Model, keys: list[_Key]) -> None:
    taken = {function.name for each in (model, guest) for function in each.functions.values()}
    renamed = {key: free_name(key[1], taken) for key in keys}
    for key, found in renamed.items():
        function = guest.functions.pop(key)
        function.name = found
        guest.functions[function.identifier()] = function
    for graph in all_graphs(guest):
        for node in graph:
            node.op_type = renamed.get(node.op_identifier(), node.op_type)


def _check_custom_operators(model: ir.Model, guest: ir.Model, name: str) -> None:
    for one, other in ((model, guest), (guest, model)):
        called = {node.op_identifier() for graph in all_graphs(other) for node in graph}
        for key, function in one.functions.items():
            if key in called and key not in other.functions:
                whose = "this model" if one is model else f"model {name!r}"
                raise RequestError(
                    f"{function_address(function)} is a local function of {whose} and a custom operator of the other, "
                    "which would then call the function: rename or inline the function first"
                )


def _called(function: ir.Function) -> set[_Key]:
    graphs = (function.graph, *function.subgraphs())
    return {node.op_identifier() for graph in graphs for node in graph}


def _text(function: ir.Function) -> bytes:
    return bytes(ir.serde.serialize_function(function).SerializeToString(deterministic=True))
