"""Lay out the graphs of profiles' layers for a page.

For one page::

    graphs = collect_graphs(profiles)                 # Sequence[Profile], in the page's order
    data["graphs"] = [graph_payload(one) for one in graphs.pictures]
    data["graph_of"] = list(graphs.of_profile)        # for each profile its position among them, or None

Profiles of one topology share a picture: ten profiles of one model cost no more than one, in time and in bytes. Names
and colours of nodes are not included: the page has them by layer already. `graph/view.js` shows the graphs.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from itertools import chain

from ndld_flow.drawing.engine_graph import LayerEdge, Terminal, edges_of
from ndld_flow.drawing.families import FAMILIES, family_of_layer
from ndld_flow.drawing.graph import Layout
from ndld_flow.drawing.layout import Extent, lay_out
from ndld_flow.records.profile import Layer, Profile
from ndld_flow.report.encoding import steps
from ndld_flow.report.page_data import GraphPayload

NODE_WIDTH, NODE_HEIGHT = 112.0, 36.0
"""Size of all nodes, for two short lines of text."""
_ASPECT = 2.0
"""Width over height of the graph's area in a page."""
MOST_LAYERS = 20_000
"""Maximum number of layers in all pictures of a page: two seconds of layout, and near the limit of browsers."""
_LAID_OUT: dict[Hashable, GraphPicture] = {}
"""Cache of pictures by topology, least recently used first. Layout dominates the cost of a report, and the points of a
sweep mostly share topologies.
"""


@dataclass(frozen=True)
class GraphPicture:
    """A laid-out graph: one node per layer, then one per terminal."""

    layout: Layout
    edges: tuple[LayerEdge, ...]
    terminals: tuple[Terminal, ...]
    families: tuple[int, ...]
    """Family of each layer, as a position in `FAMILIES`."""
    by_order: bool
    """True if the profile does not record the layers' inputs, so that layers are joined in execution order."""


@dataclass(frozen=True)
class GraphSet:
    """All graphs of a page."""

    pictures: tuple[GraphPicture, ...]
    of_profile: tuple[int | None, ...]
    """For each profile its position in `pictures`; None without layers or beyond `MOST_LAYERS`."""


def collect_graphs(profiles: Sequence[Profile], most_layers: int = MOST_LAYERS) -> GraphSet:
    """Lay out each topology once, in profile order, up to `most_layers` layers."""
    places: dict[Hashable, int] = {}
    pictures: list[GraphPicture] = []
    of_profile: list[int | None] = []
    left = most_layers
    for profile in profiles:
        key = _topology(profile)
        if key not in places and 0 < len(profile.layers) <= left:
            left -= len(profile.layers)
            places[key] = len(pictures)
            pictures.append(_find_picture(key, profile))
        of_profile.append(places.get(key))
    return GraphSet(tuple(pictures), tuple(of_profile))


def _find_picture(key: Hashable, profile: Profile) -> GraphPicture:
    """Return the picture of a topology, from the cache if present."""
    picture = _LAID_OUT.pop(key, None) or _lay_out(profile)
    _LAID_OUT[key] = picture
    while sum(len(kept.families) for kept in _LAID_OUT.values()) > MOST_LAYERS:
        del _LAID_OUT[next(iter(_LAID_OUT))]
    return picture


def _topology(profile: Profile) -> Hashable:
    """Return a key that is equal for profiles with equal pictures."""
    layers = profile.layers
    return (
        _families(layers),
        tuple([tuple([tensor.name for tensor in layer.inputs]) for layer in layers]),
        tuple([tuple([tensor.name for tensor in layer.outputs]) for layer in layers]),
        tuple(tensor.name for tensor in profile.inputs),
        tuple(tensor.name for tensor in profile.outputs),
    )


def _lay_out(profile: Profile) -> GraphPicture:
    edges, terminals = edges_of(profile)
    count = len(profile.layers) + len(terminals)
    layout = lay_out(
        [Extent(NODE_WIDTH, NODE_HEIGHT)] * count,
        [(edge.source, edge.target) for edge in edges],
        [edge.tensor for edge in edges],
        aspect=_ASPECT,
    )
    inner = [edge for edge in edges if edge.source < len(profile.layers) and edge.target < len(profile.layers)]
    by_order = bool(inner) and not any(edge.tensor for edge in inner)
    return GraphPicture(layout, edges, terminals, _families(profile.layers), by_order)


def _families(layers: Sequence[Layer]) -> tuple[int, ...]:
    places = {family: place for place, family in enumerate(FAMILIES)}
    return tuple(places[family_of_layer(layer.type, layer.name)] for layer in layers)


def graph_payload(picture: GraphPicture) -> GraphPayload:
    """Return one graph as columns of integers; `graph/data.js` reads it."""
    layout, edges = picture.layout, picture.edges
    terminals = picture.terminals
    points = [route.points for route in layout.routes]
    flat = list(chain.from_iterable(points))
    return {
        "width": round(layout.width),
        "height": round(layout.height),
        "node": (round(NODE_WIDTH), round(NODE_HEIGHT)),
        "x": steps([round(box.x) for box in layout.boxes]),
        "y": steps([round(box.y) for box in layout.boxes]),
        "family": list(picture.families),
        "inputs": [terminal.name for terminal in terminals if terminal.is_input],
        "outputs": [terminal.name for terminal in terminals if not terminal.is_input],
        "source": steps([edge.source for edge in edges]),
        "target": steps([edge.target for edge in edges]),
        "back": [place for place, route in enumerate(layout.routes) if route.back],
        "far": [place for place, route in enumerate(layout.routes) if route.far],
        "corners": list(map(len, points)),
        "corner_x": steps([round(x) for x, _ in flat]),
        "corner_y": steps([round(y) for _, y in flat]),
        "by_order": picture.by_order,
    }
