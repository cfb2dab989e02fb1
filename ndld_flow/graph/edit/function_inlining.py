"""Inlining of local functions at their calls.

onnx_ir's InlinePass renames the model's input where a function hands it through to an output, and takes all functions
that were inlined away; here the model's inputs and outputs stay, and as many names as possible.
"""

from __future__ import annotations

from collections.abc import Sequence
from graphlib import CycleError

import onnx_ir as ir

from ndld_flow.base.errors import RequestError
from ndld_flow.graph.edit.cloning import Renaming, copy_nodes
from ndld_flow.graph.edit.edited_model import EditedModel
from ndld_flow.graph.edit.function_names import Imports, callees_first, drop_unused_domains, names_of
from ndld_flow.graph.edit.node_pieces import deep_nodes, hand_over
from ndld_flow.graph.edit.removal import remove_node
from ndld_flow.models.files import all_graphs
from ndld_flow.models.scopes import function_address, node_label
from ndld_flow.models.unique_names import free_name, identifier

_GRAPHS = (ir.AttributeType.GRAPH, ir.AttributeType.GRAPHS)


def inline_functions(edited: EditedModel, functions: Sequence[ir.Function], keep: bool) -> int:
    """Inline functions at their calls, also in other functions; returns the number of calls.

    They are removed then, unless `keep`. Raises `RequestError` when they call each other in a cycle, want another
    version of an operator set than the caller has, or get a graph as an attribute.
    """
    model = edited.model
    chosen = {function.identifier(): function for function in functions}
    kept = [graph for graph in all_graphs(model) if keep or graph not in {f.graph for f in functions}]
    inlining = _Inlining(model, chosen, {name for graph in kept for name in names_of(graph)})
    for function in _in_order(chosen):
        inlining.calls_in(function.graph)
    calls = sum(
        inlining.calls_in(graph)
        for graph in (model.graph, *(f.graph for key, f in model.functions.items() if key not in chosen))
    )
    if not keep:
        for key in chosen:
            del model.functions[key]
        drop_unused_domains(model)
    return calls


def _in_order(chosen: dict[ir.OperatorIdentifier, ir.Function]) -> list[ir.Function]:
    try:
        return callees_first(chosen)
    except CycleError as error:
        told = " -> ".join(function_address(chosen[key]) for key in error.args[1])
        raise RequestError(f"functions that call each other in a cycle cannot be inlined: {told}") from None


class _Inlining:
    def __init__(self, model: ir.Model, chosen: dict[ir.OperatorIdentifier, ir.Function], taken: set[str]) -> None:
        self._chosen = chosen
        self._taken = taken
        self._renaming = Renaming(taken, taken)
        self._imports = Imports(model)
        self._graphs = list(all_graphs(model))

    def calls_in(self, graph: ir.Graph) -> int:
        """Inline the calls in a graph and its subgraphs; bodies of chosen functions must be free of calls already."""
        calls = [node for node in deep_nodes(graph) if node.op_identifier() in self._chosen]
        for call in calls:
            self._inline(call, self._chosen[call.op_identifier()])
        return len(calls)

    def _inline(self, call: ir.Node, function: ir.Function) -> None:
        graph = call.graph
        assert isinstance(graph, ir.Graph)
        self._check(call, function)
        given = (*call.inputs, *[None] * len(function.inputs))
        read = dict(zip(function.inputs, given, strict=False))
        defaults = {name: attr for name, attr in function.attributes.items() if attr.value is not None}
        copies = copy_nodes(function.graph, read, {**defaults, **call.attributes})
        self._renaming.rename(copies.nodes)
        self._renaming.take_made(self._taken)
        for node in deep_nodes(copies.nodes):
            node.metadata_props.update({**call.metadata_props, **node.metadata_props})
            for value in node.outputs:
                value.shape = None  # the function may have been exported for other shapes
        graph.insert_before(call, copies.nodes)
        for old, inner in zip(call.outputs, function.outputs, strict=False):
            new = copies.values.get(inner) or self._copied(call, function, read.get(inner), old)
            hand_over(old, new, set(), self._graphs)
        remove_node(call)
        self._imports.add(graph, function.opset_imports)

    def _copied(self, call: ir.Node, function: ir.Function, value: ir.Value | None, old: ir.Value) -> ir.Value:
        """Return a separate output for an input that a function returns unchanged."""
        if value is None:
            raise RequestError(
                f"{node_label(call)!r} omits an input that {function_address(function)} returns as "
                f"{old.name!r}: it cannot be inlined"
            )
        name = free_name(identifier(f"{old.name or 'copy'}_Identity"), self._taken)
        node = ir.node("Identity", [value], name=name)
        node.outputs[0].name = free_name(f"{name}_output", self._taken)
        assert isinstance(call.graph, ir.Graph)
        call.graph.insert_before(call, node)
        return node.outputs[0]

    def _check(self, call: ir.Node, function: ir.Function) -> None:
        address, where = function_address(function), node_label(call)
        if len(call.inputs) > len(function.inputs) or len(call.outputs) > len(function.outputs):
            raise RequestError(f"{where!r} has more inputs or outputs than {address}, which it calls")
        if any(attribute.type in _GRAPHS for attribute in call.attributes.values()):
            raise RequestError(f"{where!r} passes a graph to {address} as an attribute: it cannot be inlined")
        theirs = self._imports.of(call.graph)
        for domain in dict.fromkeys(node.domain for node in deep_nodes(function.graph)):
            version = function.opset_imports.get(domain)
            if version is not None and theirs.get(domain, version) != version:
                raise RequestError(
                    f"{address} is written for opset {version} of {domain or 'ai.onnx'} and called by {where!r} at "
                    f"opset {theirs[domain]}: convert the model's opset first"
                )
