"""Matching of two models: graphs from the outermost inwards, their ports and weights, and their nodes.

Nodes are matched by names, then by labels of their surroundings, then by matched neighbours. Labels are those of
Weisfeiler and Lehman (1968): each step recomputes a node's label from its own and its neighbours'. A node that already
has a partner in the other model is labelled by the pair, a weight by its contents.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import product

import onnx_ir as ir

from ndld_flow.graph.diff.matches import (
    Key,
    Matches,
    Pair,
    Port,
    attribute_key,
    best_pairs,
    names_agree,
    ordered_pairs,
    unique_pairs,
)
from ndld_flow.models.external_data import MissingTensor, tensors_of
from ndld_flow.models.files import all_graphs
from ndld_flow.models.nodes import node_label, op_name, own_subgraphs
from ndld_flow.models.tensor_statistics import sample_digest, shape_of
from ndld_flow.records.model_diff import MatchedBy

Labels = dict[ir.Node, int]
Identifier = tuple[str, str, str]


@dataclass
class Labelling:
    """Computes labels for the nodes of two models, which can be compared with each other."""

    matches: Matches
    functions: dict[Identifier, int]
    """Local function -> number that it shares with its partner, which may have another name."""
    lacks_data: bool = False
    """True if weights of one of the models have no data: none is then matched by its contents."""
    _table: dict[Hashable, int] = field(default_factory=dict)
    _own: dict[ir.Node, int] = field(default_factory=dict)
    _weights: dict[ir.Value, int] = field(default_factory=dict)
    _ports: dict[ir.Graph, dict[ir.Value, list[int]]] = field(default_factory=dict)

    def op(self, node: ir.Node) -> int:
        """Return the label of the operator alone."""
        function = self.functions.get(node.op_identifier())
        return self._label(("op", *node.op_identifier()) if function is None else ("function", function))

    def own(self, node: ir.Node) -> int:
        """Return the label of operator, attributes, and the operators in its subgraphs."""
        if node not in self._own:
            attributes = sorted((name, attribute_key(attribute)) for name, attribute in node.attributes.items())
            bodies = tuple(op_name(inner) for _, graph in own_subgraphs(node) for inner in graph)
            used = tuple(bool(value.name) for value in node.outputs)
            self._own[node] = self._label((self.op(node), tuple(attributes), bodies, used))
        return self._own[node]

    def weight(self, value: ir.Value) -> int:
        """Return the label of an initializer, from a sample of its contents."""
        if value not in self._weights:
            tensor, contents = value.const_value, None
            if tensor is not None:
                contents = (tensor.dtype, shape_of(tensor)) if self.lacks_data else sample_digest(tensor)
            self._weights[value] = self._label(("weight", contents))
        return self._weights[value]

    def around(self, nodes: Iterable[ir.Node], steps: int) -> Labels:
        """Return the labels of nodes with their surroundings up to `steps`; other nodes count as outside."""
        labels = {node: self.own(node) for node in nodes}
        for _ in range(steps):
            labels = {node: self._refined(node, labels) for node in labels}
        return labels

    def _refined(self, node: ir.Node, labels: Labels) -> int:
        inputs = tuple(self._input_label(value, labels) for value in node.inputs)
        readers = sorted(
            (position, self._reader_label(use.node, labels), use.idx)
            for position, value in enumerate(node.outputs)
            for use in value.uses()
        )
        outputs = tuple(self._output_numbers(value) for value in node.outputs)
        return self._label((labels[node], inputs, tuple(readers), outputs))

    def _output_numbers(self, value: ir.Value) -> tuple[int | None, ...]:
        """Return the numbers of the graph outputs that a value is."""
        graph = value.graph if value.is_graph_output() else None
        if graph is None:
            return ()
        if graph not in self._ports:
            ports: dict[ir.Value, list[int]] = {}
            for position, output in enumerate(graph.outputs):
                ports.setdefault(output, []).append(position)
            self._ports[graph] = ports
        return tuple(self.matches.outputs.number((graph, position)) for position in self._ports[graph][value])

    def _input_label(self, value: ir.Value | None, labels: Labels) -> int:
        if value is None:
            return self._label(None)
        number = self.matches.values.number(value)
        if number is not None:
            return self._label(("value", number))
        producer = value.producer()
        if producer in labels:
            return self._label(("made", labels[producer], value.index()))
        return self.weight(value) if value.is_initializer() else self._label("outside")

    def _reader_label(self, node: ir.Node, labels: Labels) -> int:
        number = self.matches.nodes.number(node)
        if number is not None:
            return self._label(("node", number))
        return labels[node] if node in labels else self._label(("outside", self.op(node)))

    def _label(self, key: Hashable) -> int:
        return self._table.setdefault(key, len(self._table))


def match_inputs(before: ir.Graph, after: ir.Graph, is_body: bool, matches: Matches) -> None:
    """Match inputs by name, then by position if equally many are left. A body's inputs match by position first."""
    pairs = matches.values
    if is_body and len(before.inputs) == len(after.inputs):
        for pair in zip(before.inputs, after.inputs, strict=True):
            pairs.join(*pair, "position")
    for pair in unique_pairs(before.inputs, after.inputs, _name):
        pairs.join(*pair, "name")
    for pair in _pairs_in_order(pairs.lone(before.inputs), pairs.lone(after.inputs)):
        pairs.join(*pair, "position")


def match_outputs(before: ir.Graph, after: ir.Graph, is_body: bool, matches: Matches) -> None:
    """Match outputs as inputs are matched."""
    pairs = matches.outputs
    mine, theirs = _ports(before), _ports(after)
    if is_body and len(mine) == len(theirs):
        for pair in zip(mine, theirs, strict=True):
            pairs.join(*pair, "position")
    for ports in unique_pairs(mine, theirs, lambda port: output_of(port).name):
        pairs.join(*ports, "name")
    lone = pairs.lone(mine), pairs.lone(theirs)
    same = _pairs_in_order([output_of(port) for port in lone[0]], [output_of(port) for port in lone[1]])
    if same:
        for pair in zip(*lone, strict=True):
            pairs.join(*pair, "position")


def match_weights(before: ir.Graph, after: ir.Graph, labelling: Labelling) -> None:
    """Match weights by name and contents, then by name, unless names were reassigned, and by contents."""
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
    """Match remaining initializers and inputs that the same nodes read at the same positions."""
    pairs = matches.values
    readers: Counter[Pair[ir.Value]] = Counter()
    for mine, theirs in nodes:
        for first, second in zip(mine.inputs, theirs.inputs, strict=False):
            if first is not None and second is not None and first not in pairs and second not in pairs:
                readers[first, second] += _may_match(first, second)
    for pair in best_pairs({pair: count for pair, count in readers.items() if count}):
        pairs.join(*pair, "neighbours")


def weights_of(graph: ir.Graph) -> list[ir.Value]:
    """Return a graph's initializers that have contents."""
    return [value for value in graph.initializers.values() if value.const_value is not None]


def output_of(port: Port) -> ir.Value:
    graph, position = port
    return graph.outputs[position]


def _ports(graph: ir.Graph) -> list[Port]:
    return [(graph, position) for position in range(len(graph.outputs))]


def _name(value: ir.Value) -> Hashable:
    return value.name or None


def _pairs_in_order(mine: Sequence[ir.Value], theirs: Sequence[ir.Value]) -> list[Pair[ir.Value]]:
    """Return all pairs in order if there are equally many values with equal types, or none."""
    if len(mine) != len(theirs) or any(first.dtype != second.dtype for first, second in zip(mine, theirs, strict=True)):
        return []
    return list(zip(mine, theirs, strict=True))


def _may_match(first: ir.Value, second: ir.Value) -> bool:
    """Return whether both are inputs, or initializers with the same type or shape."""
    mine, theirs = first.const_value, second.const_value
    if mine is None or theirs is None:
        return mine is theirs and first.is_graph_input() and second.is_graph_input()
    return mine.dtype == theirs.dtype or shape_of(mine) == shape_of(theirs)


_STEPS = (3, 2, 1, 3, 2, 1)
"""Sizes of the surroundings that are compared: near a change only small ones agree, and their matches help others."""
_MANY = 16
"""More pairs of similar readers of one tensor than this are not tried."""
_HUB = 64
"""A tensor with more readers, such as a shared constant, is weak evidence for any of them."""

Label = Callable[[ir.Node], Hashable]


class NodeMatching:
    """Matches the nodes of two graphs whose inputs, outputs and initializers have been matched."""

    def __init__(self, before: ir.Graph, after: ir.Graph, matches: Matches, labelling: Labelling) -> None:
        self.before, self.after = list(before), list(after)
        self.graphs = (before, after)
        self.matches = matches
        self.labelling = labelling

    def run(self) -> list[Pair[ir.Node]]:
        """Match nodes and return all pairs of these graphs."""
        near = self._around(self.before, self.after, 2)
        if names_agree(self.before, self.after, self._named_op, near.__getitem__):
            self._by_names()
        self._by_structure()
        self._by_names()
        self._spread(self.labelling.op)
        self._spread(lambda _: 0, self._have_same_surroundings)
        self._join(self._unique(node_label), "name")
        self._join(self._unique(_first_output), "outputs")
        self._spread(self.labelling.own)
        return [(node, partner) for node in self.before if (partner := self.matches.nodes.after(node)) is not None]

    def _by_names(self) -> None:
        self._join(self._unique(self._named_op), "name")
        self._join(self._unique(self._output_op), "outputs")

    def _named_op(self, node: ir.Node) -> Hashable:
        return (node.name, self.labelling.op(node)) if node.name else None

    def _output_op(self, node: ir.Node) -> Hashable:
        name = _first_output(node)
        return (name, self.labelling.op(node)) if name else None

    def _by_structure(self) -> None:
        self._spread(self.labelling.own)
        for steps in _STEPS:
            mine, theirs = self._lone()
            if mine and theirs:
                near = self._around(mine, theirs, steps)
                if self._join(unique_pairs(mine, theirs, near.__getitem__), "structure"):
                    self._spread(self.labelling.own)
        mine, theirs = self._lone()
        near = self._around(mine, theirs, 1)
        if self._join(ordered_pairs(mine, theirs, near.__getitem__), "structure"):
            self._spread(self.labelling.own)

    def _around(self, mine: list[ir.Node], theirs: list[ir.Node], steps: int) -> dict[ir.Node, int]:
        return self.labelling.around(mine, steps) | self.labelling.around(theirs, steps)

    def _lone(self) -> tuple[list[ir.Node], list[ir.Node]]:
        return self.matches.nodes.lone(self.before), self.matches.nodes.lone(self.after)

    def _unique(self, key: Label) -> list[Pair[ir.Node]]:
        return unique_pairs(*self._lone(), key)

    def _join(self, pairs: Iterable[Pair[ir.Node]], matched_by: MatchedBy) -> list[Pair[ir.Node]]:
        return [pair for pair in pairs if join_nodes(self.matches, *pair, matched_by)]

    def _spread(self, label: Label, fits: Callable[[ir.Node, ir.Node], bool] = lambda *_: True) -> None:
        """Match neighbours of matched nodes, as far as they look alike."""
        if not all(self._lone()):
            return
        pairs = [pair for pair in self._at_the_boundary(label) if fits(*pair)]
        frontier = [(mine, theirs) for mine in self.before if (theirs := self.matches.nodes.after(mine)) is not None]
        while True:
            pairs += [pair for nodes in frontier for pair in self._neighbours(*nodes, label) if fits(*pair)]
            scores = {pair: self._likeness(*pair) for pair in pairs}
            frontier = self._join(best_pairs(scores), "neighbours")
            pairs = []
            if not frontier:
                return

    def _at_the_boundary(self, label: Label) -> Iterator[Pair[ir.Node]]:
        """Yield candidates at the boundary: readers of inputs and initializers, producers of outputs."""
        before, after = self.graphs
        for value in (*before.inputs, *before.initializers.values()):
            partner = self.matches.values.after(value)
            if partner is not None:
                yield from self._readers(value, partner, label)
        for position in range(len(before.outputs)):
            port = self.matches.outputs.after((before, position))
            if port is not None and port[0] is after:
                yield from self._producers(before.outputs[position], output_of(port), label)

    def _neighbours(self, mine: ir.Node, theirs: ir.Node, label: Label) -> Iterator[Pair[ir.Node]]:
        for first, second in zip(mine.inputs, theirs.inputs, strict=False):
            yield from self._producers(first, second, label)
            if first is None or second is None or not self.matches.values.are_partners(first, second):
                continue
            if max(len(first.uses()), len(second.uses())) <= _HUB:
                yield from self._readers(first, second, label)
        for first, second in zip(mine.outputs, theirs.outputs, strict=False):
            yield from self._readers(first, second, label)

    def _producers(self, first: ir.Value | None, second: ir.Value | None, label: Label) -> Iterator[Pair[ir.Node]]:
        if first is None or second is None or first.index() != second.index():
            return
        mine, theirs = first.producer(), second.producer()
        if mine is None or theirs is None or mine in self.matches.nodes or theirs in self.matches.nodes:
            return
        if mine.graph is self.graphs[0] and theirs.graph is self.graphs[1] and label(mine) == label(theirs):
            yield mine, theirs

    def _readers(self, first: ir.Value, second: ir.Value, label: Label) -> Iterator[Pair[ir.Node]]:
        mine, theirs = self._free_readers(first, 0, label), self._free_readers(second, 1, label)
        for key, nodes in mine.items():
            if len(nodes) * len(theirs.get(key, ())) <= _MANY:
                yield from product(nodes, theirs.get(key, ()))

    def _free_readers(self, value: ir.Value, side: int, label: Label) -> dict[Hashable, list[ir.Node]]:
        """Return (label, input) -> readers in this graph without a partner."""
        readers: dict[Hashable, list[ir.Node]] = defaultdict(list)
        for use in value.uses():
            if use.node.graph is self.graphs[side] and use.node not in self.matches.nodes:
                readers[label(use.node), use.idx].append(use.node)
        return readers

    def _likeness(self, mine: ir.Node, theirs: ir.Node) -> int:
        """Score a pair: inputs count more than readers, and names break ties."""
        neighbours = 3 * self._same_inputs(mine, theirs) + 2 * self._same_readers(mine, theirs)
        return neighbours + (node_label(mine) == node_label(theirs))

    def _have_same_surroundings(self, mine: ir.Node, theirs: ir.Node) -> bool:
        """Return whether a node may have replaced another: they share inputs and readers."""
        return self._same_inputs(mine, theirs) > 0 and self._same_readers(mine, theirs) > 0

    def _same_inputs(self, mine: ir.Node, theirs: ir.Node) -> int:
        return sum(
            first is not None and second is not None and self._match(first, second)
            for first, second in zip(mine.inputs, theirs.inputs, strict=False)
        )

    def _match(self, first: ir.Value, second: ir.Value) -> bool:
        values = self.matches.values
        if first in values or second in values:
            return values.are_partners(first, second)
        weights = first.is_initializer() and second.is_initializer()
        return weights and self.labelling.weight(first) == self.labelling.weight(second)

    def _same_readers(self, mine: ir.Node, theirs: ir.Node) -> int:
        same = 0
        for first, second in zip(mine.outputs, theirs.outputs, strict=False):
            for use in first.uses():
                reader = self.matches.nodes.after(use.node)
                same += reader is not None and use.idx < len(reader.inputs) and reader.inputs[use.idx] is second
            same += first.is_graph_output() and second.is_graph_output() and self._are_same_output(first, second)
        return same

    def _are_same_output(self, first: ir.Value, second: ir.Value) -> bool:
        before, _ = self.graphs
        ports = [(before, position) for position, value in enumerate(before.outputs) if value is first]
        partners = (self.matches.outputs.after(port) for port in ports)
        return any(port is not None and output_of(port) is second for port in partners)


def join_nodes(matches: Matches, before: ir.Node, after: ir.Node, matched_by: MatchedBy) -> bool:
    """Make two nodes and their outputs partners."""
    if not matches.nodes.join(before, after, matched_by):
        return False
    for first, second in zip(before.outputs, after.outputs, strict=False):
        if first.name and second.name:
            matches.values.join(first, second, matched_by)
    return True


def _first_output(node: ir.Node) -> str | None:
    return next((value.name for value in node.outputs if value.name), None)


def match_models(before: ir.Model, after: ir.Model) -> Matches:
    """Match the parts of two models. The result is the same with the sides exchanged."""
    matches = Matches()
    _match_functions(before, after, matches)
    functions = {
        function.identifier(): number
        for pair in matches.functions
        for function in pair
        if (number := matches.functions.number(function)) is not None
    }
    tensors = (tensor for model in (before, after) for tensor in tensors_of(model))
    labelling = Labelling(matches, functions, lacks_data=any(isinstance(tensor, MissingTensor) for tensor in tensors))
    matches.graphs.join(before.graph, after.graph, "name")
    _match_graphs([(before.graph, after.graph)], False, matches, labelling)
    bodies = [(first.graph, second.graph) for first, second in matches.functions]
    for pair in bodies:
        matches.graphs.join(*pair, "name")
    _match_graphs(bodies, True, matches, labelling)
    _match_moved(before, after, matches, labelling)
    return matches


def _match_functions(before: ir.Model, after: ir.Model, matches: Matches) -> None:
    mine, theirs = list(before.functions.values()), list(after.functions.values())
    for pair in unique_pairs(mine, theirs, lambda function: function.identifier()):
        matches.functions.join(*pair, "name")

    def shape(function: ir.Function) -> Hashable:
        """Return what a renamed function keeps: the number of its parameters and its operators in order."""
        return (len(function.inputs), len(function.outputs), tuple(op_name(node) for node in function))

    for pair in unique_pairs(matches.functions.lone(mine), matches.functions.lone(theirs), shape):
        matches.functions.join(*pair, "structure")


def _match_graphs(graphs: list[Pair[ir.Graph]], are_bodies: bool, matches: Matches, labelling: Labelling) -> None:
    """Match graphs, and then the graphs in their nodes, which may read outer values."""
    while graphs:
        nodes: list[Pair[ir.Node]] = []
        for before, after in graphs:
            nodes += _match_graph(before, after, are_bodies, matches, labelling)
        graphs, are_bodies = [pair for pair_of_nodes in nodes for pair in _join_bodies(*pair_of_nodes, matches)], True


def _match_graph(
    before: ir.Graph, after: ir.Graph, is_body: bool, matches: Matches, labelling: Labelling
) -> list[Pair[ir.Node]]:
    match_inputs(before, after, is_body, matches)
    match_outputs(before, after, is_body, matches)
    match_weights(before, after, labelling)
    nodes = NodeMatching(before, after, matches, labelling).run()
    match_read_values(nodes, matches)
    values = matches.values
    # Remaining weights with equal contents, in order if there are several.
    for weights in ordered_pairs(values.lone(weights_of(before)), values.lone(weights_of(after)), labelling.weight):
        values.join(*weights, "values")
    pairs = matches.outputs
    mine, theirs = pairs.lone(_ports(before)), pairs.lone(_ports(after))
    for pair in unique_pairs(mine, theirs, lambda port: matches.values.number(output_of(port))):
        pairs.join(*pair, "neighbours")
    return nodes


def _join_bodies(before: ir.Node, after: ir.Node, matches: Matches) -> Iterator[Pair[ir.Graph]]:
    """Join the graphs in two nodes by their attributes, and yield the pairs."""
    theirs = dict(own_subgraphs(after))
    for attribute, graph in own_subgraphs(before):
        other = theirs.get(attribute)
        if other is not None and matches.graphs.join(graph, other, "name"):
            yield graph, other


def _match_moved(before: ir.Model, after: ir.Model, matches: Matches, labelling: Labelling) -> None:
    """Match parts that moved to another graph: nodes by name or output, weights also by contents."""
    mine, theirs = list(all_graphs(before)), list(all_graphs(after))
    nodes = [[node for graph in graphs for node in graph] for graphs in (mine, theirs)]
    lone = [matches.nodes.lone(items) for items in nodes]
    for pair in unique_pairs(lone[0], lone[1], lambda node: (node_label(node), labelling.op(node))):
        join_nodes(matches, *pair, "name")
        _match_graphs(list(_join_bodies(*pair, matches)), True, matches, labelling)
    values = [[value for graph in graphs for value in weights_of(graph)] for graphs in (mine, theirs)]
    keys: tuple[Callable[[ir.Value], Hashable], ...] = (
        lambda first: (first.name, labelling.weight(first)),
        labelling.weight,
    )
    for key in keys:
        weights = [matches.values.lone(items) for items in values]
        for first, second in unique_pairs(weights[0], weights[1], key):
            matches.values.join(first, second, "values")
