"""Lay out the graphs of profiles' layers for a page.

Profiles of one topology share a graph: ten profiles of one model cost no more than one, in time and in bytes. Names
and colours of nodes are not included: the page has them by layer already. `graph/view.js` shows the graphs.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain

from ndld_flow.base.text import short_name
from ndld_flow.drawing.engine_graph import (
    HEADS,
    Terminal,
    block_titles,
    edges_of,
    find_blocks,
    find_inner_blocks,
)
from ndld_flow.drawing.graph import FAMILIES, DrawnEdge, Layout, family_of_layer
from ndld_flow.drawing.layout import Extent, lay_out
from ndld_flow.records.profile import Layer, Profile

NODE_SIZE = (112.0, 36.0)
"""Width and height of all nodes, for two short lines of text."""
_BLOCK_SIZE = (156.0, 52.0)
"""Width and height of all blocks, for three lines."""
_ASPECT = 2.0
"""Width over height of the graph's area in a page."""
MOST_LAYERS = 20_000
"""Maximum number of layers in all graphs of a page: two seconds of layout, and near the limit of browsers."""
_LAID_OUT: dict[Hashable, GraphShape] = {}
"""Cache of graphs by topology, least recently used first. Layout dominates the cost of a report, and the points of a
sweep mostly share topologies.
"""


@dataclass(frozen=True)
class GraphShape:
    """A graph that is laid out: one node per layer, then one per terminal, the edges, and their corners."""

    width: int
    height: int
    node: tuple[int, int]
    """Width and height of all nodes."""
    x: list[int]
    y: list[int]
    family: list[int]
    """Family of each layer, as a position in `FAMILIES`."""
    inputs: list[str]
    outputs: list[str]
    source: list[int]
    target: list[int]
    back: list[int]
    far: list[int]
    corners: list[int]
    """Number of corners of each edge."""
    corner_x: list[int]
    corner_y: list[int]
    by_order: bool = False
    """True if the profile does not record the layers' inputs, so that layers are joined in execution order."""
    blocks: BlockShapes | None = None
    """The same graph folded into blocks, if that makes it easier to read."""
    composite: list[int] = field(default_factory=list)
    """Nodes that contain a graph."""
    constant: list[int] = field(default_factory=list)


@dataclass(frozen=True)
class BlockShapes:
    """A graph folded into blocks: the block of each node, and the graph of the blocks."""

    of: list[int]
    head: list[int]
    """The node of each block that it is named and coloured by."""
    titles: list[str]
    """The module of each block; empty where names do not show one."""
    graph: GraphShape


def collect_graphs(
    profiles: Sequence[Profile], most_layers: int = MOST_LAYERS
) -> tuple[list[GraphShape], list[int | None]]:
    """Lay out each topology once, in profile order, up to `most_layers` layers.

    Return the graphs, and for each profile the position of its graph; None without layers or beyond the maximum.
    """
    places: dict[Hashable, int] = {}
    graphs: list[GraphShape] = []
    of_profile: list[int | None] = []
    left = most_layers
    for profile in profiles:
        key = _topology(profile)
        if key not in places and 0 < len(profile.layers) <= left:
            left -= len(profile.layers)
            places[key] = len(graphs)
            # The order of the dictionary is that of use: the oldest graphs are dropped.
            graph = _LAID_OUT.pop(key, None) or _lay_out(profile)
            _LAID_OUT[key] = graph
            while sum(len(kept.family) for kept in _LAID_OUT.values()) > MOST_LAYERS:
                del _LAID_OUT[next(iter(_LAID_OUT))]
            graphs.append(graph)
        of_profile.append(places.get(key))
    return graphs, of_profile


def _topology(profile: Profile) -> Hashable:
    """Return a key that is equal for profiles with equal graphs."""
    layers = profile.layers
    return (
        _families(layers),
        tuple([layer.name for layer in layers]),
        tuple([tuple([tensor.name for tensor in layer.inputs]) for layer in layers]),
        tuple([tuple([tensor.name for tensor in layer.outputs]) for layer in layers]),
        tuple(tensor.name for tensor in profile.inputs),
        tuple(tensor.name for tensor in profile.outputs),
    )


def _lay_out(profile: Profile) -> GraphShape:
    edges, terminals = edges_of(profile)
    count = len(profile.layers)
    layout = lay_out_edges([Extent(*NODE_SIZE)] * (count + len(terminals)), edges, _ASPECT)
    families = _families(profile.layers)
    inner = [edge for edge in edges if edge.source < count and edge.target < count]
    by_order = bool(inner) and not any(edge.tensor for edge in inner)
    blocks = fold([layer.name for layer in profile.layers], families, edges, terminals, _ASPECT)
    return replace(graph_shape(layout, edges, terminals, families), by_order=by_order, blocks=blocks)


def lay_out_edges(extents: Sequence[Extent], edges: Sequence[DrawnEdge], aspect: float) -> Layout:
    """Place boxes of these extents, which `edges` join."""
    pairs = [(edge.source, edge.target) for edge in edges]
    return lay_out(extents, pairs, [edge.tensor for edge in edges], aspect=aspect)


def fold(
    names: Sequence[str],
    families: Sequence[int],
    edges: Sequence[DrawnEdge],
    terminals: Sequence[Terminal],
    aspect: float,
) -> BlockShapes | None:
    """Return the blocks of a graph, laid out; None if it is readable without them or has none.

    `edges` are among the nodes and then the terminals; `families` are positions in `FAMILIES`.
    """
    count = len(names)
    inner = [(edge.source, edge.target) for edge in edges if edge.source < count and edge.target < count]
    of = find_blocks(names, [FAMILIES[family] for family in families], inner)
    if of is None:
        return None
    single = [[name] for name in names]
    within = find_inner_blocks(names, inner, of)
    blocks, between = _folded(of if within is None else within, single, families, edges, terminals, aspect)
    if within is None:
        return blocks
    outer = dict(zip(within, of, strict=True))
    grouped: list[list[str]] = [[] for _ in outer]
    for block, name in zip(within, names, strict=True):
        grouped[block].append(name)
    of_blocks = [outer[block] for block in range(len(outer))]
    above, _ = _folded(of_blocks, grouped, blocks.graph.family, between, terminals, aspect)
    return replace(blocks, graph=replace(blocks.graph, blocks=above))


def _folded(
    of: Sequence[int],
    names: Sequence[Sequence[str]],
    families: Sequence[int],
    edges: Sequence[DrawnEdge],
    terminals: Sequence[Terminal],
    aspect: float,
) -> tuple[BlockShapes, list[DrawnEdge]]:
    """Lay out blocks, and return them with the edges between them.

    `names` are those of all nodes in each node of the graph that is folded.
    """
    members: list[list[int]] = [[] for _ in range(max(of) + 1)]
    for node, block in enumerate(of):
        members[block].append(node)
    place = [*of, *range(len(members), len(members) + len(terminals))]
    joined = (DrawnEdge(place[edge.source], place[edge.target], tensor=edge.tensor) for edge in edges)
    between = list(dict.fromkeys(edge for edge in joined if edge.source != edge.target))
    layout = lay_out_edges([Extent(*_BLOCK_SIZE)] * (len(members) + len(terminals)), between, aspect)
    heads = [next((node for node in nodes if FAMILIES[families[node]] in HEADS), nodes[0]) for nodes in members]
    names_of_blocks = [[name for node in nodes for name in names[node]] for nodes in members]
    titles = [short_name(title, 28) for title in block_titles(names_of_blocks)]
    graph = graph_shape(layout, between, terminals, [families[head] for head in heads], _BLOCK_SIZE)
    return BlockShapes(list(of), heads, titles, graph), between


def _families(layers: Sequence[Layer]) -> tuple[int, ...]:
    places = {family: index for index, family in enumerate(FAMILIES)}
    return tuple(places[family_of_layer(layer.type, layer.name)] for layer in layers)


def graph_shape(
    layout: Layout,
    edges: Sequence[DrawnEdge],
    terminals: Sequence[Terminal],
    families: Sequence[int],
    size: tuple[float, float] = NODE_SIZE,
) -> GraphShape:
    """Return one graph as columns of integers, without blocks; `graph/data.js` reads it."""
    points = [route.points for route in layout.routes]
    flat = list(chain.from_iterable(points))
    return GraphShape(
        width=round(layout.width),
        height=round(layout.height),
        node=(round(size[0]), round(size[1])),
        x=[round(box.x) for box in layout.boxes],
        y=[round(box.y) for box in layout.boxes],
        family=list(families),
        inputs=[terminal.name for terminal in terminals if terminal.is_input],
        outputs=[terminal.name for terminal in terminals if not terminal.is_input],
        source=[edge.source for edge in edges],
        target=[edge.target for edge in edges],
        back=[index for index, route in enumerate(layout.routes) if route.back],
        far=[index for index, route in enumerate(layout.routes) if route.far],
        corners=list(map(len, points)),
        corner_x=[round(x) for x, _ in flat],
        corner_y=[round(y) for _, y in flat],
    )
