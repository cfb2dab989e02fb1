"""Extraction of a local function as a model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import onnx_ir as ir
from pydantic import JsonValue

from ndld_flow.base.errors import RequestError
from ndld_flow.base.text import suggest
from ndld_flow.graph.edit.cloning import copy_graph
from ndld_flow.graph.edit.edited_model import EditedModel
from ndld_flow.graph.edit.extracting import make_main
from ndld_flow.graph.edit.function_names import find_function
from ndld_flow.graph.edit.node_pieces import deep_nodes
from ndld_flow.graph.edit.tensor_types import infer_edges, parse_tensor_type, type_edges
from ndld_flow.models.scopes import function_address, node_label


def keep_function(
    edited: EditedModel, address: str, call: str | None, attributes: Mapping[str, JsonValue], types: Mapping[str, str]
) -> None:
    """Make a function's body the main graph, and remove functions that it does not call.

    Raises `RequestError` for an unknown function, call, attribute or tensor, for an attribute without a value, and
    where dtype or shape of an input or output is not known.
    """
    function = find_function(edited.model, address)
    site = _call_of(edited, function, call)
    graph = copy_graph(function.graph, attributes=_attributes(function, site, attributes))
    graph.name = function.name
    for value in (*graph.inputs, *graph.outputs):
        if value.name in types:
            value.type, value.shape = parse_tensor_type(types[value.name or ""])
    if site is not None:
        _type_as_called(edited.model, graph, site)
    _drop_absent_inputs(graph, site)
    make_main(edited.model, graph, function.opset_imports)
    type_edges(edited.model, [*graph.inputs, *graph.outputs], types)


def _call_of(edited: EditedModel, function: ir.Function, wanted: str | None) -> ir.Node | None:
    """Return the requested call, or the first one; calls in the main graph come first because their types are known."""
    calls = [node for graph in edited.graphs() for node in graph if node.op_identifier() == function.identifier()]
    if wanted is None:
        if len(calls) > 1:
            edited.note(f"{function_address(function)} is called {len(calls)} times; taken as {node_label(calls[0])}")
        return next(iter(calls), None)
    found = next((node for node in calls if wanted == node_label(node)), None)
    if found is None:
        hint = suggest(wanted, map(node_label, calls)) or "nothing calls it"
        raise RequestError(f"no node {wanted!r} calls {function_address(function)}; {hint}")
    return found


def _attributes(function: ir.Function, site: ir.Node | None, given: Mapping[str, JsonValue]) -> dict[str, ir.Attr]:
    """Return attribute -> value: the given one, that of the call, or the default."""
    kinds = {
        attribute.ref_attr_name or "": attribute.type
        for node in deep_nodes(function.graph)
        for attribute in node.attributes.values()
        if attribute.is_ref()
    }
    for name in given:
        if name not in function.attributes:
            hint = suggest(name, function.attributes) or "it has none"
            raise RequestError(f"`attributes`: {function_address(function)} has no attribute {name!r}; {hint}")
    found: dict[str, ir.Attr] = {}
    for name, default in function.attributes.items():
        called = site.attributes.get(name) if site is not None else None
        if name in given:
            found[name] = _converted(name, given[name], kinds.get(name))
        elif called is not None and not called.is_ref():
            found[name] = called
        elif default.value is not None:
            found[name] = default
        elif site is None or called is not None:
            raise RequestError(f"attribute {name!r} has no value: give it by `attributes: {{{name}: ...}}`")
    return found


def _converted(name: str, value: JsonValue, kind: ir.AttributeType | None) -> ir.Attr:
    try:
        return ir.convenience.convert_attribute(name, value, kind)  # type: ignore[arg-type]
    except (ValueError, TypeError):
        raise RequestError(f"`attributes`: {value!r} is not a value of {name!r}") from None


def _type_as_called(model: ir.Model, graph: ir.Graph, site: ir.Node) -> None:
    """Take types and shapes of the inputs from a call, and of outputs without a type."""
    pairs = [*_pairs(graph.inputs, site.inputs), *_pairs(graph.outputs, site.outputs)]
    infer_edges([outer for _, outer in pairs], model)
    for own, outer in pairs:
        if own.type is None:
            own.type, own.shape = outer.type, outer.shape


def _pairs(own: Sequence[ir.Value], outer: Sequence[ir.Value | None]) -> list[tuple[ir.Value, ir.Value]]:
    return [(value, other) for value, other in zip(own, outer, strict=False) if other is not None]


def _drop_absent_inputs(graph: ir.Graph, site: ir.Node | None) -> None:
    """Remove optional inputs that the call omits."""
    given = len(graph.inputs) if site is None else len(site.inputs)
    absent = [
        value
        for index, value in enumerate(graph.inputs)
        if index >= given or (site is not None and site.inputs[index] is None)
    ]
    for value in absent:
        for use in tuple(value.uses()):
            use.node.replace_input_with(use.idx, None)
        graph.inputs.remove(value)
