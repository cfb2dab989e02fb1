"""A long graph cut into columns, as a newspaper sets its text: a strip of 500 layers becomes a picture."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from ndld_flow.drawing.graph import Point
from ndld_flow.drawing.layered import Layered

LANE = 9.0
"""Between lines that run side by side from one column to the next."""
MARGIN = 16.0
_MOST_COLUMNS = 24
_MOST_CARRIED = 24
"""More lines than these are not carried over: such a graph is cut nowhere there."""
_SHORT = 1400.0
"""A graph no longer than this is not cut: it can be looked at as it is."""
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


def fold(graph: Layered, bands: Sequence[Band], across: Sequence[float], aspect: float) -> Columns:
    """The number of columns that comes closest to `aspect`, width over height; one where nothing is gained."""
    lines = [sum(len(graph.below[vertex]) for vertex in layer) for layer in graph.layers]
    best = _set(graph, bands, across, [])
    tried: set[tuple[int, ...]] = set()
    most = _MOST_COLUMNS if best.height > _SHORT else 1
    for count in range(2, min(most, len(bands)) + 1):
        cuts = _cuts(bands, lines, count)
        if not cuts or tuple(cuts) in tried:
            continue
        tried.add(tuple(cuts))
        columns = _set(graph, bands, across, cuts)
        if _off(columns, aspect) < _off(best, aspect):
            best = columns
    return best


def _off(columns: Columns, aspect: float) -> float:
    return abs(math.log(columns.width / columns.height / aspect))


def _cuts(bands: Sequence[Band], lines: Sequence[int], count: int) -> list[int]:
    """The last layer of each column but the last one."""
    column = (bands[-1].bottom - bands[0].top) / count
    cuts: list[int] = []
    for number in range(1, count):
        ideal = bands[0].top + number * column
        first = bisect_left(bands, ideal - _SEARCHED * column, key=_bottom)
        last = bisect_left(bands, ideal + _SEARCHED * column, key=_bottom)
        near = [
            (abs(bands[k].bottom - ideal) / column + _COST_OF_A_LINE * lines[k], k)
            for k in range(max(first, cuts[-1] + 1 if cuts else 0), min(last, len(bands) - 1))
            if lines[k] <= _MOST_CARRIED
        ]
        if near:
            cuts.append(min(near)[1])
    return cuts


def _bottom(band: Band) -> float:
    return band.bottom


def _set(graph: Layered, bands: Sequence[Band], across: Sequence[float], cuts: Sequence[int]) -> Columns:
    starts = [0, *(cut + 1 for cut in cuts), len(bands)]
    joints = [_joint(graph, across, cut) for cut in cuts]
    parts = [bands[start:end] for start, end in pairwise(starts)]
    top = max([0.0, *(MARGIN + LANE * len(joint) for joint in joints)])
    bottom = top + max(part[-1].bottom - part[0].top for part in parts)
    shifts: list[Point] = []
    carried: dict[tuple[int, int], tuple[Point, ...]] = {}
    left = 0.0
    for number, part in enumerate(parts):
        shift = (left - min(band.left for band in part), top - part[0].top)
        if number:
            gutter = left - MARGIN - LANE * len(joints[number - 1])
            carried |= dict(_corners(joints[number - 1], across, shifts[-1][0], shift[0], (gutter, top, bottom)))
        shifts.extend([shift] * len(part))
        left += max(band.right for band in part) - min(band.left for band in part)
        left += 2 * MARGIN + LANE * len(joints[number]) if number < len(joints) else 0.0
    return Columns(tuple(shifts), carried, left, bottom + top)


def _joint(graph: Layered, across: Sequence[float], cut: int) -> list[tuple[int, int]]:
    """The lines that leave a layer, from left to right."""
    lines = [(upper, lower) for upper in graph.layers[cut] for lower in graph.below[upper]]
    return sorted(lines, key=lambda line: (across[line[0]], across[line[1]]))


def _corners(
    joint: Sequence[tuple[int, int]],
    across: Sequence[float],
    shift: float,
    next_shift: float,
    room: tuple[float, float, float],
) -> Iterator[tuple[tuple[int, int], tuple[Point, ...]]]:
    """Down, under the column, up the gutter, over the next column: nested so that lines in order do not cross."""
    gutter, top, bottom = room
    for number, (upper, lower) in enumerate(joint):
        inner = len(joint) - 1 - number
        start, end = across[upper] + shift, across[lower] + next_shift
        floor, ceiling = bottom + LANE * (inner + 1), top - LANE * (number + 1)
        x = gutter + LANE * inner
        yield (upper, lower), ((start, floor), (x, floor), (x, ceiling), (end, ceiling))
