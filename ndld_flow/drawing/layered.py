"""Layered graphs: every edge points to a later layer, edges are short, and the order in layers reduces crossings.

Every layer that an edge passes has a reserved place for it. The order follows the barycentre method of Sugiyama, Tagawa
and Toda (1981).

Coordinates within layers follow Brandes and Köpf, "Fast and Simple Horizontal Coordinate Assignment" (2001): compute
four layouts, each aligned to one side, and take the mean of the middle two. Then aligned vertices move together towards
their neighbours.
"""

from __future__ import annotations

from bisect import bisect_right, insort
from collections import defaultdict
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

Edge = tuple[int, int]
_ROUNDS = 12
"""Maximum rounds of moving whole blocks; real models converge after three or four."""


def topological_order(count: int, edges: Sequence[Edge]) -> tuple[list[int], set[int]]:
    """Return the nodes in topological order, and the positions of edges that close a cycle.

    The search is depth-first without recursion and visits nodes in the given order. A self-loop closes a cycle.
    """
    leaving: list[list[int]] = [[] for _ in range(count)]
    for index, (source, _) in enumerate(edges):
        leaving[source].append(index)
    finished: list[int] = []
    back: set[int] = set()
    state = bytearray(count)  # 0 not seen, 1 on the path, 2 finished
    # Later nodes first: nodes that finish first come last, so the order stays close to the given one.
    for start in reversed(range(count)):
        if state[start]:
            continue
        state[start] = 1
        path = [(start, iter(leaving[start]))]
        while path:
            node, rest = path[-1]
            for index in rest:
                target = edges[index][1]
                if state[target] == 1:
                    back.add(index)
                elif not state[target]:
                    state[target] = 1
                    path.append((target, iter(leaving[target])))
                    break
            else:
                state[node] = 2
                finished.append(node)
                path.pop()
    return finished[::-1], back


def assign_layers(order: Sequence[int], edges: Sequence[Edge]) -> list[int]:
    """Return the layer of each node, 0 first. `edges` must point onward in `order`."""
    before: list[list[int]] = [[] for _ in order]
    after: list[list[int]] = [[] for _ in order]
    for source, target in edges:
        before[target].append(source)
        after[source].append(target)
    layer = [0] * len(order)
    for node in order:
        if before[node]:
            layer[node] = 1 + max(layer[neighbour] for neighbour in before[node])
    for node in reversed(order):
        if len(after[node]) > len(before[node]):  # moving it to a later layer shortens more edges than it lengthens
            layer[node] = min(layer[neighbour] for neighbour in after[node]) - 1
    for _ in range(_ROUNDS):
        if not _move_blocks(layer, edges):
            break
    return layer


def _move_blocks(layer: list[int], edges: Sequence[Edge]) -> bool:
    """Move blocks towards their readers if that shortens edges; return False if nothing moved.

    A block is a set of nodes joined by the shortest edges. A constant and the nodes computed from it end up above their
    reader.
    """
    block = _blocks(layer, edges)
    pull = [0] * len(layer)
    room: dict[int, int] = {}
    for source, target in edges:
        mine, other = block[source], block[target]
        if mine != other:
            pull[mine] += 1
            pull[other] -= 1
            slack = layer[target] - layer[source] - 1
            room[mine] = min(room.get(mine, slack), slack)
    # Blocks that move at the same time could collide: only blocks whose readers stay are moved.
    moved = {block_: by for block_, by in room.items() if pull[block_] > 0 and by > 0}
    for source, target in edges:
        if block[source] != block[target] and block[target] in moved:
            moved.pop(block[source], None)
    for node, number in enumerate(block):
        layer[node] += moved.get(number, 0)
    return bool(moved)


def _blocks(layer: Sequence[int], edges: Sequence[Edge]) -> list[int]:
    """Return the block of each node; nodes joined by edges to the next layer share one."""
    parent = list(range(len(layer)))

    def root(node: int) -> int:
        while parent[node] != node:
            parent[node] = parent[parent[node]]
            node = parent[node]
        return node

    for source, target in edges:
        if layer[target] - layer[source] == 1:
            parent[root(source)] = root(target)
    return [root(node) for node in range(len(layer))]


_PASSAGES_PER_NODE = 6
_FREE_PASSAGES = 20_000
"""Maximum number of reserved places for edges. Beyond it the layout takes too long; the longest edges get none."""
_WAY_PER_PLACE = 10
"""Maximum total length of all routes, as a multiple of the reserved places, which edges share."""


@dataclass
class Layered:
    """A layered graph. Vertices 0 to `count` - 1 are nodes; later ones are places where an edge passes a layer."""

    count: int
    layers: list[list[int]]
    above: list[list[int]]
    """For each vertex, its neighbours in the layer before."""
    below: list[list[int]]
    chains: list[tuple[int, ...] | None]
    """For each edge, the vertices from its upper to its lower end; None for an edge without places."""
    back: set[int] = field(default_factory=set)
    """Edges that run against the layers, including self-loops."""

    @property
    def layer_of(self) -> list[int]:
        reached = [0] * len(self.above)
        for number, layer in enumerate(self.layers):
            for vertex in layer:
                reached[vertex] = number
        return reached


def build_layers(count: int, edges: Sequence[Edge], bundles: Sequence[Hashable]) -> Layered:
    """Assign layers and route a trunk through them for each bundle; edges of one node and bundle share it."""
    order, back = topological_order(count, edges)
    onward = [(target, source) if index in back else (source, target) for index, (source, target) in enumerate(edges)]
    # Each pair of connected nodes once: repeated edges add no constraint.
    layer = assign_layers(order, list(dict.fromkeys(edge for edge in onward if edge[0] != edge[1])))
    numbers = {old: new for new, old in enumerate(sorted(set(layer)))}
    layer = [numbers[node] for node in layer]
    graph = Layered(count, [[] for _ in numbers], [[] for _ in layer], [[] for _ in layer], [], back)
    for node in order:
        graph.layers[layer[node]].append(node)
    keys = [
        (source, "back", index) if index in back else (source, "", bundles[index])
        for index, (source, _) in enumerate(onward)
    ]
    _add_chains(graph, onward, layer, keys)
    return graph


def _add_chains(graph: Layered, edges: Sequence[Edge], layer: Sequence[int], keys: Sequence[Hashable]) -> None:
    longest = _longest_chain(edges, layer, keys)
    trunks: dict[Hashable, list[int]] = defaultdict(list)
    joined: set[Edge] = set()
    for (source, target), key in zip(edges, keys, strict=True):
        span = layer[target] - layer[source]
        if span > longest or span == 0:
            graph.chains.append(None)
            continue
        trunk = trunks[key]
        while len(trunk) < span - 1:
            trunk.append(_add_passage(graph, trunk[-1] if trunk else source, layer[source] + len(trunk) + 1))
        last = trunk[span - 2] if span > 1 else source
        if (last, target) not in joined:  # a node may read one tensor twice
            joined.add((last, target))
            _join(graph, last, target)
        graph.chains.append((source, *trunk[: span - 1], target))


def _longest_chain(edges: Sequence[Edge], layer: Sequence[int], keys: Sequence[Hashable]) -> int:
    """Return the longest span for which edges get places."""
    trunks: dict[Hashable, int] = {}
    spans = [layer[target] - layer[source] for source, target in edges]
    for key, span in zip(keys, spans, strict=True):
        trunks[key] = max(trunks.get(key, 0), span)
    places = _PASSAGES_PER_NODE * len(layer) + _FREE_PASSAGES
    longest = max(spans, default=0)
    while longest > 1 and (
        sum([min(span, longest) for span in trunks.values()]) - len(trunks) > places
        or sum([min(span, longest) for span in spans]) > _WAY_PER_PLACE * places
    ):
        longest = longest * 3 // 4
    return longest


def _add_passage(graph: Layered, upper: int, layer: int) -> int:
    vertex = len(graph.above)
    graph.above.append([])
    graph.below.append([])
    graph.layers[layer].append(vertex)
    _join(graph, upper, vertex)
    return vertex


def _join(graph: Layered, upper: int, lower: int) -> None:
    graph.below[upper].append(lower)
    graph.above[lower].append(upper)


def components(count: int, edges: Sequence[Edge]) -> list[tuple[list[int], list[int]]]:
    """Return the nodes and edges of each connected component, as positions, ordered by first node."""
    neighbours: list[list[int]] = [[] for _ in range(count)]
    for source, target in edges:
        neighbours[source].append(target)
        neighbours[target].append(source)
    part = [-1] * count
    parts = 0
    for start in range(count):
        if part[start] < 0:
            _mark(start, parts, part, neighbours)
            parts += 1
    members: list[tuple[list[int], list[int]]] = [([], []) for _ in range(parts)]
    for node in range(count):
        members[part[node]][0].append(node)
    for index, (source, _) in enumerate(edges):
        members[part[source]][1].append(index)
    return members


def _mark(start: int, number: int, part: list[int], neighbours: Sequence[Sequence[int]]) -> None:
    """Assign `number` to all nodes that can be reached from `start`."""
    part[start] = number
    waiting = [start]
    while waiting:
        for neighbour in neighbours[waiting.pop()]:
            if part[neighbour] < 0:
                part[neighbour] = number
                waiting.append(neighbour)


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
    reached = 0
    for start in (vertex for layer in graph.layers for vertex in layer):
        path = [start]
        while path:
            vertex = path.pop()
            if rank[vertex] >= 0:
                continue
            rank[vertex] = reached
            reached += 1
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
            for index, vertex in enumerate(layer):
                near = neighbours[vertex]
                if len(near) == 1:
                    keys[vertex] = float(position[near[0]])
                else:
                    keys[vertex] = (
                        sum([position[neighbour] for neighbour in near]) / len(near) if near else float(index)
                    )
            layer.sort(key=keys.__getitem__)
        for index, vertex in enumerate(layer):
            position[vertex] = index


def count_crossings(graph: Layered) -> int:
    """Return the number of pairs of edges that cross between neighbouring layers."""
    crossings = 0
    position = [0] * len(graph.above)
    for upper, lower in pairwise(graph.layers):
        if len(upper) == 1 or len(lower) == 1:
            continue
        for index, vertex in enumerate(lower):
            position[vertex] = index
        crossings += _crossings_below(upper, graph.below, position)
    return crossings


def _crossings_below(upper: Sequence[int], below: Sequence[Sequence[int]], position: Sequence[int]) -> int:
    """Return the number of crossings: for each edge, the number of earlier edges that end to the right of its end."""
    crossings = 0
    passed: list[int] = []
    for vertex in upper:
        ends = [position[neighbour] for neighbour in below[vertex]]
        for end in ends:
            if passed and passed[-1] > end:
                crossings += len(passed) - bisect_right(passed, end)
        for end in ends:
            insort(passed, end)
    return crossings


_SHIFT_ROUNDS = 4


def settle(graph: Layered, across: list[float], widths: Sequence[float], spine: Sequence[int]) -> None:
    """Shorten edges by changing coordinates in place, keeping the order within layers and the minimum distances.

    Each move goes to the median of the connected vertices, as far as neighbours allow, so that no move lengthens the
    edges in total.
    """
    # The left and right neighbour of each vertex in its layer; -1 for none.
    left, right = [-1] * len(graph.above), [-1] * len(graph.above)
    for layer in graph.layers:
        for node, following in pairwise(layer):
            right[node], left[following] = following, node
    pieces = _pieces(graph, across, spine)
    joined = [_joined(graph, piece) for piece in pieces]
    for number in range(_SHIFT_ROUNDS):
        moved = False
        order = range(len(pieces)) if number % 2 == 0 else range(len(pieces) - 1, -1, -1)
        for index in order:
            if joined[index]:
                moved |= _move(pieces[index], joined[index], across, widths, (left, right))
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
