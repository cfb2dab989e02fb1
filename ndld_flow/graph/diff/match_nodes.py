"""Match the nodes of two graphs: by names, then by what they are, what stands around them, and what is left between."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator
from itertools import product

import onnx_ir as ir

from ndld_flow.graph.diff.labels import Labelling
from ndld_flow.graph.diff.match_ports import output_of
from ndld_flow.graph.diff.matches import Matches
from ndld_flow.graph.diff.pairs import Pair, best_pairs, names_agree, ordered_pairs, unique_pairs
from ndld_flow.models.scopes import node_label
from ndld_flow.records.model_diff import MatchedBy

_STEPS = (3, 2, 1, 3, 2, 1)
"""How far around a node is looked: near a change only little is still the same. What is found then helps the rest."""
_MANY = 16
"""Of more look-alikes that read one tensor none is tried."""
_HUB = 64
"""A tensor that more nodes read, such as a shared constant, says little about any of them."""

Look = Callable[[ir.Node], Hashable]


class NodeMatching:
    """Two graphs whose inputs, outputs and initializers have been matched as far as they can be."""

    def __init__(self, before: ir.Graph, after: ir.Graph, matches: Matches, labelling: Labelling) -> None:
        self.before, self.after = list(before), list(after)
        self.graphs = (before, after)
        self.matches = matches
        self.labelling = labelling

    def run(self) -> list[Pair[ir.Node]]:
        """Match what can be; returns all pairs of these graphs."""
        if self._names_agree():
            self._by_names()
        self._by_structure()
        self._by_names()
        self._spread(self.labelling.op)
        self._spread(lambda _: 0, self._stand_in_one_place)
        self._join(self._unique(node_label), "name")
        self._join(self._unique(_first_output), "outputs")
        self._spread(self.labelling.own)
        return [(node, partner) for node in self.before if (partner := self.matches.nodes.after(node)) is not None]

    def _names_agree(self) -> bool:
        near = self._around(self.before, self.after, 2)
        return names_agree(self.before, self.after, self._named_op, near.__getitem__)

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
            self._by_surroundings(steps)
        mine, theirs = self._lone()
        near = self._around(mine, theirs, 1)
        if self._join(ordered_pairs(mine, theirs, near.__getitem__), "structure"):
            self._spread(self.labelling.own)

    def _by_surroundings(self, steps: int) -> None:
        mine, theirs = self._lone()
        if mine and theirs:
            near = self._around(mine, theirs, steps)
            if self._join(unique_pairs(mine, theirs, near.__getitem__), "structure"):
                self._spread(self.labelling.own)

    def _around(self, mine: list[ir.Node], theirs: list[ir.Node], steps: int) -> dict[ir.Node, int]:
        return self.labelling.around(mine, steps) | self.labelling.around(theirs, steps)

    def _lone(self) -> tuple[list[ir.Node], list[ir.Node]]:
        return self.matches.nodes.lone(self.before), self.matches.nodes.lone(self.after)

    def _unique(self, key: Look) -> list[Pair[ir.Node]]:
        return unique_pairs(*self._lone(), key)

    def _join(self, pairs: Iterable[Pair[ir.Node]], matched_by: MatchedBy) -> list[Pair[ir.Node]]:
        return [pair for pair in pairs if join_nodes(self.matches, *pair, matched_by)]

    def _spread(self, look: Look, fits: Callable[[ir.Node, ir.Node], bool] = lambda *_: True) -> None:
        """Go from what has partners to its neighbours, as far as these look alike."""
        if not all(self._lone()):
            return
        found = [pair for pair in self._at_the_rim(look) if fits(*pair)]
        frontier = [(mine, theirs) for mine in self.before if (theirs := self.matches.nodes.after(mine)) is not None]
        while True:
            found += [pair for one in frontier for pair in self._neighbours(*one, look) if fits(*pair)]
            scores = {pair: self._likeness(*pair) for pair in found}
            frontier = self._join(best_pairs(scores), "neighbours")
            found = []
            if not frontier:
                return

    def _at_the_rim(self, look: Look) -> Iterator[Pair[ir.Node]]:
        """Readers of inputs and initializers, makers of outputs."""
        before, after = self.graphs
        for value in (*before.inputs, *before.initializers.values()):
            partner = self.matches.values.after(value)
            if partner is not None:
                yield from self._readers(value, partner, look)
        for place in range(len(before.outputs)):
            port = self.matches.outputs.after((before, place))
            if port is not None and port[0] is after:
                yield from self._makers(before.outputs[place], output_of(port), look)

    def _neighbours(self, mine: ir.Node, theirs: ir.Node, look: Look) -> Iterator[Pair[ir.Node]]:
        for one, other in zip(mine.inputs, theirs.inputs, strict=False):
            yield from self._makers(one, other, look)
            if one is not None and other is not None and self._is_shared_by_few(one, other):
                yield from self._readers(one, other, look)
        for one, other in zip(mine.outputs, theirs.outputs, strict=False):
            yield from self._readers(one, other, look)

    def _is_shared_by_few(self, one: ir.Value, other: ir.Value) -> bool:
        return self.matches.values.are_partners(one, other) and len(one.uses()) <= _HUB and len(other.uses()) <= _HUB

    def _makers(self, one: ir.Value | None, other: ir.Value | None, look: Look) -> Iterator[Pair[ir.Node]]:
        if one is None or other is None or one.index() != other.index():
            return
        mine, theirs = one.producer(), other.producer()
        if mine is not None and theirs is not None and self._are_free(mine, theirs) and look(mine) == look(theirs):
            yield mine, theirs

    def _readers(self, one: ir.Value, other: ir.Value, look: Look) -> Iterator[Pair[ir.Node]]:
        mine, theirs = self._free_readers(one, 0, look), self._free_readers(other, 1, look)
        for key, nodes in mine.items():
            if len(nodes) * len(theirs.get(key, ())) <= _MANY:
                yield from product(nodes, theirs.get(key, ()))

    def _free_readers(self, value: ir.Value, side: int, look: Look) -> dict[Hashable, list[ir.Node]]:
        """(look, input) -> readers without a partner, in this graph."""
        found: dict[Hashable, list[ir.Node]] = defaultdict(list)
        for use in value.uses():
            if use.node.graph is self.graphs[side] and use.node not in self.matches.nodes:
                found[look(use.node), use.idx].append(use.node)
        return found

    def _are_free(self, mine: ir.Node, theirs: ir.Node) -> bool:
        nodes = self.matches.nodes
        is_here = mine.graph is self.graphs[0] and theirs.graph is self.graphs[1]
        return is_here and mine not in nodes and theirs not in nodes

    def _likeness(self, mine: ir.Node, theirs: ir.Node) -> int:
        """What they read counts more than who reads them, and their names decide between equals."""
        neighbours = 3 * self._same_inputs(mine, theirs) + 2 * self._same_readers(mine, theirs)
        return neighbours + (node_label(mine) == node_label(theirs))

    def _stand_in_one_place(self, mine: ir.Node, theirs: ir.Node) -> bool:
        """Whether another operator may have taken a node's place: it reads the same, and the same read it."""
        return self._same_inputs(mine, theirs) > 0 and self._same_readers(mine, theirs) > 0

    def _same_inputs(self, mine: ir.Node, theirs: ir.Node) -> int:
        return sum(
            one is not None and other is not None and self._are_one(one, other)
            for one, other in zip(mine.inputs, theirs.inputs, strict=False)
        )

    def _are_one(self, one: ir.Value, other: ir.Value) -> bool:
        values = self.matches.values
        if one in values or other in values:
            return values.are_partners(one, other)
        weights = one.is_initializer() and other.is_initializer()
        return weights and self.labelling.weight(one) == self.labelling.weight(other)

    def _same_readers(self, mine: ir.Node, theirs: ir.Node) -> int:
        same = 0
        for one, other in zip(mine.outputs, theirs.outputs, strict=False):
            for use in one.uses():
                reader = self.matches.nodes.after(use.node)
                same += reader is not None and use.idx < len(reader.inputs) and reader.inputs[use.idx] is other
            same += one.is_graph_output() and other.is_graph_output() and self._give_one_output(one, other)
        return same

    def _give_one_output(self, one: ir.Value, other: ir.Value) -> bool:
        before, _ = self.graphs
        ports = [(before, place) for place, value in enumerate(before.outputs) if value is one]
        partners = (self.matches.outputs.after(port) for port in ports)
        return any(port is not None and output_of(port) is other for port in partners)


def join_nodes(matches: Matches, before: ir.Node, after: ir.Node, matched_by: MatchedBy) -> bool:
    """Make two nodes partners, and what they make with them."""
    if not matches.nodes.join(before, after, matched_by):
        return False
    for one, other in zip(before.outputs, after.outputs, strict=False):
        if one.name and other.name:
            matches.values.join(one, other, matched_by)
    return True


def _first_output(node: ir.Node) -> str | None:
    return next((value.name for value in node.outputs if value.name), None)
