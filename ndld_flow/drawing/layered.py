"""Graphs in layers, with space reserved in every layer that an edge passes."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field

from ndld_flow.drawing.layering import Edge, assign_layers, topological_order

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
        found = [0] * len(self.above)
        for number, layer in enumerate(self.layers):
            for vertex in layer:
                found[vertex] = number
        return found


def build_layers(count: int, edges: Sequence[Edge], bundles: Sequence[Hashable]) -> Layered:
    """Assign layers and route a trunk through them for each bundle; edges of one node and bundle share it."""
    order, back = topological_order(count, edges)
    onward = [(target, source) if place in back else (source, target) for place, (source, target) in enumerate(edges)]
    layer = assign_layers(order, _constraints(onward))
    numbers = {old: new for new, old in enumerate(sorted(set(layer)))}
    layer = [numbers[one] for one in layer]
    graph = Layered(count, [[] for _ in numbers], [[] for _ in layer], [[] for _ in layer], [], back)
    for node in order:
        graph.layers[layer[node]].append(node)
    keys = [
        (source, "back", place) if place in back else (source, "", bundles[place])
        for place, (source, _) in enumerate(onward)
    ]
    _add_chains(graph, onward, layer, keys)
    return graph


def _constraints(edges: Sequence[Edge]) -> list[Edge]:
    """Return each pair of connected nodes once; repeated edges add no constraint."""
    return list(dict.fromkeys(edge for edge in edges if edge[0] != edge[1]))


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
