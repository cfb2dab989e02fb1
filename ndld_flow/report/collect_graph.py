"""The graph of a profile's layers, laid out before it reaches the page.

For one page::

    graphs = collect_graphs(profiles)                 # Sequence[Profile], in the page's order
    data["graphs"] = [graph_payload(one) for one in graphs.pictures]
    data["graph_of"] = list(graphs.of_profile)        # for each profile its position among them, or None

Profiles of one topology share a picture: ten profiles of one model cost no more than one, in time and in bytes. What a
node is called and coloured by is not in here: the page has it by layer already. `graph/view.js` says how to show it.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from itertools import chain

from ndld_flow.drawing.families import FAMILIES, family_of_layer
from ndld_flow.drawing.graph import Layout
from ndld_flow.drawing.layer_edges import LayerEdge, Terminal, edges_of
from ndld_flow.drawing.layout import Extent, lay_out
from ndld_flow.records.profile import Layer, Profile
from ndld_flow.report.page_data import GraphPayload
from ndld_flow.report.texts import steps

NODE_WIDTH, NODE_HEIGHT = 112.0, 36.0
"""All nodes have one size: a page shows two short lines in each."""
_ASPECT = 2.0
"""Width over height of the place a page gives to a graph."""
MOST_LAYERS = 20_000
"""Of all pictures of one page together: two seconds of layout, and as much as a browser likes to paint."""
_LAID_OUT: dict[Hashable, GraphPicture] = {}
"""Pictures by topology, the longest unused first: layout is most of what a report costs, and a sweep's points mostly
have theirs in common."""


@dataclass(frozen=True)
class GraphPicture:
    """One laid out graph: a node for each layer, then one for each terminal."""

    layout: Layout
    edges: tuple[LayerEdge, ...]
    terminals: tuple[Terminal, ...]
    families: tuple[int, ...]
    """Of each layer, as a position in `FAMILIES`."""
    by_order: bool
    """True where the profile does not tell which tensors its layers read: they are joined as they ran."""


@dataclass(frozen=True)
class GraphSet:
    """All graphs of a page."""

    pictures: tuple[GraphPicture, ...]
    of_profile: tuple[int | None, ...]
    """For each profile its position in `pictures`; None for one without layers, and for what is past `MOST_LAYERS`."""


def collect_graphs(profiles: Sequence[Profile], most_layers: int = MOST_LAYERS) -> GraphSet:
    """Lay out each topology once, in the order of the profiles, until `most_layers` are reached."""
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
    """Return the picture of a topology, drawn before or now."""
    picture = _LAID_OUT.pop(key, None) or _lay_out(profile)
    _LAID_OUT[key] = picture
    while sum(len(kept.families) for kept in _LAID_OUT.values()) > MOST_LAYERS:
        del _LAID_OUT[next(iter(_LAID_OUT))]
    return picture


def _topology(profile: Profile) -> Hashable:
    """Return equal for profiles whose pictures are equal."""
    layers = profile.layers
    return (
        _families(layers),
        tuple([tuple([tensor.name for tensor in layer.inputs]) for layer in layers]),
        tuple([tuple([tensor.name for tensor in layer.outputs]) for layer in layers]),
        tuple(tensor.name for tensor in profile.inputs),
        tuple(tensor.name for tensor in profile.outputs),
    )


def collect_graph(profile: Profile) -> GraphPicture | None:
    """Return the graph of one profile; None for a profile without layers. 5,000 layers take about 0.4 s."""
    return next(iter(collect_graphs([profile], len(profile.layers)).pictures), None)


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
    """One graph as columns of whole numbers; `graph/data.js` reads it."""
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
        "inputs": [one.name for one in terminals if one.is_input],
        "outputs": [one.name for one in terminals if not one.is_input],
        "source": steps([edge.source for edge in edges]),
        "target": steps([edge.target for edge in edges]),
        "back": [place for place, route in enumerate(layout.routes) if route.back],
        "far": [place for place, route in enumerate(layout.routes) if route.far],
        "corners": list(map(len, points)),
        "corner_x": steps([round(x) for x, _ in flat]),
        "corner_y": steps([round(y) for _, y in flat]),
        "by_order": picture.by_order,
    }
