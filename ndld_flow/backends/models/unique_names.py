"""Names that nothing else in a model has."""

from __future__ import annotations

import re
from collections.abc import Iterator

import onnx_ir as ir

_NOT_IN_IDENTIFIER = re.compile(r"[^A-Za-z0-9_]")


class UniqueNames:
    """Makes names for new values and nodes that no other has, in any graph of the model."""

    def __init__(self, model: ir.Model) -> None:
        self._values = {value.name or "" for graph in model.graphs() for value in _values(graph)}
        self._nodes = {node.name or "" for graph in model.graphs() for node in graph}

    def value(self, wish: str) -> str:
        return free_name(wish, self._values)

    def node(self, wish: str) -> str:
        return free_name(wish, self._nodes)

    def part_duplicates(self, model: ir.Model) -> int:
        """Rename all but the first of nodes that have one name in one graph, which ONNX Runtime refuses."""
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
        """Name what has no name or one that an earlier node of the model has, after its operator and output."""
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
    """A C90 identifier like `wish`: what it has besides letters, digits and `_` becomes `_`."""
    made = _NOT_IN_IDENTIFIER.sub("_", wish) or "node"
    return f"_{made}" if made[0].isdigit() else made


def free_name(wish: str, taken: set[str]) -> str:
    """`wish`, or `wish_2`, `wish_3`, ... whichever is free; it is taken then."""
    name, number = wish, 1
    while name in taken:
        number += 1
        name = f"{wish}_{number}"
    taken.add(name)
    return name
