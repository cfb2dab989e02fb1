"""Match the inputs, outputs and initializers of two graphs: what stands at the rim of their nodes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Sequence

import onnx_ir as ir

from ndld_flow.graph.diff.contents import shape_of
from ndld_flow.graph.diff.labels import Labelling
from ndld_flow.graph.diff.matches import Matches, Port
from ndld_flow.graph.diff.pairs import Key, Pair, best_pairs, names_agree, ordered_pairs, unique_pairs
from ndld_flow.records.model_diff import MatchedBy


def match_inputs(before: ir.Graph, after: ir.Graph, is_body: bool, matches: Matches) -> None:
    """By name; what is left by position, if as many are left. A body's inputs are known by their positions first."""
    pairs = matches.values
    if is_body and len(before.inputs) == len(after.inputs):
        for pair in zip(before.inputs, after.inputs, strict=True):
            pairs.join(*pair, "position")
    for pair in unique_pairs(before.inputs, after.inputs, _name):
        pairs.join(*pair, "name")
    for pair in _in_their_order(pairs.lone(before.inputs), pairs.lone(after.inputs)):
        pairs.join(*pair, "position")


def match_outputs(before: ir.Graph, after: ir.Graph, is_body: bool, matches: Matches) -> None:
    """As inputs are matched."""
    pairs = matches.outputs
    mine, theirs = _ports(before), _ports(after)
    if is_body and len(mine) == len(theirs):
        for pair in zip(mine, theirs, strict=True):
            pairs.join(*pair, "position")
    for one in unique_pairs(mine, theirs, lambda port: output_of(port).name):
        pairs.join(*one, "name")
    lone = pairs.lone(mine), pairs.lone(theirs)
    same = _in_their_order([output_of(port) for port in lone[0]], [output_of(port) for port in lone[1]])
    if same:
        for pair in zip(*lone, strict=True):
            pairs.join(*pair, "position")


def match_outputs_by_source(before: ir.Graph, after: ir.Graph, matches: Matches) -> None:
    """Outputs that are left, and give what is one tensor in both."""
    pairs = matches.outputs
    mine, theirs = pairs.lone(_ports(before)), pairs.lone(_ports(after))
    for pair in unique_pairs(mine, theirs, lambda port: matches.values.number(output_of(port))):
        pairs.join(*pair, "neighbours")


def match_weights(before: ir.Graph, after: ir.Graph, labelling: Labelling) -> None:
    """By name and contents; then by names, unless these have come to mean others, and by contents."""
    pairs, mine, theirs = labelling.matches.values, weights_of(before), weights_of(after)

    def both(value: ir.Value) -> Hashable:
        return value.name, labelling.weight(value)

    for pair in unique_pairs(mine, theirs, both):
        pairs.join(*pair, "name")
    by_name: tuple[Key[ir.Value], MatchedBy] = (_name, "name")
    by_values: tuple[Key[ir.Value], MatchedBy] = (labelling.weight, "values")
    names_first = names_agree(mine, theirs, _name, labelling.weight)
    for key, matched_by in (by_name, by_values) if names_first else (by_values, by_name):
        for pair in unique_pairs(pairs.lone(mine), pairs.lone(theirs), key):
            pairs.join(*pair, matched_by)


def match_read_values(nodes: Sequence[Pair[ir.Node]], matches: Matches) -> None:
    """Initializers and inputs that are left, where the same nodes read them in the same places."""
    pairs = matches.values
    readers: Counter[Pair[ir.Value]] = Counter()
    for mine, theirs in nodes:
        for one, other in zip(mine.inputs, theirs.inputs, strict=False):
            if one is not None and other is not None and one not in pairs and other not in pairs:
                readers[one, other] += _may_be_one(one, other)
    for pair in best_pairs({pair: count for pair, count in readers.items() if count}):
        pairs.join(*pair, "neighbours")


def match_equal_weights(before: Sequence[ir.Value], after: Sequence[ir.Value], labelling: Labelling) -> None:
    """Weights that are left and hold the same, in their order where several do."""
    pairs = labelling.matches.values
    for pair in ordered_pairs(pairs.lone(before), pairs.lone(after), labelling.weight):
        pairs.join(*pair, "values")


def weights_of(graph: ir.Graph) -> list[ir.Value]:
    """A graph's initializers that have contents."""
    return [value for value in graph.initializers.values() if value.const_value is not None]


def output_of(port: Port) -> ir.Value:
    graph, place = port
    return graph.outputs[place]


def _ports(graph: ir.Graph) -> list[Port]:
    return [(graph, place) for place in range(len(graph.outputs))]


def _name(value: ir.Value) -> Hashable:
    return value.name or None


def _in_their_order(mine: Sequence[ir.Value], theirs: Sequence[ir.Value]) -> list[Pair[ir.Value]]:
    """All of them, one after the other, when they are as many and each has the other's type; else none."""
    if len(mine) != len(theirs) or any(one.dtype != other.dtype for one, other in zip(mine, theirs, strict=True)):
        return []
    return list(zip(mine, theirs, strict=True))


def _may_be_one(one: ir.Value, other: ir.Value) -> bool:
    """Two inputs; or two initializers that have the type or the shape in common."""
    mine, theirs = one.const_value, other.const_value
    if mine is None or theirs is None:
        return mine is theirs and one.is_graph_input() and other.is_graph_input()
    return mine.dtype == theirs.dtype or shape_of(mine) == shape_of(theirs)
