"""Addresses of a model's graphs: `""` is the main one, `If_0/then_branch` a subgraph, `domain::Name` a function."""

from __future__ import annotations

from collections.abc import Iterator

import onnx_ir as ir

_GRAPHS = (ir.AttributeType.GRAPH, ir.AttributeType.GRAPHS)


def scopes_of(model: ir.Model) -> dict[str, ir.Graph]:
    """Return address -> graph: the main graph, each subgraph after the graph that contains it, then local functions.

    `If_0/then_branch`, `loop/body/If_3/else_branch`, `domain::Name`, `domain::Name/If_0/then_branch`. The address of a
    node without a name is its first output; graphs in a list attribute are `branches0`, `branches1`; the second of
    equal addresses gets `#2`.
    """
    graphs: dict[str, ir.Graph] = {"": model.graph}
    _add_subgraphs(graphs, model.graph, "")
    for function in model.functions.values():
        address = function_address(function)
        graphs[address] = function.graph
        _add_subgraphs(graphs, function.graph, address)
    return graphs


def function_address(function: ir.Function) -> str:
    """Return `domain::Name`, with `:overload` if there is one."""
    overload = f":{function.overload}" if function.overload else ""
    return f"{function.domain}::{function.name}{overload}"


def own_subgraphs(node: ir.Node) -> Iterator[tuple[str, ir.Graph]]:
    """Yield (attribute, graph) of a node's direct subgraphs."""
    for attribute in node.attributes.data.values():  # `data` is much faster, and this runs for every node
        if attribute.type not in _GRAPHS or attribute.is_ref():
            continue
        if attribute.type == ir.AttributeType.GRAPH:
            yield attribute.name, attribute.as_graph()
        else:
            yield from ((f"{attribute.name}{number}", graph) for number, graph in enumerate(attribute.as_graphs()))


def inner_graphs(graph: ir.Graph) -> list[ir.Graph]:
    """Return all subgraphs of a graph, each before those inside it."""
    graphs: list[ir.Graph] = []
    for node in graph:
        for _, inner in own_subgraphs(node):
            graphs += (inner, *inner_graphs(inner))
    return graphs


def node_label(node: ir.Node) -> str:
    """Return a node's name, or its first output if it has none."""
    return node.name or next((value.name for value in node.outputs if value.name), "") or node.op_type


def _add_subgraphs(graphs: dict[str, ir.Graph], graph: ir.Graph, address: str) -> None:
    for node in graph:
        for attribute, inner in own_subgraphs(node):
            wish = f"{address}/{node_label(node)}/{attribute}".lstrip("/")
            inner_address, number = wish, 1
            while inner_address in graphs:
                number += 1
                inner_address = f"{wish}#{number}"
            graphs[inner_address] = inner
            _add_subgraphs(graphs, inner, inner_address)
