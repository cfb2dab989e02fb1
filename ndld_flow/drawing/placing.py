"""Assign coordinates within layers: compact, with edges as straight and as short as possible.

After Brandes and Köpf, "Fast and Simple Horizontal Coordinate Assignment" (2001): compute four layouts, each aligned to
one side, and take the mean of the middle two. Then aligned vertices move together towards their neighbours."""

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
    # The left and right neighbour of each vertex in its layer; -1 for none.
    left, right = [-1] * len(graph.above), [-1] * len(graph.above)
    for layer in graph.layers:
        for one, other in pairwise(layer):
            right[one], left[other] = other, one
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


def _pieces(graph: Layered, across: Sequence[float], spine: Sequence[int]) -> list[list[int]]:
    """Return the runs of vertices of one spine that are in line, from layer to layer."""
    pieces: list[list[int]] = []
    place_of: dict[int, int] = {}
    for layer in graph.layers:
        for vertex in layer:
            upper = next((neighbour for neighbour in graph.above[vertex] if spine[neighbour] == spine[vertex]), -1)
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
        neighbour
        for vertex in piece
        for near in (graph.above[vertex], graph.below[vertex])
        for neighbour in near
        if neighbour not in inside
    ]


def _move(
    piece: Sequence[int],
    joined: Sequence[int],
    across: list[float],
    widths: Sequence[float],
    sides: tuple[Sequence[int], Sequence[int]],
) -> bool:
    now = across[piece[0]]
    places = sorted([across[neighbour] for neighbour in joined])
    # Any position between the middle two is equally good: the piece stays.
    target = min(max(now, places[(len(places) - 1) // 2]), places[len(places) // 2])
    if target == now:
        return False
    if target < now:
        bounds = [
            across[neighbour] + (widths[neighbour] + widths[vertex]) / 2
            for vertex in piece
            if (neighbour := sides[0][vertex]) >= 0
        ]
        target = max([target, *bounds])
    else:
        bounds = [
            across[neighbour] - (widths[neighbour] + widths[vertex]) / 2
            for vertex in piece
            if (neighbour := sides[1][vertex]) >= 0
        ]
        target = min([target, *bounds])
    if abs(target - now) < 0.5:
        return False
    for vertex in piece:
        across[vertex] = target
    return True


def place_across(graph: Layered, widths: Sequence[float], spine: Sequence[int]) -> list[float]:
    """Return the centre of each vertex; `widths` includes the gap to its neighbours in the layer.

    `spine` has the vertices to keep in line, as returned by `find_spines`.
    """
    crossing = _marked_crossings(graph, spine)
    above = _straightened(graph, graph.above, graph.below, spine)
    below = _straightened(graph, graph.below, graph.above, spine)
    layouts = []
    for layers, neighbours in ((graph.layers, above), (graph.layers[::-1], below)):
        for mirrored in (False, True):
            seen = [layer[::-1] for layer in layers] if mirrored else layers
            root = _align(seen, neighbours, crossing)
            places = _compact(seen, root, widths)
            layouts.append([-place for place in places] if mirrored else places)
    across = _between(layouts, widths)
    settle(graph, across, widths, spine)
    return across


def _straightened(
    graph: Layered, neighbours: Sequence[Sequence[int]], onward: Sequence[Sequence[int]], spine: Sequence[int]
) -> list[list[int]]:
    """Return the neighbours to align with. Vertices of one spine stay aligned, and nodes align with nodes rather than
    with passing edges. No vertex aligns with one whose own spine continues that way (`onward`).
    """
    goes_on = [any(spine[neighbour] == spine[vertex] for neighbour in near) for vertex, near in enumerate(onward)]
    straight: list[list[int]] = []
    for vertex, near in enumerate(neighbours):
        on_spine = [neighbour for neighbour in near if spine[neighbour] == spine[vertex]]
        free = on_spine or [neighbour for neighbour in near if not goes_on[neighbour]]
        straight.append([neighbour for neighbour in free if neighbour < graph.count] or free)
    return straight


def find_spines(graph: Layered) -> list[int]:
    """Return a number for each vertex; vertices with the same number form a piece of a longest path and should be in
    line.

    Two neighbours are in line if each is on the other's longest path in that direction; the places of a trunk are too.
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
    """Return the number of vertices on the longest path to each vertex."""
    longest = [1] * len(neighbours)
    for layer in layers:
        for vertex in layer:
            for neighbour in neighbours[vertex]:
                if longest[neighbour] >= longest[vertex]:
                    longest[vertex] = longest[neighbour] + 1
    return longest


def _best(vertex: int, near: Sequence[int], longest: Sequence[int], count: int) -> int:
    """Return the preferred neighbour to align with: one of the same kind with the longest path behind it; -1 for
    none."""
    if not near:
        return -1
    if len(near) == 1:
        return near[0]
    return max(near, key=lambda neighbour: ((neighbour < count) == (vertex < count), longest[neighbour], -neighbour))


def _marked_crossings(graph: Layered, spine: Sequence[int]) -> set[tuple[int, int]]:
    """Return the segments that cross a spine; spines stay straight, other segments yield."""
    marked: set[tuple[int, int]] = set()
    for upper, lower in pairwise(graph.layers):
        place = {vertex: number for number, vertex in enumerate(upper)}
        low, scanned = 0, 0
        for number, vertex in enumerate(lower):
            inner = next((neighbour for neighbour in graph.above[vertex] if spine[neighbour] == spine[vertex]), None)
            if inner is None and number < len(lower) - 1:
                continue
            high = len(upper) if inner is None else place[inner]
            for other in lower[scanned : number + 1]:
                for above in graph.above[other]:
                    if (place[above] < low or place[above] > high) and spine[above] != spine[other]:
                        marked.add((above, other))
            low, scanned = max(low, high), number + 1
    return marked


def _align(
    layers: Sequence[Sequence[int]], neighbours: Sequence[Sequence[int]], crossing: set[tuple[int, int]]
) -> list[int]:
    """Return the root of each vertex; vertices with the same root get the same coordinate."""
    root = list(range(len(neighbours)))
    place: dict[int, int] = {}
    for layer in layers:
        rightmost = -1
        for vertex in layer:
            near = neighbours[vertex]
            if len(near) > 1:
                near = sorted(near, key=place.__getitem__)
                near = near[(len(near) - 1) // 2 : len(near) // 2 + 1]
            for neighbour in near:
                free = (neighbour, vertex) not in crossing and (vertex, neighbour) not in crossing
                if root[vertex] == vertex and free and place[neighbour] > rightmost:
                    root[vertex] = root[neighbour]
                    rightmost = place[neighbour]
        place = {vertex: number for number, vertex in enumerate(layer)}
    return root


def _compact(layers: Sequence[Sequence[int]], root: Sequence[int], widths: Sequence[float]) -> list[float]:
    """Return the coordinate of each vertex, with blocks as close to their left neighbours as possible, then pulled
    right.
    """
    after: dict[int, list[tuple[int, float]]] = {end: [] for end in set(root)}
    waiting = dict.fromkeys(after, 0)
    for layer in layers:
        for left, right in pairwise(layer):
            after[root[left]].append((root[right], (widths[left] + widths[right]) / 2))
            waiting[root[right]] += 1
    place = dict.fromkeys(after, 0.0)
    order = [vertex for layer in layers for vertex in layer if root[vertex] == vertex and not waiting[vertex]]
    for block in order:  # grows during the loop
        for other, apart in after[block]:
            place[other] = max(place[other], place[block] + apart)
            waiting[other] -= 1
            if not waiting[other]:
                order.append(other)
    for block in reversed(order):
        if after[block]:
            place[block] = max(place[block], min(place[other] - apart for other, apart in after[block]))
    return [place[end] for end in root]


def _between(layouts: Sequence[Sequence[float]], widths: Sequence[float]) -> list[float]:
    """Align all layouts with the narrowest one and return the mean of the middle two; the leftmost border is 0."""
    spans = [
        (
            min(x - w / 2 for x, w in zip(layout, widths, strict=True)),
            max(x + w / 2 for x, w in zip(layout, widths, strict=True)),
        )
        for layout in layouts
    ]
    left, right = min(spans, key=lambda span: span[1] - span[0])
    # The layouts come in pairs: aligned to the left, then to the right.
    shifts = [right - high if number % 2 else left - low for number, (low, high) in enumerate(spans)]
    middle = []
    for four in zip(*layouts, strict=True):
        ordered = sorted(x + shift for x, shift in zip(four, shifts, strict=True))
        middle.append((ordered[1] + ordered[2]) / 2 - left)
    return middle
