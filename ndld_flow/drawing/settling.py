"""Shorten edges across the layers by moving aligned vertices together towards their neighbours."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from ndld_flow.drawing.layered import Layered

_ROUNDS = 4


def settle(graph: Layered, across: list[float], widths: Sequence[float], spine: Sequence[int]) -> None:
    """Shorten edges by changing coordinates in place, keeping the order within layers and the minimum distances.

    Each move goes to the median of the connected vertices, as far as neighbours allow, so that no move lengthens the
    edges in total.
    """
    left, right = _sides(graph)
    pieces = _pieces(graph, across, spine)
    joined = [_joined(graph, piece) for piece in pieces]
    for number in range(_ROUNDS):
        moved = False
        order = range(len(pieces)) if number % 2 == 0 else range(len(pieces) - 1, -1, -1)
        for place in order:
            if joined[place]:
                moved |= _move(pieces[place], joined[place], across, widths, (left, right))
        if not moved:
            break


def _sides(graph: Layered) -> tuple[list[int], list[int]]:
    """Return the left and right neighbour of each vertex in its layer; -1 for none."""
    left, right = [-1] * len(graph.above), [-1] * len(graph.above)
    for layer in graph.layers:
        for one, other in pairwise(layer):
            right[one], left[other] = other, one
    return left, right


def _pieces(graph: Layered, across: Sequence[float], spine: Sequence[int]) -> list[list[int]]:
    """Return the runs of vertices of one spine that are in line, from layer to layer."""
    pieces: list[list[int]] = []
    place_of: dict[int, int] = {}
    for layer in graph.layers:
        for vertex in layer:
            upper = next((one for one in graph.above[vertex] if spine[one] == spine[vertex]), -1)
            if upper >= 0 and across[upper] == across[vertex]:
                place_of[vertex] = place_of[upper]
                pieces[place_of[vertex]].append(vertex)
            else:
                place_of[vertex] = len(pieces)
                pieces.append([vertex])
    return pieces


def _joined(graph: Layered, piece: Sequence[int]) -> list[int]:
    """Return the vertices that a piece is connected to."""
    inside = set(piece)
    return [
        one
        for vertex in piece
        for near in (graph.above[vertex], graph.below[vertex])
        for one in near
        if one not in inside
    ]


def _move(
    piece: Sequence[int],
    joined: Sequence[int],
    across: list[float],
    widths: Sequence[float],
    sides: tuple[Sequence[int], Sequence[int]],
) -> bool:
    now = across[piece[0]]
    places = sorted([across[one] for one in joined])
    # Any position between the middle two is equally good: the piece stays.
    target = min(max(now, places[(len(places) - 1) // 2]), places[len(places) // 2])
    if target == now:
        return False
    if target < now:
        bounds = [
            across[one] + (widths[one] + widths[vertex]) / 2 for vertex in piece if (one := sides[0][vertex]) >= 0
        ]
        target = max([target, *bounds])
    else:
        bounds = [
            across[one] - (widths[one] + widths[vertex]) / 2 for vertex in piece if (one := sides[1][vertex]) >= 0
        ]
        target = min([target, *bounds])
    if abs(target - now) < 0.5:
        return False
    for vertex in piece:
        across[vertex] = target
    return True
