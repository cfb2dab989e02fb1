"""Shorten edges across the layers: pieces that are in one line move together to where their neighbours want them."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from ndld_flow.drawing.layered import Layered

_ROUNDS = 4


def settle(graph: Layered, across: list[float], widths: Sequence[float], spine: Sequence[int]) -> None:
    """Change coordinates in place; the order within layers and the room between neighbours are kept.

    Each move takes the median of what a piece is joined to, as near as its neighbours allow, so no move makes edges
    longer in sum.
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
    """For each vertex its neighbours in the layer, -1 where there is none."""
    left, right = [-1] * len(graph.above), [-1] * len(graph.above)
    for layer in graph.layers:
        for one, other in pairwise(layer):
            right[one], left[other] = other, one
    return left, right


def _pieces(graph: Layered, across: Sequence[float], spine: Sequence[int]) -> list[list[int]]:
    """Vertices of one spine that lie in one line, from layer to layer."""
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
    """What a piece is joined to, outside of itself."""
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
    # Anywhere between the two in the middle is equally good: then the piece stays.
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
