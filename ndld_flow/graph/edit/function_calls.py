"""Calls of local functions: adding, removing and renaming."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import onnx_ir as ir
from pydantic import JsonValue

from ndld_flow.base.errors import RequestError
from ndld_flow.base.text import suggest
from ndld_flow.graph.edit.edited_model import EditedModel
from ndld_flow.graph.edit.function_attributes import attribute_types, typed_attribute
from ndld_flow.graph.edit.function_names import Imports, drop_unused_domains, new_function_name
from ndld_flow.graph.edit.nesting import Nesting
from ndld_flow.graph.edit.node_pieces import deep_nodes
from ndld_flow.graph.edit.schemas import Schemas, check_inputs
from ndld_flow.models.files import all_graphs
from ndld_flow.models.scopes import function_address, node_label


@dataclass(frozen=True)
class Call:
    """A call to add."""

    inputs: Sequence[str]
    """Names of the input tensors; empty for an omitted input."""
    outputs: Sequence[str]
    """Names of the outputs; generated where there are none."""
    attributes: Mapping[str, JsonValue]
    name: str


def calls_of(model: ir.Model, function: ir.Function) -> list[ir.Node]:
    """Return the nodes that call a function, anywhere in the model."""
    return [node for graph in all_graphs(model) for node in graph if node.op_identifier() == function.identifier()]


def add_call(edited: EditedModel, function: ir.Function, call: Call, scope: str) -> ir.Node:
    """Add a node that calls a function to a graph. Raises `RequestError` for a call that does not fit the function."""
    graph, address = edited.graph(scope), function_address(function)
    if _calls_itself(edited.model, function, graph):
        raise RequestError(f"{address} calls the function of {scope!r}: functions cannot be recursive")
    for what, given, own in (("inputs", call.inputs, function.inputs), ("outputs", call.outputs, function.outputs)):
        if len(given) > len(own):
            names = ", ".join(value.name or "" for value in own)
            raise RequestError(f"{address} has {len(own)} {what} ({names}), and {len(given)} are given")
    nesting = Nesting(edited.model)
    inputs = [nesting.value(name, graph) if name else None for name in call.inputs]
    check_inputs(Schemas(edited.model).of_function(function), inputs)
    _check_new(edited, [name for name in (*call.outputs, call.name) if name])
    wishes = zip(call.outputs or [""] * len(function.outputs), function.outputs, strict=False)
    outputs = [name or edited.fresh_name(f"{function.name}_{value.name}") for name, value in wishes]
    node = ir.Node(
        function.domain,
        function.name,
        inputs,
        list(_attributes(function, call.attributes)),
        overload=function.overload,
        outputs=[ir.Value(name=name) for name in outputs],
        name=call.name or edited.fresh_name(function.name),
    )
    graph.append(node)
    graph.sort()
    Imports(edited.model).add(graph, {function.domain: 1})
    return node


def remove_functions(edited: EditedModel, functions: Sequence[ir.Function], leave_calls: bool) -> int:
    """Remove functions and return the number of calls that are left as custom operators.

    Raises `RequestError` for a function that is called, unless `leave_calls`.
    """
    gone = {function.graph for function in functions}
    inner = {graph for function in functions for graph in function.subgraphs()}
    left = 0
    for function in functions:
        calls = [node for node in calls_of(edited.model, function) if node.graph not in gone | inner]
        if calls and not leave_calls:
            raise RequestError(
                f"{function_address(function)} is called by {node_label(calls[0])!r}: inline it, or keep its calls as "
                "custom operators by `leave_calls: true`"
            )
        left += len(calls)
    for function in functions:
        del edited.model.functions[function.identifier()]
    drop_unused_domains(edited.model)
    return left


def rename_functions(edited: EditedModel, functions: Sequence[ir.Function], to: str) -> int:
    """Rename functions and their calls; returns the number of calls.

    Raises `RequestError` when two functions would get the same name.
    """
    model, count = edited.model, 0
    for function in functions:
        calls = calls_of(model, function)
        del model.functions[function.identifier()]
        name = new_function_name(model, _filled(to, function))
        for call in calls:
            call.domain, call.op_type = name
            Imports(model).add(call.graph, {name.domain: 1})
        function.domain, function.name = name
        model.functions[function.identifier()] = function
        count += len(calls)
    drop_unused_domains(model)
    return count


def _filled(to: str, function: ir.Function) -> str:
    # not `str.format`, with which a recipe could read attributes of objects and pad to a gigabyte
    filled = to.replace("{domain}", function.domain).replace("{name}", function.name)
    if set("{}") & set(filled):
        raise RequestError(f"`to`: {to!r} may contain `{{domain}}` and `{{name}}`, but no other braces")
    return filled


def _calls_itself(model: ir.Model, function: ir.Function, graph: ir.Graph) -> bool:
    """Return whether a call in a graph makes a function recursive."""
    home = next((each for each in model.functions.values() if graph in {each.graph, *each.subgraphs()}), None)
    return home is not None and function.identifier() in _callers_of(model, home)


def _callers_of(model: ir.Model, function: ir.Function) -> set[ir.OperatorIdentifier]:
    """Return a function and its direct and indirect callers."""
    found, grown = set[ir.OperatorIdentifier](), {function.identifier()}
    while grown > found:
        found = grown
        grown = found | {
            key
            for key, each in model.functions.items()
            if any(node.op_identifier() in found for node in deep_nodes(each.graph))
        }
    return found


def _check_new(edited: EditedModel, names: Sequence[str]) -> None:
    taken = edited.names()
    for name in names:
        if name in taken:
            raise RequestError(f"there is a node or tensor {name!r} in this model already; choose another name")
        taken.add(name)


def _attributes(function: ir.Function, given: Mapping[str, JsonValue]) -> Iterator[ir.Attr]:
    types = attribute_types(function)
    for name, value in given.items():
        if name not in function.attributes:
            nearest = suggest(name, function.attributes) or "it has none"
            raise RequestError(f"{function_address(function)} has no attribute {name!r}; {nearest}")
        yield typed_attribute(name, value, types.get(name))
