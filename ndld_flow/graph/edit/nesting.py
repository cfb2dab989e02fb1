"""Nesting of graphs, which determines the tensors that a node can read by name."""

from __future__ import annotations

from collections.abc import Iterator

import onnx_ir as ir

from ndld_flow.base.errors import RequestError
from ndld_flow.base.text import suggest
from ndld_flow.graph.edit.names_in_use import values_of
from ndld_flow.models.files import all_graphs
from ndld_flow.models.scopes import own_subgraphs, scopes_of


class Nesting:
    """The nested graphs of a model in its present state."""

    def __init__(self, model: ir.Model) -> None:
        self._model = model
        self._owners = {body: node for graph in all_graphs(model) for node in graph for _, body in own_subgraphs(node)}
        self._named: dict[ir.Graph, dict[str, ir.Value]] = {}

    def owners(self, graph: object) -> Iterator[ir.Node]:
        """Return the nodes that own a graph, from the innermost outwards."""
        while isinstance(graph, ir.Graph) and graph in self._owners:
            owner = self._owners[graph]
            yield owner
            graph = owner.graph

    def seen_from(self, graph: ir.Graph) -> list[ir.Graph]:
        """Return the graph and the graphs around it, from the innermost outwards."""
        around = (owner.graph for owner in self.owners(graph))
        return [graph, *(outer for outer in around if isinstance(outer, ir.Graph))]

    def sees(self, graph: object, value: ir.Value) -> bool:
        """Return whether a node of the graph can read a tensor."""
        return isinstance(graph, ir.Graph) and value.graph in self.seen_from(graph)

    def find(self, name: str, graph: ir.Graph) -> ir.Value | None:
        """Return the tensor that a node of the graph reads by a name, or None."""
        return next(
            (self._values(around)[name] for around in self.seen_from(graph) if name in self._values(around)), None
        )

    def value(self, name: str, graph: ir.Graph) -> ir.Value:
        """Return the tensor that a node of the graph reads by a name. Raises `RequestError` with the nearest name."""
        found = self.find(name, graph)
        if found is not None:
            return found
        addresses = {inner: address for address, inner in scopes_of(self._model).items()}
        here = addresses[graph] or "the main graph"
        for elsewhere, address in addresses.items():
            if name in self._values(elsewhere):
                where = address or "the main graph"
                raise RequestError(f"the tensor {name!r} is in {where}, which is not visible from {here}")
        known = [each for around in self.seen_from(graph) for each in self._values(around)]
        raise RequestError(f"there is no tensor {name!r} that is visible from {here}; {suggest(name, known)}")

    def _values(self, graph: ir.Graph) -> dict[str, ir.Value]:
        if graph not in self._named:
            self._named[graph] = {value.name: value for value in values_of(graph) if value.name}
        return self._named[graph]
