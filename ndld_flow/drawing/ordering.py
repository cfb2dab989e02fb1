"""Order the vertices of each layer to reduce crossings: the barycentre method of Sugiyama, Tagawa and Toda (1981)."""

from __future__ import annotations

from bisect import bisect_right, insort
from collections.abc import Sequence
from itertools import pairwise

from ndld_flow.drawing.layered import Layered

_SWEEPS = 8
_FEW_SWEEPS = 4
_PATIENCE = 2
"""Number of sweeps (down or up) without improvement before stopping."""
_LARGE = 6_000
"""Number of vertices above which fewer sweeps are made."""


def reduce_crossings(graph: Layered) -> None:
    """Reorder `graph.layers` in place: sweep down and up, keep the order with the fewest crossings."""
    _first_order(graph)
    best, fewest = [list(layer) for layer in graph.layers], count_crossings(graph)
    sweeps = _SWEEPS if len(graph.above) < _LARGE else _FEW_SWEEPS
    in_vain = 0
    for sweep in range(sweeps):
        if fewest == 0 or in_vain == _PATIENCE:
            break
        if sweep % 2 == 0:
            _sweep(graph.layers, graph.above)
        else:
            _sweep(graph.layers[::-1], graph.below)
        crossings = count_crossings(graph)
        in_vain = 0 if crossings < fewest else in_vain + 1
        if crossings < fewest:
            best, fewest = [list(layer) for layer in graph.layers], crossings
    graph.layers[:] = best


def _first_order(graph: Layered) -> None:
    """Set the initial order by a depth-first walk; passing edges go to the right of the nodes they pass."""
    rank = [-1] * len(graph.above)
    found = 0
    for start in (vertex for layer in graph.layers for vertex in layer):
        path = [start]
        while path:
            vertex = path.pop()
            if rank[vertex] >= 0:
                continue
            rank[vertex] = found
            found += 1
            path.extend(sorted(graph.below[vertex], reverse=True))
    for layer in graph.layers:
        layer.sort(key=rank.__getitem__)


def _sweep(layers: Sequence[list[int]], neighbours: Sequence[Sequence[int]]) -> None:
    """Sort each layer by the positions of its neighbours in the previous layer; vertices without neighbours keep their
    place.
    """
    position = [0] * len(neighbours)
    for layer in layers:
        if len(layer) > 1:
            keys = {}
            for place, vertex in enumerate(layer):
                near = neighbours[vertex]
                if len(near) == 1:
                    keys[vertex] = float(position[near[0]])
                else:
                    keys[vertex] = sum([position[one] for one in near]) / len(near) if near else float(place)
            layer.sort(key=keys.__getitem__)
        for place, vertex in enumerate(layer):
            position[vertex] = place


def count_crossings(graph: Layered) -> int:
    """Return the number of pairs of edges that cross between neighbouring layers."""
    crossings = 0
    position = [0] * len(graph.above)
    for upper, lower in pairwise(graph.layers):
        if len(upper) == 1 or len(lower) == 1:
            continue
        for place, vertex in enumerate(lower):
            position[vertex] = place
        crossings += _crossings_below(upper, graph.below, position)
    return crossings


def _crossings_below(upper: Sequence[int], below: Sequence[Sequence[int]], position: Sequence[int]) -> int:
    """Return the number of crossings: for each edge, the number of earlier edges that end to the right of its end."""
    crossings = 0
    passed: list[int] = []
    for vertex in upper:
        ends = [position[one] for one in below[vertex]]
        for end in ends:
            if passed and passed[-1] > end:
                crossings += len(passed) - bisect_right(passed, end)
        for end in ends:
            insort(passed, end)
    return crossings
