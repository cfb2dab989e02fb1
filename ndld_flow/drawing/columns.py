"""A long graph cut into columns, as a newspaper sets its text: a strip of 500 layers becomes a picture."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise

from ndld_flow.drawing.graph import Point
from ndld_flow.drawing.layered import Layered

_LANE = 9.0
"""Between lines that run side by side from one column to the next."""
_MARGIN = 16.0
_MOST_COLUMNS = 24
_MOST_CARRIED = 24
"""More lines than these are not carried over: such a graph is cut nowhere there."""
_SHORT = 1400.0
"""A graph no longer than this is not cut: it can be looked at as it is."""
_SPREAD = 1.05
"""A column is about so much wider than its widest layer: layers are not centred."""
_SEARCHED = 0.3
"""Of a column's height: how far from its end a good place to cut is looked for."""
_COST_OF_A_LINE = 0.035
"""Of a column's height: how far a cut may move to carry one line less."""


@dataclass(frozen=True)
class Band:
    """One layer before it is put into a column."""

    top: float
    bottom: float
    left: float
    right: float


@dataclass(frozen=True)
class Columns:
    """How far each layer moves, and the way of each line that is carried from one column to the next."""

    shifts: tuple[Point, ...]
    """By layer."""
    carried: dict[tuple[int, int], tuple[Point, ...]]
    """(upper vertex, lower vertex) -> the corners between them."""
    width: float
    height: float


def choose_cuts(graph: Layered, widths: Sequence[float], heights: Sequence[float], aspect: float) -> list[int]:
    """The last layer of each column but the last, so that the whole comes near to `aspect`, width over height.

    `widths` are those of vertices, `heights` of layers with the gap after them: the graph need not be placed yet.
    """
    ends = list(accumulate(heights))
    if ends[-1] <= _SHORT:
        return []
    wide = [sum([widths[vertex] for vertex in layer]) for layer in graph.layers]
    lines = [sum([len(graph.below[vertex]) for vertex in layer]) for layer in graph.layers]
    candidates = [_cuts(ends, lines, count) for count in range(1, min(_MOST_COLUMNS, len(ends)) + 1)]
    return min(candidates, key=lambda cuts: _off(cuts, ends, wide, lines, aspect))


def _off(
    cuts: Sequence[int], ends: Sequence[float], wide: Sequence[float], lines: Sequence[int], aspect: float
) -> float:
    """How far from the aspect these columns would be."""
    starts = [0, *(cut + 1 for cut in cuts), len(ends)]
    width = sum(_SPREAD * max(wide[start:end]) for start, end in pairwise(starts))
    width += sum(2 * _MARGIN + _LANE * lines[cut] for cut in cuts)
    height = max(ends[end - 1] - (ends[start - 1] if start else 0.0) for start, end in pairwise(starts))
    return abs(math.log(width / height / aspect))


def _cuts(ends: Sequence[float], lines: Sequence[int], count: int) -> list[int]:
    """Cuts into so many columns of about one height, where few lines must be carried."""
    column = ends[-1] / count
    cuts: list[int] = []
    for number in range(1, count):
        ideal = number * column
        first = bisect_left(ends, ideal - _SEARCHED * column)
        last = bisect_left(ends, ideal + _SEARCHED * column)
        near = [
            (abs(ends[k] - ideal) / column + _COST_OF_A_LINE * lines[k], k)
            for k in range(max(first, cuts[-1] + 1 if cuts else 0), min(last, len(ends) - 1))
            if lines[k] <= _MOST_CARRIED
        ]
        if near:
            cuts.append(min(near)[1])
    return cuts


def cut_apart(graph: Layered, cuts: Sequence[int]) -> Layered:
    """The graph without the lines that go over a cut: each column is placed for itself."""
    if not cuts:
        return graph
    above, below = list(graph.above), list(graph.below)
    for cut in cuts:
        for vertex in graph.layers[cut]:
            below[vertex] = []
        for vertex in graph.layers[cut + 1]:
            above[vertex] = []
    return Layered(graph.count, graph.layers, above, below, graph.chains, graph.back)


def set_columns(graph: Layered, bands: Sequence[Band], across: Sequence[float], cuts: Sequence[int]) -> Columns:
    """Put the columns side by side and lead the lines between them."""
    starts = [0, *(cut + 1 for cut in cuts), len(bands)]
    joints = [[(upper, lower) for upper in graph.layers[cut] for lower in graph.below[upper]] for cut in cuts]
    parts = [bands[start:end] for start, end in pairwise(starts)]
    top = max([0.0, *(_MARGIN + _LANE * len(joint) for joint in joints)])
    bottom = top + max(part[-1].bottom - part[0].top for part in parts)
    shifts: list[Point] = []
    carried: dict[tuple[int, int], tuple[Point, ...]] = {}
    left = 0.0
    for number, part in enumerate(parts):
        shift = (left - min(band.left for band in part), top - part[0].top)
        if number:
            gutter = left - _MARGIN - _LANE * len(joints[number - 1])
            carried |= dict(_corners(joints[number - 1], across, (shifts[-1][0], shift[0]), (gutter, top, bottom)))
        shifts.extend([shift] * len(part))
        left += max(band.right for band in part) - min(band.left for band in part)
        left += 2 * _MARGIN + _LANE * len(joints[number]) if number < len(joints) else 0.0
    return Columns(tuple(shifts), carried, left, bottom + top)


def _corners(
    joint: Sequence[tuple[int, int]],
    across: Sequence[float],
    shifts: tuple[float, float],
    room: tuple[float, float, float],
) -> Iterator[tuple[tuple[int, int], tuple[Point, ...]]]:
    """Down, under the column, up the gutter, over the next column: nested, so that lines in order do not cross."""
    gutter, top, bottom = room
    for number, (upper, lower) in enumerate(joint):
        inner = len(joint) - 1 - number
        start, end = across[upper] + shifts[0], across[lower] + shifts[1]
        floor, ceiling = bottom + _LANE * (inner + 1), top - _LANE * (number + 1)
        x = gutter + _LANE * inner
        yield (upper, lower), ((start, floor), (x, floor), (x, ceiling), (end, ceiling))
