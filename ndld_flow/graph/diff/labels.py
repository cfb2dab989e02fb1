"""Numbers for nodes: equal for nodes that look alike, themselves and so many steps around them.

Weisfeiler and Lehman, 1968: a node's label is made anew of its own and its neighbours', as often as wanted. What has a
partner in the other model already stands fast: it is labelled by its pair. A weight is labelled by what it holds.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from dataclasses import dataclass, field

import onnx_ir as ir

from ndld_flow.graph.diff.attributes import attribute_key
from ndld_flow.graph.diff.contents import sample_digest
from ndld_flow.graph.diff.matches import Matches
from ndld_flow.models.node_selection import op_name
from ndld_flow.models.scopes import own_subgraphs

Labels = dict[ir.Node, int]
Identifier = tuple[str, str, str]


@dataclass
class Labelling:
    """Makes labels for the nodes of two models; they can be compared with each other."""

    matches: Matches
    functions: dict[Identifier, int]
    """Local function -> a number that it shares with its partner: they may have other names."""
    _table: dict[Hashable, int] = field(default_factory=dict)
    _own: dict[ir.Node, int] = field(default_factory=dict)
    _weights: dict[ir.Value, int] = field(default_factory=dict)
    _ports: dict[ir.Graph, dict[ir.Value, list[int]]] = field(default_factory=dict)

    def op(self, node: ir.Node) -> int:
        """Of the operator alone."""
        called = self.functions.get(node.op_identifier())
        return self._label(("op", *node.op_identifier()) if called is None else ("function", called))

    def own(self, node: ir.Node) -> int:
        """Of operator and attributes, and of the operators in its subgraphs."""
        if node not in self._own:
            attributes = sorted((name, attribute_key(one)) for name, one in node.attributes.items())
            bodies = tuple(op_name(inner) for _, graph in own_subgraphs(node) for inner in graph)
            used = tuple(bool(value.name) for value in node.outputs)
            self._own[node] = self._label((self.op(node), tuple(attributes), bodies, used))
        return self._own[node]

    def weight(self, value: ir.Value) -> int:
        """Of an initializer: of what it holds, as far as is quickly read."""
        if value not in self._weights:
            tensor = value.const_value
            self._weights[value] = self._label(("weight", None if tensor is None else sample_digest(tensor)))
        return self._weights[value]

    def around(self, nodes: Iterable[ir.Node], steps: int) -> Labels:
        """Of the nodes and all that is at most so many steps away among them; what is not, is the outside."""
        labels = {node: self.own(node) for node in nodes}
        for _ in range(steps):
            labels = {node: self._refined(node, labels) for node in labels}
        return labels

    def _refined(self, node: ir.Node, labels: Labels) -> int:
        inputs = tuple(self._read(value, labels) for value in node.inputs)
        readers = sorted(
            (place, self._reader(use.node, labels), use.idx)
            for place, value in enumerate(node.outputs)
            for use in value.uses()
        )
        given = tuple(self._given(value) for value in node.outputs)
        return self._label((labels[node], inputs, tuple(readers), given))

    def _given(self, value: ir.Value) -> tuple[int | None, ...]:
        """The graph's outputs that a value is."""
        graph = value.graph if value.is_graph_output() else None
        if graph is None:
            return ()
        if graph not in self._ports:
            ports: dict[ir.Value, list[int]] = {}
            for place, output in enumerate(graph.outputs):
                ports.setdefault(output, []).append(place)
            self._ports[graph] = ports
        return tuple(self.matches.outputs.number((graph, place)) for place in self._ports[graph][value])

    def _read(self, value: ir.Value | None, labels: Labels) -> int:
        if value is None:
            return self._label(None)
        number = self.matches.values.number(value)
        if number is not None:
            return self._label(("value", number))
        producer = value.producer()
        if producer in labels:
            return self._label(("made", labels[producer], value.index()))
        return self.weight(value) if value.is_initializer() else self._label("outside")

    def _reader(self, node: ir.Node, labels: Labels) -> int:
        number = self.matches.nodes.number(node)
        if number is not None:
            return self._label(("node", number))
        return labels[node] if node in labels else self._label(("outside", self.op(node)))

    def _label(self, key: Hashable) -> int:
        return self._table.setdefault(key, len(self._table))
