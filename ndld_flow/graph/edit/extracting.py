"""Extraction of a part of a model, or of a local function, as a separate model.

Tensors, nodes and weights of the part stay the same objects.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

import onnx_ir as ir
from onnx_ir.passes.common import RemoveUnusedFunctionsPass
from pydantic import JsonValue

from ndld_flow.base.errors import RequestError, UnknownNameError, check_known
from ndld_flow.graph.edit.edited_model import FIRST_WITH_FREE_INITIALIZERS, EditedModel
from ndld_flow.graph.edit.functions import attribute_types, find_function, typed_attribute
from ndld_flow.graph.edit.graph_edits import drop_nodes
from ndld_flow.graph.edit.interface import infer_edges, parse_tensor_type, type_edges
from ndld_flow.graph.edit.node_groups import (
    Neighbourhood,
    copy_graph,
    copy_nodes,
    copy_value,
    deep_nodes,
    outermost,
    outputs_of,
    reached,
    read_in_nodes,
)
from ndld_flow.graph.edit.schemas import Imports
from ndld_flow.graph.sanitize.edits import RANDOM
from ndld_flow.models.files import all_graphs
from ndld_flow.models.nodes import (
    captured_by,
    captured_values,
    free_name,
    function_address,
    is_used,
    node_label,
    read_values,
    values_of,
)


class ConstantNodes:
    """The nodes of a model that depend on no input. Custom operators and functions are never constant."""

    def __init__(self, model: ir.Model) -> None:
        self._around = Neighbourhood(model)
        start: dict[ir.Node, None] = {}
        for graph in all_graphs(model):
            start.update((node, None) for node in graph if node.domain or node.op_type in RANDOM)
            inputs = (value for value in graph.inputs if not value.is_initializer())
            start.update((reader, None) for value in inputs for reader in self._around.readers(value))
        self._varying = reached(start, self._around.consumers)

    def has(self, node: ir.Node) -> bool:
        return node not in self._varying

    def produces(self, value: ir.Value) -> bool:
        """Return whether a constant node produces it."""
        producer = value.producer()
        return producer is not None and self.has(producer)

    def before(self, nodes: Iterable[ir.Node]) -> list[ir.Node]:
        """Return the constant nodes that nodes depend on, in the same graph or outer ones."""
        start = dict.fromkeys(near for node in nodes for near in self._constant_producers(node))
        return list(reached(start, self._constant_producers))

    def _constant_producers(self, node: ir.Node) -> list[ir.Node]:
        return [near for near in self._around.producers(node) if self.has(near)]


@dataclass(frozen=True)
class Part:
    """Nodes of one graph that become a model."""

    graph: ir.Graph
    nodes: list[ir.Node]
    inputs: list[ir.Value]
    """Tensors that they read from other nodes, except constants, which are included."""
    outputs: list[ir.Value]
    constants: list[ir.Node]
    """Constant nodes of outer graphs that they depend on."""


def part_of_nodes(edited: EditedModel, nodes: Iterable[ir.Node]) -> Part:
    """Return the part that consists of nodes of one graph and their constants.

    Its inputs are the tensors that they read from other nodes, its outputs those that other nodes read. Inputs and
    outputs of the graph come first, in its order.
    Raises `RequestError` for nodes of several graphs, and for unused outputs.
    """
    chosen = outermost(nodes)
    graph = common_graph(edited, chosen)
    constants = ConstantNodes(edited.model)
    read_outside = [value for value in outputs_of(chosen, Neighbourhood(edited.model)) if not constants.produces(value)]
    own = [value for value in graph.outputs if value.producer() in chosen]
    outputs = list(dict.fromkeys([*own, *read_outside]))
    if not outputs:
        raise RequestError("the outputs of the selected nodes are unused: give the outputs of the part with `outputs`")
    return _part(graph, {*chosen, *constants.before(chosen)}, outputs, constants)


def part_between(edited: EditedModel, scope: str, inputs: Sequence[str], outputs: Sequence[str]) -> Part:
    """Return everything that tensors of a graph depend on, back to `inputs` or to the inputs of the model.

    Raises `RequestError` for unknown names, for inputs that do not suffice, and for inputs that nothing needs.
    """
    graph = edited.graph(scope)
    last = [edited.value(name, scope) for name in dict.fromkeys(outputs)]
    outer = {value.name: value for value in captured_by(graph)}
    first = [outer[name] if name in outer else edited.value(name, scope) for name in dict.fromkeys(inputs)]
    for value in last:
        if value.producer() is None or value in first:
            raise RequestError(f"output {value.name!r}: there is no node between the inputs and this tensor")
    part = _part(graph, _needed(graph, last, set(first)), last, ConstantNodes(edited.model))
    if not first:
        return part
    _check_inputs(first, part)
    return Part(graph, part.nodes, first, last, part.constants)


def part_of_body(edited: EditedModel, scope: str) -> Part:
    """Return a whole subgraph: its own inputs, then the outer tensors that it reads."""
    graph = edited.graph(scope)
    part = _part(graph, set(graph), list(graph.outputs), ConstantNodes(edited.model))
    return Part(graph, part.nodes, list(dict.fromkeys([*graph.inputs, *part.inputs])), part.outputs, part.constants)


def rest_without(edited: EditedModel, nodes: Iterable[ir.Node]) -> Part:
    """Return the main graph without some nodes, whose inputs become outputs and whose outputs become inputs.

    Raises `RequestError` for nodes outside the main graph, and if nothing is left.
    """
    gone = outermost(nodes)
    graph = edited.model.graph
    if any(node.graph is not graph for node in gone):
        raise RequestError('only nodes of the main graph can be cut off; add `scope: ""` to `select`')
    constants = ConstantNodes(edited.model)
    removed = set(gone)
    kept = set(graph) - removed
    own = [value for value in graph.outputs if value.producer() not in gone]
    read = [value for value in captured_values(node for node in graph if node in removed) if value.producer() in kept]
    outputs = list(dict.fromkeys([*own, *(value for value in read if not constants.produces(value))]))
    if not any(value.producer() in kept for value in outputs):
        raise RequestError("nothing is left of the model when these nodes are cut off")
    # Constants that only these nodes read are removed too; those that the rest reads stay, even if selected.
    remaining = {node for node in kept if not constants.has(node) or any(value in outputs for value in node.outputs)}
    part = _part(graph, {*remaining, *constants.before(remaining)}, outputs, constants)
    unread = [value for value in graph.inputs if not value.uses() and not value.is_initializer()]
    return Part(graph, part.nodes, list(dict.fromkeys([*part.inputs, *unread])), outputs, [])


def keep_only(edited: EditedModel, part: Part, types: Mapping[str, str]) -> None:
    """Make a part the main graph, and remove functions that it does not call.

    Raises `RequestError` if dtype or shape of a new input or output is not known, and for nodes of a function that
    take attributes from its calls.
    """
    for inner in deep_nodes(part.nodes):
        if any(attribute.is_ref() for attribute in inner.attributes.values()):
            raise RequestError(
                f"{node_label(inner)!r} refers to attributes of its function's calls: use `extract_function` first"
            )
    type_edges(edited.model, [*part.inputs, *part.outputs], types)
    graph = part.graph
    imports = dict(Imports(edited.model).of(graph))
    graph.outputs[:] = part.outputs
    brought = _bring_constants(graph, part)
    inputs = _as_inputs(graph, part)
    kept = {*part.nodes, *brought}
    drop_nodes(node for node in graph if node not in kept)
    # Weights that are also inputs stay inputs; in IR version 3 all are.
    overridable = [value for value in graph.inputs if value.is_initializer() and is_used(value)]
    graph.inputs[:] = list(dict.fromkeys([*inputs, *overridable]))
    for name in [name for name, value in graph.initializers.items() if not is_used(value)]:
        del graph.initializers[name]
    make_main(edited.model, graph, imports)


def make_main(model: ir.Model, graph: ir.Graph, opset_imports: Mapping[str, int]) -> None:
    """Make a graph the main one, with these opsets, and remove unused functions."""
    imports = {**model.opset_imports, **opset_imports}
    graph.opset_imports.clear()
    graph.opset_imports.update(imports)
    graph.name = graph.name or model.graph.name or "main"  # subgraphs may be unnamed
    model.graph = graph
    RemoveUnusedFunctionsPass()(model)  # type: ignore[no-untyped-call]
    if any(not value.is_graph_input() for value in graph.initializers.values()):
        model.ir_version = max(model.ir_version or 0, FIRST_WITH_FREE_INITIALIZERS)


def common_graph(edited: EditedModel, nodes: Sequence[ir.Node]) -> ir.Graph:
    """Return the graph of nodes. Raises `RequestError` for nodes of several graphs."""
    graphs = dict.fromkeys(node.graph for node in nodes)
    if len(graphs) > 1:
        shown = ", ".join(repr(address) for address, graph in edited.scopes().items() if graph in graphs)
        raise RequestError(f"the selected nodes are in several graphs ({shown}); choose one with `scope` in `select`")
    graph = next(iter(graphs))
    assert isinstance(graph, ir.Graph)
    return graph


def _part(graph: ir.Graph, nodes: Collection[ir.Node], outputs: list[ir.Value], constants: ConstantNodes) -> Part:
    """Return the part of these nodes; those in outer graphs are constants."""
    kept = [node for node in graph if node in nodes]
    outer = [node for node in constants.before(kept) if node.graph is not graph]
    read = [
        value
        for value in captured_values([*kept, *outer])
        if not value.is_initializer() and not (value.graph is not graph and constants.produces(value))
    ]
    own = [value for value in graph.inputs if value in read]
    return Part(graph, kept, list(dict.fromkeys([*own, *read])), outputs, outer)


def _needed(graph: ir.Graph, outputs: Sequence[ir.Value], stop: Collection[ir.Value]) -> set[ir.Node]:
    """Return the nodes of a graph that tensors depend on, without passing those of `stop`."""
    waiting, needed = list(outputs), set[ir.Node]()
    while waiting:
        value = waiting.pop()
        node = value.producer()
        if value not in stop and node is not None and node.graph is graph and node not in needed:
            needed.add(node)
            waiting += read_values(node)
    return needed


def _check_inputs(inputs: Sequence[ir.Value], part: Part) -> None:
    missing = [value for value in part.inputs if value not in inputs]
    if missing:
        reader = next(node for node in part.nodes if missing[0] in read_values(node))
        raise RequestError(
            f"`inputs` do not suffice: {', '.join(repr(value.name) for value in missing)} must also be given "
            f"({missing[0].name!r} is read by node {node_label(reader)!r}); add them, or take a tensor after them"
        )
    read = captured_values(part.nodes)
    for value in inputs:
        if value not in read:
            raise RequestError(
                f"input {value.name!r} is not needed for these outputs; needed are: "
                f"{', '.join(repr(needed.name) for needed in part.inputs)}. Remove it."
            )


def _bring_constants(graph: ir.Graph, part: Part) -> list[ir.Node]:
    """Copy the outer constants that a part reads into its graph; returns the nodes among them."""
    taken = {value.name or "" for value in values_of(graph)}
    read: dict[ir.Value, ir.Value] = {}
    for value in captured_values([*part.nodes, *part.constants]):
        if value.is_initializer() and value.graph is not graph and value not in part.inputs:
            read[value] = copy_value(value)
            read[value].name = free_name(value.name or "constant", taken)
            graph.register_initializer(read[value])
    copies = copy_nodes(part.constants, read)
    for value in copies.values.values():
        if value.name:
            value.name = free_name(value.name, taken)
    graph.extend(copies.nodes)
    read_in_nodes(part.nodes, read | copies.values)
    return copies.nodes


def _as_inputs(graph: ir.Graph, part: Part) -> list[ir.Value]:
    """Make the part's inputs inputs of its graph: outputs of nodes and outer tensors become new tensors."""
    taken = {value.name or "" for value in values_of(graph) if value not in part.inputs}
    read: dict[ir.Value, ir.Value] = {}
    for value in part.inputs:
        if not any(value is own for own in graph.inputs) or value.is_initializer():
            read[value] = ir.Value(
                name=free_name(value.name or "input", taken),
                type=value.type,
                shape=value.shape,
                doc_string=value.doc_string,
                metadata_props=dict(value.metadata_props),
            )
    read_in_nodes(part.nodes, read)
    return [read.get(value, value) for value in part.inputs]


def keep_function(
    edited: EditedModel, address: str, call: str | None, attributes: Mapping[str, JsonValue], types: Mapping[str, str]
) -> None:
    """Make a function's body the main graph, and remove functions that it does not call.

    Raises `RequestError` for an unknown function, call, attribute or tensor, for an attribute without a value, and
    if dtype or shape of an input or output is not known.
    """
    function = find_function(edited.model, address)
    site = _call_of(edited, function, call)
    graph = copy_graph(function.graph, attributes=_attributes(function, site, attributes))
    graph.name = function.name
    for value in (*graph.inputs, *graph.outputs):
        if value.name in types:
            value.type, value.shape = parse_tensor_type(types[value.name or ""])
    if site is not None:
        # Inputs have the types and shapes of a call, and so do outputs without a type.
        pairs = [*_pairs(graph.inputs, site.inputs), *_pairs(graph.outputs, site.outputs)]
        infer_edges([outer for _, outer in pairs], edited.model)
        for own, outer in pairs:
            if own.type is None:
                own.type, own.shape = outer.type, outer.shape
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
    call = next((node for node in calls if wanted == node_label(node)), None)
    if call is None:
        what = f"no node {wanted!r} calls {function_address(function)}"
        raise UnknownNameError(what, wanted, map(node_label, calls), "nothing calls it")
    return call


def _attributes(function: ir.Function, site: ir.Node | None, given: Mapping[str, JsonValue]) -> dict[str, ir.Attr]:
    """Return attribute -> value: the given one, that of the call, or the default."""
    kinds = attribute_types(function)
    check_known(given, function.attributes, f"`attributes`: {function_address(function)} has no attribute")
    attributes: dict[str, ir.Attr] = {}
    for name, default in function.attributes.items():
        called = site.attributes.get(name) if site is not None else None
        if name in given:
            attributes[name] = typed_attribute(name, given[name], kinds.get(name))
        elif called is not None and not called.is_ref():
            attributes[name] = called
        elif default.value is not None:
            attributes[name] = default
        elif site is None or called is not None:
            raise RequestError(f"attribute {name!r} has no value: give it with `attributes: {{{name}: ...}}`")
    return attributes


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
