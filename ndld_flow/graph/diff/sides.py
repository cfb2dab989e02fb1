"""Two models beside each other, with what is known of both."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import onnx_ir as ir

from ndld_flow.graph.diff.matches import Matches
from ndld_flow.graph.diff.pairs import Pair
from ndld_flow.models.scopes import scopes_of


@dataclass(frozen=True)
class Side:
    """One of the two models."""

    model: ir.Model
    scopes: dict[ir.Graph, str]
    """Graph -> its address."""

    @property
    def nodes(self) -> Iterator[ir.Node]:
        """Of all graphs, in the model's order."""
        return (node for graph in self.scopes for node in graph)

    def scope_of(self, node: ir.Node) -> str:
        graph = node.graph
        assert isinstance(graph, ir.Graph)
        return self.scopes[graph]


@dataclass(frozen=True)
class Sides:
    """Both, and what of one is what of the other."""

    before: Side
    after: Side
    matches: Matches

    @property
    def node_pairs(self) -> Iterator[Pair[ir.Node]]:
        """In the order of the model before."""
        for node in self.before.nodes:
            partner = self.matches.nodes.after(node)
            if partner is not None:
                yield node, partner


def side_of(model: ir.Model) -> Side:
    return Side(model, {graph: address for address, graph in scopes_of(model).items()})
