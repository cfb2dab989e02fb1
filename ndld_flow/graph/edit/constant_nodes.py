"""Nodes with constant outputs, which are treated like weights."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import onnx_ir as ir

from ndld_flow.graph.edit.neighbourhood import Neighbourhood
from ndld_flow.graph.sanitize.edits import RANDOM, is_standard
from ndld_flow.models.files import all_graphs


class ConstantNodes:
    """The nodes of a model that depend on no input. Custom operators and functions are never constant."""

    def __init__(self, model: ir.Model) -> None:
        self._around = Neighbourhood(model)
        start: dict[ir.Node, None] = {}
        for graph in all_graphs(model):
            start.update((node, None) for node in graph if not is_standard(node) or node.op_type in RANDOM)
            inputs = (value for value in graph.inputs if not value.is_initializer())
            start.update((reader, None) for value in inputs for reader in self._around.readers(value))
        self._varying = _reached(start, self._around.consumers)

    def has(self, node: ir.Node) -> bool:
        return node not in self._varying

    def makes(self, value: ir.Value) -> bool:
        """Return whether a constant node produces it."""
        producer = value.producer()
        return producer is not None and self.has(producer)

    def before(self, nodes: Iterable[ir.Node]) -> list[ir.Node]:
        """The constant nodes that nodes depend on, in the same graph or outer ones."""
        start = dict.fromkeys(near for node in nodes for near in self._constant_producers(node))
        return list(_reached(start, self._constant_producers))

    def _constant_producers(self, node: ir.Node) -> list[ir.Node]:
        return [near for near in self._around.producers(node) if self.has(near)]


def _reached(start: dict[ir.Node, None], step: Callable[[ir.Node], Iterable[ir.Node]]) -> dict[ir.Node, None]:
    found, waiting = dict(start), list(start)
    while waiting:
        for node in step(waiting.pop()):
            if node not in found:
                found[node] = None
                waiting.append(node)
    return found
