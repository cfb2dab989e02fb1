"""Connected components of a graph."""

from __future__ import annotations

from collections.abc import Sequence

from ndld_flow.drawing.layering import Edge


def components(count: int, edges: Sequence[Edge]) -> list[tuple[list[int], list[int]]]:
    """Return the nodes and edges of each connected component, as positions, ordered by first node."""
    neighbours: list[list[int]] = [[] for _ in range(count)]
    for source, target in edges:
        neighbours[source].append(target)
        neighbours[target].append(source)
    part = [-1] * count
    parts = 0
    for start in range(count):
        if part[start] < 0:
            _mark(start, parts, part, neighbours)
            parts += 1
    found: list[tuple[list[int], list[int]]] = [([], []) for _ in range(parts)]
    for node in range(count):
        found[part[node]][0].append(node)
    for place, (source, _) in enumerate(edges):
        found[part[source]][1].append(place)
    return found


def _mark(start: int, number: int, part: list[int], neighbours: Sequence[Sequence[int]]) -> None:
    """Assign `number` to all nodes that can be reached from `start`."""
    part[start] = number
    waiting = [start]
    while waiting:
        for one in neighbours[waiting.pop()]:
            if part[one] < 0:
                part[one] = number
                waiting.append(one)
