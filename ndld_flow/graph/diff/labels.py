"""Labels of nodes: equal for nodes that look alike, including their surroundings up to a number of steps.

Weisfeiler and Lehman, 1968: each step recomputes a node's label from its own and its neighbours'. A node that already
has a partner in the other model is labelled by the pair, a weight by its contents.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from dataclasses import dataclass, field

import onnx_ir as ir

from ndld_flow.graph.diff.attributes import attribute_key
from ndld_flow.graph.diff.matches import Matches
from ndld_flow.models.node_selection import op_name
from ndld_flow.models.scopes import own_subgraphs
from ndld_flow.models.tensor_contents import sample_digest

Labels = dict[ir.Node, int]
Identifier = tuple[str, str, str]


@dataclass
class Labelling:
    """Computes labels for the nodes of two models, which can be compared with each other."""

    matches: Matches
    functions: dict[Identifier, int]
    """Local function -> number that it shares with its partner, which may have another name."""
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
            attributes = sorted((name, attribute_key(one)) for name, one in node.attributes.items())
            bodies = tuple(op_name(inner) for _, graph in own_subgraphs(node) for inner in graph)
            used = tuple(bool(value.name) for value in node.outputs)
            self._own[node] = self._label((self.op(node), tuple(attributes), bodies, used))
        return self._own[node]

    def weight(self, value: ir.Value) -> int:
        """Return the label of an initializer, from a sample of its contents."""
        if value not in self._weights:
            tensor = value.const_value
            self._weights[value] = self._label(("weight", None if tensor is None else sample_digest(tensor)))
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
