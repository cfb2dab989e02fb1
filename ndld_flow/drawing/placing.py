"""Coordinates across the layers: compact, edges as straight as they can be.

After Brandes and Köpf, "Fast and Simple Horizontal Coordinate Assignment" (2001): four layouts, each aligned to one
side, and between them the mean of the two in the middle.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from ndld_flow.drawing.layered import Layered
from ndld_flow.drawing.settling import settle


def place_across(graph: Layered, widths: Sequence[float], spine: Sequence[int]) -> list[float]:
    """The centre of each vertex; `widths` includes the gap to its neighbours in the layer.

    `spine` tells what should be in one line, as `find_spines` does.
    """
    crossing = _marked_crossings(graph, spine)
    above = _straightened(graph, graph.above, graph.below, spine)
    below = _straightened(graph, graph.below, graph.above, spine)
    found = []
    for layers, neighbours in ((graph.layers, above), (graph.layers[::-1], below)):
        for mirrored in (False, True):
            seen = [layer[::-1] for layer in layers] if mirrored else layers
            root = _align(seen, neighbours, crossing)
            places = _compact(seen, root, widths)
            found.append([-place for place in places] if mirrored else places)
    across = _between(found, widths)
    settle(graph, across, widths, spine)
    return across


def _straightened(
    graph: Layered, neighbours: Sequence[Sequence[int]], onward: Sequence[Sequence[int]], spine: Sequence[int]
) -> list[list[int]]:
    """Neighbours to be in line with: what is on one spine stays on it, and a node follows nodes rather than what
    passes. Nobody gets in line with a vertex whose own spine goes on that way (`onward`)."""
    goes_on = [any(spine[one] == spine[vertex] for one in near) for vertex, near in enumerate(onward)]
    straight: list[list[int]] = []
    for vertex, near in enumerate(neighbours):
        on_spine = [one for one in near if spine[one] == spine[vertex]]
        free = on_spine or [one for one in near if not goes_on[one]]
        straight.append([one for one in free if one < graph.count] or free)
    return straight


def find_spines(graph: Layered) -> list[int]:
    """For each vertex a number that those share which should be in one line: pieces of the longest paths.

    Two neighbours are in one line when each is, for the other, on the longest path that way; and so is a trunk.
    """
    depth, height = _longest(graph.layers, graph.above), _longest(graph.layers[::-1], graph.below)
    spine = list(range(len(graph.above)))
    wanted = [_best(vertex, near, height, graph.count) for vertex, near in enumerate(graph.below)]
    for layer in graph.layers[1:]:
        for vertex in layer:
            upper = _best(vertex, graph.above[vertex], depth, graph.count)
            if upper >= 0 and wanted[upper] == vertex:
                spine[vertex] = spine[upper]
    return spine


def _longest(layers: Sequence[Sequence[int]], neighbours: Sequence[Sequence[int]]) -> list[int]:
    """How many vertices the longest path to each one has."""
    longest = [1] * len(neighbours)
    for layer in layers:
        for vertex in layer:
            for one in neighbours[vertex]:
                if longest[one] >= longest[vertex]:
                    longest[vertex] = longest[one] + 1
    return longest


def _best(vertex: int, near: Sequence[int], longest: Sequence[int], count: int) -> int:
    """The neighbour a vertex wants to be in line with: one of its kind, with the longest way behind it; -1 for none."""
    if not near:
        return -1
    if len(near) == 1:
        return near[0]
    return max(near, key=lambda one: ((one < count) == (vertex < count), longest[one], -one))


def _marked_crossings(graph: Layered, spine: Sequence[int]) -> set[tuple[int, int]]:
    """Segments that cross a piece of a spine: spines stay straight, all else gives way."""
    marked: set[tuple[int, int]] = set()
    for upper, lower in pairwise(graph.layers):
        place = {vertex: number for number, vertex in enumerate(upper)}
        low, scanned = 0, 0
        for number, vertex in enumerate(lower):
            inner = next((one for one in graph.above[vertex] if spine[one] == spine[vertex]), None)
            if inner is None and number < len(lower) - 1:
                continue
            high = len(upper) if inner is None else place[inner]
            for other in lower[scanned : number + 1]:
                for one in graph.above[other]:
                    if (place[one] < low or place[one] > high) and spine[one] != spine[other]:
                        marked.add((one, other))
            low, scanned = max(low, high), number + 1
    return marked


def _align(
    layers: Sequence[Sequence[int]], neighbours: Sequence[Sequence[int]], crossing: set[tuple[int, int]]
) -> list[int]:
    """The root of each vertex: vertices of one root get one coordinate."""
    root = list(range(len(neighbours)))
    place: dict[int, int] = {}
    for layer in layers:
        rightmost = -1
        for vertex in layer:
            near = neighbours[vertex]
            if len(near) > 1:
                near = sorted(near, key=place.__getitem__)
                near = near[(len(near) - 1) // 2 : len(near) // 2 + 1]
            for one in near:
                free = (one, vertex) not in crossing and (vertex, one) not in crossing
                if root[vertex] == vertex and free and place[one] > rightmost:
                    root[vertex] = root[one]
                    rightmost = place[one]
        place = {vertex: number for number, vertex in enumerate(layer)}
    return root


def _compact(layers: Sequence[Sequence[int]], root: Sequence[int], widths: Sequence[float]) -> list[float]:
    """The coordinate of each vertex, blocks as close to their left neighbours as they go, then pulled to the right."""
    after: dict[int, list[tuple[int, float]]] = {one: [] for one in set(root)}
    waiting = dict.fromkeys(after, 0)
    for layer in layers:
        for left, right in pairwise(layer):
            after[root[left]].append((root[right], (widths[left] + widths[right]) / 2))
            waiting[root[right]] += 1
    place = dict.fromkeys(after, 0.0)
    order = [one for layer in layers for one in layer if root[one] == one and not waiting[one]]
    for block in order:  # grows while it is read
        for other, apart in after[block]:
            place[other] = max(place[other], place[block] + apart)
            waiting[other] -= 1
            if not waiting[other]:
                order.append(other)
    for block in reversed(order):
        if after[block]:
            place[block] = max(place[block], min(place[other] - apart for other, apart in after[block]))
    return [place[one] for one in root]


def _between(found: Sequence[Sequence[float]], widths: Sequence[float]) -> list[float]:
    """Shift all to the narrowest one's sides, then take the mean of the middle two; the leftmost border is 0."""
    spans = [
        (
            min(x - w / 2 for x, w in zip(one, widths, strict=True)),
            max(x + w / 2 for x, w in zip(one, widths, strict=True)),
        )
        for one in found
    ]
    left, right = min(spans, key=lambda span: span[1] - span[0])
    # The layouts come in pairs: aligned to the left, then to the right.
    shifts = [right - high if number % 2 else left - low for number, (low, high) in enumerate(spans)]
    middle = []
    for four in zip(*found, strict=True):
        ordered = sorted(x + shift for x, shift in zip(four, shifts, strict=True))
        middle.append((ordered[1] + ordered[2]) / 2 - left)
    return middle
