"""Break a long graph into columns, as a newspaper does with text, so that 500 layers fit a picture."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise

from ndld_flow.drawing.graph import Point
from ndld_flow.drawing.layered import Layered

_LANE = 9.0
"""Distance between parallel lines that run from one column to the next."""
_MARGIN = 16.0
_MOST_COLUMNS = 24
_MOST_CARRIED = 24
"""Maximum number of lines carried over a cut; a graph is not cut where more would cross."""
_SHORT = 1400.0
"""A graph of this length or less is not cut."""
_SPREAD = 1.05
"""Width of a column relative to its widest layer; layers are not centred, so a column is slightly wider."""
_SEARCHED = 0.3
"""Part of a column's height, around its end, that is searched for a good place to cut."""
_COST_OF_A_LINE = 0.035
"""Part of a column's height that a cut may move to carry one line less."""


@dataclass(frozen=True)
class Band:
    """The position of one layer before it is put into a column."""

    top: float
    bottom: float
    left: float
    right: float


@dataclass(frozen=True)
class Columns:
    """The shift of each layer, and the route of each line that continues in another column."""

    shifts: tuple[Point, ...]
    """One shift per layer."""
    carried: dict[tuple[int, int], tuple[Point, ...]]
    """(upper vertex, lower vertex) -> the corners between them."""
    width: float
    height: float


def choose_cuts(graph: Layered, widths: Sequence[float], heights: Sequence[float], aspect: float) -> list[int]:
    """Return the last layer of each column but the last, chosen so that the picture approaches `aspect` (width over
    height).

    `widths` holds one value per vertex, `heights` one per layer including the gap after it. Coordinates are not needed.
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
    """Return the distance of these columns from the requested aspect."""
    starts = [0, *(cut + 1 for cut in cuts), len(ends)]
    width = sum(_SPREAD * max(wide[start:end]) for start, end in pairwise(starts))
    width += sum(2 * _MARGIN + _LANE * lines[cut] for cut in cuts)
    height = max(ends[end - 1] - (ends[start - 1] if start else 0.0) for start, end in pairwise(starts))
    return abs(math.log(width / height / aspect))


def _cuts(ends: Sequence[float], lines: Sequence[int], count: int) -> list[int]:
    """Return cuts into `count` columns of similar height that few lines cross."""
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
    """Return the graph without the lines that cross a cut, so that each column is placed by itself."""
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
    """Place the columns side by side and route the lines between them."""
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
    """Yield the corners of each line: down, under the column, up the gutter, over the next column; nested, so that
    ordered lines do not cross.
    """
    gutter, top, bottom = room
    for number, (upper, lower) in enumerate(joint):
        inner = len(joint) - 1 - number
        start, end = across[upper] + shifts[0], across[lower] + shifts[1]
        floor, ceiling = bottom + _LANE * (inner + 1), top - _LANE * (number + 1)
        x = gutter + _LANE * inner
        yield (upper, lower), ((start, floor), (x, floor), (x, ceiling), (end, ceiling))
