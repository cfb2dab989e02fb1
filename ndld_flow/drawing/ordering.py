"""The order within each layer, so that few edges cross (the barycentre method of Sugiyama, Tagawa and Toda, 1981)."""

from __future__ import annotations

from bisect import bisect_right, insort
from collections.abc import Sequence
from itertools import pairwise

from ndld_flow.drawing.layered import Layered

_SWEEPS = 8
_FEW_SWEEPS = 4
_LARGE = 20_000
"""Vertices from which on fewer sweeps must do."""


def reduce_crossings(graph: Layered) -> None:
    """Reorder `graph.layers` in place: sweep down and up, keep the order with the fewest crossings."""
    _first_order(graph)
    best, fewest = [list(layer) for layer in graph.layers], count_crossings(graph)
    sweeps = _SWEEPS if len(graph.above) < _LARGE else _FEW_SWEEPS
    for sweep in range(sweeps):
        if fewest == 0:
            break
        if sweep % 2 == 0:
            _sweep(graph.layers, graph.above)
        else:
            _sweep(graph.layers[::-1], graph.below)
        crossings = count_crossings(graph)
        if crossings < fewest:
            best, fewest = [list(layer) for layer in graph.layers], crossings
    graph.layers[:] = best


def _first_order(graph: Layered) -> None:
    """By a walk that follows each branch to its end; passing edges to the right of the nodes they pass."""
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
    """Sort each layer by where its neighbours in the layer before it are; who has none keeps its place."""
    position: dict[int, float] = {}
    for layer in layers:
        # Places run from 0 to 1: a narrow layer says as much about the sides as a wide one.
        keys = {}
        for place, vertex in enumerate(layer):
            near = neighbours[vertex]
            keys[vertex] = sum(position[one] for one in near) / len(near) if near else float(place)
        layer.sort(key=keys.__getitem__)
        position = {vertex: float(place) for place, vertex in enumerate(layer)}


def count_crossings(graph: Layered) -> int:
    """How many pairs of edges cross between neighbouring layers."""
    crossings = 0
    for upper, lower in pairwise(graph.layers):
        place = {vertex: number for number, vertex in enumerate(lower)}
        passed: list[int] = []
        for vertex in upper:
            ends = sorted(place[one] for one in graph.below[vertex])
            for end in ends:
                crossings += len(passed) - bisect_right(passed, end)
            for end in ends:
                insort(passed, end)
    return crossings
