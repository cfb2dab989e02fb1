"""Unique names for values and nodes of a model."""

from __future__ import annotations

import re
from collections.abc import Container, Iterator

import onnx_ir as ir

_NOT_IN_IDENTIFIER = re.compile(r"[^A-Za-z0-9_]")


class UniqueNames:
    """Generates names for new values and nodes that are unique in all graphs of the model."""

    def __init__(self, model: ir.Model) -> None:
        self._values = {value.name or "" for graph in model.graphs() for value in _values(graph)}
        self._nodes = {node.name or "" for graph in model.graphs() for node in graph}

    def value(self, wish: str) -> str:
        return free_name(wish, self._values)

    def node(self, wish: str) -> str:
        return free_name(wish, self._nodes)

    def rename_duplicates(self, model: ir.Model) -> int:
        """Rename nodes with an earlier node's name in one graph, which ONNX Runtime rejects; return their number."""
        renamed = 0
        for graph in model.graphs():
            seen: set[str] = set()
            for node in graph:
                if node.name and node.name in seen:
                    node.name = self.node(node.name)
                    renamed += 1
                seen.add(node.name or "")
        return renamed

    def name_all(self, model: ir.Model) -> int:
        """Name nodes without a unique name after their operator and output; return their number."""
        renamed = 0
        seen: set[str] = set()
        for graph in model.graphs():
            for node in graph:
                if not node.name or node.name in seen:
                    output = next((value.name for value in node.outputs if value.name), "")
                    node.name = self.node(node.name or f"{node.op_type}_{output}")
                    renamed += 1
                seen.add(node.name)
        return renamed


def _values(graph: ir.Graph) -> Iterator[ir.Value]:
    yield from graph.inputs
    yield from graph.initializers.values()
    for node in graph:
        yield from node.outputs


def identifier(wish: str) -> str:
    """Return a C90 identifier like `wish`: characters other than letters, digits and `_` become `_`."""
    text = _NOT_IN_IDENTIFIER.sub("_", wish) or "node"
    return f"_{text}" if text[0].isdigit() else text


def free_name(wish: str, taken: set[str]) -> str:
    """Return `wish`, or the first unused of `wish_2`, `wish_3`, ..., and add it to `taken`."""
    name = f"{wish}_{_free_number(wish, taken)}" if wish in taken else wish
    taken.add(name)
    return name


def _free_number(wish: str, taken: Container[str]) -> int:
    """Return an unused number by bisection: thousands of nodes may have the same name."""
    below, number = 1, 2
    while f"{wish}_{number}" in taken:
        below, number = number, 2 * number
    while number - below > 1:
        middle = (below + number) // 2
        if f"{wish}_{middle}" in taken:
            below = middle
        else:
            number = middle
    return number
