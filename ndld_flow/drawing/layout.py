"""Deterministic layered graph layout with few crossings and straight lines.

It follows Sugiyama, Tagawa and Toda (1981): assign layers, reserve places for long edges, order, place, route. Unlike
most implementations, edges that carry the same tensor share a trunk, no edge passes through a node, and a very long
graph is broken into columns, as a newspaper does with text, so that 500 layers fit a picture.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise

from ndld_flow.base.garbage_collection import paused_garbage_collection
from ndld_flow.drawing.graph import Box, Direction, Layout, Point, Route
from ndld_flow.drawing.layered import (
    Edge,
    Layered,
    build_layers,
    components,
    find_spines,
    place_across,
    reduce_crossings,
)

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

    `widths` has one value per vertex, `heights` one per layer including the gap after it. Coordinates are not needed.
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
            joint = joints[number - 1]
            gutter = left - _MARGIN - _LANE * len(joint)
            # The corners of each line: down, under the column, up the gutter, over the next column; nested, so that
            # ordered lines do not cross.
            for lane, (upper, lower) in enumerate(joint):
                inner = len(joint) - 1 - lane
                start, end = across[upper] + shifts[-1][0], across[lower] + shift[0]
                floor, ceiling = bottom + _LANE * (inner + 1), top - _LANE * (lane + 1)
                x = gutter + _LANE * inner
                carried[upper, lower] = ((start, floor), (x, floor), (x, ceiling), (end, ceiling))
        shifts.extend([shift] * len(part))
        left += max(band.right for band in part) - min(band.left for band in part)
        left += 2 * _MARGIN + _LANE * len(joints[number]) if number < len(joints) else 0.0
    return Columns(tuple(shifts), carried, left, bottom + top)


_GAP_ACROSS = 26.0
_GAP_OF_PASSAGE = 14.0
_GAP_BETWEEN_LAYERS = 26.0
_WIDEST_GAP = 84.0
_GAP_OF_PARTS = 40.0
_INSET = 9.0
"""Minimum distance between a node's corner and the end of an edge."""


@dataclass(frozen=True, slots=True)
class Extent:
    """The size of a node, including the room for its label."""

    width: float
    height: float
    tail: float = 0.0
    """Room for the label of its edges, after the node in the direction of the layers."""
    breadth: float = 0.0
    """Room for the label across the layers."""


@dataclass(frozen=True)
class _Part:
    """A connected component with its upper left corner at 0, 0."""

    nodes: Sequence[int]
    edges: Sequence[int]
    boxes: list[Box]
    routes: list[Route]
    width: float
    height: float


def lay_out(
    extents: Sequence[Extent],
    edges: Sequence[Edge],
    tensors: Sequence[Hashable] = (),
    direction: Direction = "down",
    aspect: float | None = None,
) -> Layout:
    """Lay out nodes of these sizes; edges are pairs of positions among them.

    Edges of one source with equal `tensors` share a trunk. With `aspect` (width over height), long graphs are broken
    into columns to approach it. Cycles, self-loops, repeated edges and separate components are allowed.
    """
    if direction == "right":
        turned = [Extent(extent.height, extent.width, extent.tail, extent.breadth) for extent in extents]
        return _transposed(lay_out(turned, edges, tensors, "down", None if aspect is None else 1 / aspect))
    names = tensors or [0] * len(edges)
    with paused_garbage_collection():
        found = components(len(extents), edges)
        parts = [_lay_out_part(extents, edges, names, nodes, inside, aspect) for nodes, inside in found]
        return _pack(parts, len(extents), len(edges), aspect or 1.6)


def _lay_out_part(
    extents: Sequence[Extent],
    edges: Sequence[Edge],
    tensors: Sequence[Hashable],
    nodes: Sequence[int],
    inside: Sequence[int],
    aspect: float | None,
) -> _Part:
    sizes = [extents[node] for node in nodes]
    if len(nodes) == 1 and not inside:
        size = sizes[0]
        return _Part(nodes, inside, [Box(0, 0, size.width, size.height)], [], size.width, size.height)
    number = {node: index for index, node in enumerate(nodes)}
    own = [(number[edges[place][0]], number[edges[place][1]]) for place in inside]
    graph = build_layers(len(nodes), own, [tensors[place] for place in inside])
    reduce_crossings(graph)
    passages = len(graph.above) - graph.count
    widths = [max(size.width, size.breadth) + _GAP_ACROSS for size in sizes] + [_GAP_OF_PASSAGE] * passages
    cuts = choose_cuts(graph, widths, _heights(graph, sizes), aspect) if aspect else []
    apart = cut_apart(graph, cuts)
    across = [round(x) for x in place_across(apart, widths, find_spines(graph))]
    bands = _bands(apart, sizes, across)
    columns = set_columns(graph, bands, across, cuts)
    router = _Router(graph, sizes, across, bands, columns)
    boxes = [router.box(vertex) for vertex in range(graph.count)]
    routes = [router.route(index, edge) for index, edge in enumerate(own)]
    return _Part(nodes, inside, boxes, routes, columns.width, columns.height)


def _heights(graph: Layered, sizes: Sequence[Extent]) -> list[float]:
    """Return the minimum height of each layer, including the gap after it."""
    nodes = [[sizes[vertex] for vertex in layer if vertex < graph.count] for layer in graph.layers]
    return [max([size.height + size.tail for size in layer], default=0.0) + _GAP_BETWEEN_LAYERS for layer in nodes]


def _bands(graph: Layered, sizes: Sequence[Extent], across: Sequence[float]) -> list[Band]:
    """Return the position of each layer. Layers with wide edges between them are further apart, so that edges are not
    flat.
    """
    bands = []
    top = 0.0
    for layer, height in zip(graph.layers, _heights(graph, sizes), strict=True):
        bottom = top + height - _GAP_BETWEEN_LAYERS
        halves = [
            (vertex, max(sizes[vertex].width, sizes[vertex].breadth) / 2 if vertex < graph.count else 0.0)
            for vertex in layer
        ]
        left = min(across[vertex] - half for vertex, half in halves)
        right = max(across[vertex] + half for vertex, half in halves)
        bands.append(Band(top, bottom, left, right))
        farthest = max(
            [abs(across[neighbour] - across[vertex]) for vertex in layer for neighbour in graph.below[vertex]],
            default=0,
        )
        top = bottom + round(min(_WIDEST_GAP, _GAP_BETWEEN_LAYERS + 0.07 * farthest))
    return bands


class _Router:
    """Boxes and routes of one component, with layers placed in columns."""

    def __init__(
        self, graph: Layered, sizes: Sequence[Extent], across: Sequence[float], bands: Sequence[Band], columns: Columns
    ) -> None:
        self.graph = graph
        self.sizes = sizes
        self.carried = columns.carried
        layer_of = graph.layer_of
        self.x = [x + columns.shifts[layer_of[vertex]][0] for vertex, x in enumerate(across)]
        self.top = [bands[layer].top + columns.shifts[layer][1] for layer in layer_of]
        self.bottom = [bands[layer].bottom + columns.shifts[layer][1] for layer in layer_of]

    def box(self, node: int) -> Box:
        """Return the box of a node, centred in its layer including its label."""
        size = self.sizes[node]
        free = self.bottom[node] - self.top[node] - size.height - size.tail
        return Box(self.x[node] - size.width / 2, self.top[node] + free // 2, size.width, size.height)

    def route(self, place: int, edge: Edge) -> Route:
        """Return the route of one edge, given by its position and its ends."""
        back = place in self.graph.back
        if edge[0] == edge[1]:
            box = self.box(edge[0])
            right, out = box.x + box.width, box.x + box.width + _GAP_ACROSS / 3
            low, high = box.y + 0.7 * box.height, box.y + 0.3 * box.height
            return Route(((right, low), (out, low), (out, high), (right, high)), back=True)
        upper, lower = edge[::-1] if back else edge
        chain = self.graph.chains[place]
        points = self._along(chain or (upper, lower), far=chain is None)
        return Route(tuple(points[::-1] if back else points), back, far=chain is None)

    def _along(self, chain: Sequence[int], far: bool) -> list[Point]:
        first, last = chain[0], chain[-1]
        start, end = self.box(first), self.box(last)
        middle = self.x[first]
        points: list[Point] = [(middle, start.y + start.height + self.sizes[first].tail)]
        if not far:
            points.append((middle, self.bottom[first]))
        for upper, lower in pairwise(chain[:-1]):
            points += self.carried.get((upper, lower), ())
            points += [(self.x[lower], self.top[lower]), (self.x[lower], self.bottom[lower])]
        corners = self.carried.get((chain[-2], last), ())
        points += corners
        inset = min(_INSET, end.width / 2)
        arrival = min(max(points[-1][0], end.x + inset), end.x + end.width - inset)
        if corners:
            arrival = self.x[last]
        if not far:
            points.append((arrival, self.top[last]))
        points.append((arrival, end.y))
        return _without_repeats(points)


def _without_repeats(points: Sequence[Point]) -> list[Point]:
    """Return the points without those in the middle of a vertical line."""
    kept: list[Point] = []
    for point in points:
        if kept and kept[-1] == point:
            continue
        if len(kept) > 1 and kept[-2][0] == kept[-1][0] == point[0]:
            kept[-1] = point
        else:
            kept.append(point)
    return kept


def _pack(parts: Sequence[_Part], nodes: int, edges: int, aspect: float) -> Layout:
    """Arrange separate components in rows, the largest first."""
    area = sum((part.width + _GAP_OF_PARTS) * (part.height + _GAP_OF_PARTS) for part in parts)
    limit = max([math.sqrt(area * aspect), *(part.width for part in parts)])
    boxes: list[Box] = [Box(0, 0, 0, 0)] * nodes
    routes: list[Route] = [Route(())] * edges
    x = y = row = width = 0.0
    for part in sorted(parts, key=lambda part: (-part.height, part.nodes[0])):
        if x and x + part.width > limit:
            x, y, row = 0.0, y + row + _GAP_OF_PARTS, 0.0
        for node, box in zip(part.nodes, part.boxes, strict=True):
            boxes[node] = Box(box.x + x, box.y + y, box.width, box.height)
        for edge, route in zip(part.edges, part.routes, strict=True):
            moved = tuple((px + x, py + y) for px, py in route.points)
            routes[edge] = Route(moved, route.back, route.far)
        width, row = max(width, x + part.width), max(row, part.height)
        x += part.width + _GAP_OF_PARTS
    return Layout(width, y + row, tuple(boxes), tuple(routes))


def _transposed(layout: Layout) -> Layout:
    return Layout(
        layout.height,
        layout.width,
        tuple(Box(box.y, box.x, box.height, box.width) for box in layout.boxes),
        tuple(Route(tuple((y, x) for x, y in route.points), route.back, route.far) for route in layout.routes),
    )
