"""Match two models, graph by graph, from the outermost inwards."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator

import onnx_ir as ir

from ndld_flow.graph.diff.labels import Labelling
from ndld_flow.graph.diff.match_nodes import NodeMatching, join_nodes
from ndld_flow.graph.diff.match_ports import (
    match_equal_weights,
    match_inputs,
    match_outputs,
    match_outputs_by_source,
    match_read_values,
    match_weights,
    weights_of,
)
from ndld_flow.graph.diff.matches import Matches
from ndld_flow.graph.diff.pairs import Pair, unique_pairs
from ndld_flow.models.files import all_graphs
from ndld_flow.models.node_selection import op_name
from ndld_flow.models.scopes import node_label, own_subgraphs


def match_models(before: ir.Model, after: ir.Model) -> Matches:
    """Find out what of two models is one. The same with the sides exchanged."""
    matches = Matches()
    _match_functions(before, after, matches)
    functions = {
        function.identifier(): number
        for pair in matches.functions
        for function in pair
        if (number := matches.functions.number(function)) is not None
    }
    labelling = Labelling(matches, functions)
    matches.graphs.join(before.graph, after.graph, "name")
    _match_graphs([(before.graph, after.graph)], False, matches, labelling)
    bodies = [(one.graph, other.graph) for one, other in matches.functions]
    for pair in bodies:
        matches.graphs.join(*pair, "name")
    _match_graphs(bodies, True, matches, labelling)
    _match_moved(before, after, matches, labelling)
    return matches


def _match_functions(before: ir.Model, after: ir.Model, matches: Matches) -> None:
    mine, theirs = list(before.functions.values()), list(after.functions.values())
    for pair in unique_pairs(mine, theirs, lambda function: function.identifier()):
        matches.functions.join(*pair, "name")
    for pair in unique_pairs(matches.functions.lone(mine), matches.functions.lone(theirs), _function_shape):
        matches.functions.join(*pair, "structure")


def _function_shape(function: ir.Function) -> Hashable:
    """What a function that was only renamed keeps: its parameters' number and its operators in their order."""
    return (len(function.inputs), len(function.outputs), tuple(op_name(node) for node in function))


def _match_graphs(graphs: list[Pair[ir.Graph]], are_bodies: bool, matches: Matches, labelling: Labelling) -> None:
    """Match graphs, and then the graphs in their nodes, which may read what is outside."""
    while graphs:
        nodes: list[Pair[ir.Node]] = []
        for before, after in graphs:
            nodes += _match_graph(before, after, are_bodies, matches, labelling)
        graphs, are_bodies = [pair for one in nodes for pair in _join_bodies(*one, matches)], True


def _match_graph(
    before: ir.Graph, after: ir.Graph, is_body: bool, matches: Matches, labelling: Labelling
) -> list[Pair[ir.Node]]:
    match_inputs(before, after, is_body, matches)
    match_outputs(before, after, is_body, matches)
    match_weights(before, after, labelling)
    nodes = NodeMatching(before, after, matches, labelling).run()
    match_read_values(nodes, matches)
    match_equal_weights(weights_of(before), weights_of(after), labelling)
    match_outputs_by_source(before, after, matches)
    return nodes


def _join_bodies(before: ir.Node, after: ir.Node, matches: Matches) -> Iterator[Pair[ir.Graph]]:
    """The graphs in two nodes, by their attributes."""
    theirs = dict(own_subgraphs(after))
    for attribute, graph in own_subgraphs(before):
        other = theirs.get(attribute)
        if other is not None and matches.graphs.join(graph, other, "name"):
            yield graph, other


def _match_moved(before: ir.Model, after: ir.Model, matches: Matches, labelling: Labelling) -> None:
    """What has gone from one graph into another: nodes by their names or outputs, weights also by what they hold."""
    mine, theirs = list(all_graphs(before)), list(all_graphs(after))
    nodes = [[node for graph in graphs for node in graph] for graphs in (mine, theirs)]
    lone = [matches.nodes.lone(some) for some in nodes]
    for pair in unique_pairs(lone[0], lone[1], lambda node: (node_label(node), labelling.op(node))):
        join_nodes(matches, *pair, "name")
        _match_graphs(list(_join_bodies(*pair, matches)), True, matches, labelling)
    values = [[value for graph in graphs for value in weights_of(graph)] for graphs in (mine, theirs)]
    keys: tuple[Callable[[ir.Value], Hashable], ...] = (lambda one: (one.name, labelling.weight(one)), labelling.weight)
    for key in keys:
        weights = [matches.values.lone(some) for some in values]
        for one, other in unique_pairs(weights[0], weights[1], key):
            matches.values.join(one, other, "values")
