"""The data of the scripts of a run's report, or of a profile's: layers, timelines and graphs. Times are integer ns."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Literal

from ndld_flow.base.text import short_name, visible_name, visible_text
from ndld_flow.drawing.engine_graph import HEADS, Terminal, block_titles, edges_of, find_blocks, find_inner_blocks
from ndld_flow.drawing.graph import FAMILIES, DrawnEdge, Layout, family_of_layer
from ndld_flow.drawing.layout import Extent, lay_out
from ndld_flow.records.profile import Layer, Profile, TensorInfo
from ndld_flow.report.collect_layers import LayersView, channels_text, has_timed_layers, knows_units
from ndld_flow.report.encoding import nanoseconds, rounded
from ndld_flow.report.measured import UNKNOWN, shape_text, short_provider
from ndld_flow.report.panel import PanelView, panel_data

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
    """Lay out each topology once, in profile order, up to `most_layers` layers: ten profiles of one model cost no more
    than one, in time and in bytes. Names and colours of nodes are not included: the page has them by layer already.

    Return the graphs, and for each profile the position of its graph; None without layers or beyond the maximum.
    """
    places: dict[Hashable, int] = {}
    graphs: list[GraphShape] = []
    of_profile: list[int | None] = []
    left = most_layers
    for profile in profiles:
        layers = profile.layers
        key = (
            _families(layers),
            tuple([layer.name for layer in layers]),
            tuple([tuple([tensor.name for tensor in layer.inputs]) for layer in layers]),
            tuple([tuple([tensor.name for tensor in layer.outputs]) for layer in layers]),
            tuple(tensor.name for tensor in profile.inputs),
            tuple(tensor.name for tensor in profile.outputs),
        )
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


@dataclass(frozen=True)
class TensorRow:
    """A tensor of a page."""

    name: str
    dtype: str
    dims: str
    format: str


class Tensors:
    """The distinct tensors of a page."""

    def __init__(self) -> None:
        self._places: dict[tuple[str, str, tuple[int, ...], str], int] = {}

    def places(self, tensors: Iterable[TensorInfo]) -> list[int]:
        """Return the positions of tensors among the rows; adds new ones."""
        known = self._places
        return [
            known.setdefault((tensor.name, tensor.dtype, tensor.shape, tensor.format), len(known)) for tensor in tensors
        ]

    def rows(self) -> list[TensorRow]:
        return [
            TensorRow(visible_name(name), visible_name(dtype), shape_text(shape), visible_name(layout))
            for name, dtype, shape, layout in self._places
        ]


@dataclass(frozen=True)
class LayerColumns:
    """Layers in order of execution; each list has an item for each layer."""

    name: list[str]
    index: list[int]
    type: list[str]
    provider: list[str]
    dims: list[str]
    role: list[str]
    tactic: list[str]
    precision: list[str]
    input_precision: list[str]
    output_precision: list[str]
    precision_basis: list[str]
    channels: list[str]
    unit: list[str]
    """Multiply units; all are empty if none is known."""
    asked: list[str]
    """Precisions that were asked for."""
    depth: list[int]
    stream: list[int | None]
    macs: list[int | None]
    read_bytes: list[int]
    written_bytes: list[int]
    weight_bytes: list[int]
    inputs: list[list[int]]
    """Positions among the tensors of the page."""
    outputs: list[list[int]]
    onnx_nodes: list[list[str]]
    median_ns: list[int]
    below_ns: list[int]
    """Median less minimum."""
    above_ns: list[int]
    """Maximum less median."""


@dataclass(frozen=True)
class TimelineSpans:
    """The spans of one pass; lists have an item for each span."""

    basis: str
    lanes: list[str]
    lane: list[int]
    depth: list[int]
    kind: list[Literal["layer", "overhead", "transfer", "pass"]]
    gap_ns: list[int]
    """Time since the end of the span before: 0 for adjacent spans."""
    duration_ns: list[int]
    layer: list[int | None]
    name: list[str]
    """Empty for a span with the name of its layer."""


@dataclass(frozen=True)
class Ceilings:
    """Limits of a machine."""

    bytes_per_s: float
    macs_per_s: dict[str, float]
    """Multiply unit of published peaks, or precision of measured ones -> multiply-accumulates per second."""


@dataclass(frozen=True)
class LayersData:
    """The layers of a profile, or of an engine without times."""

    step: str
    label: str
    columns: LayerColumns
    missed: list[int]
    """Positions of layers that did not get the precision that was asked for."""
    is_timed: bool = False
    sum_ms: float = 0.0
    pass_ms: float = 0.0
    timeline: TimelineSpans | None = None
    roofs: Ceilings | None = None
    only_compute: bool = False


def timed_layers(view: LayersView, profile: Profile, tensors: Tensors) -> LayersData:
    """Return everything about one profile's layers; `report/layer_data.js` reads it."""
    ceilings = {unit: rounded(peak) for unit, peak in view.peaks.ceilings.items()}
    times = (nanoseconds(each) for each in (view.times.median_ms, view.times.min_ms, view.times.max_ms))
    return LayersData(
        step=view.step,
        label=view.label,
        is_timed=True,
        sum_ms=rounded(view.times.sum_ms),
        pass_ms=rounded(view.pass_ms),
        columns=_columns(profile.layers, tensors, *times),
        timeline=timeline_spans(profile) if profile.timeline else None,
        roofs=Ceilings(rounded(view.peaks.bytes_per_s), ceilings) if ceilings and not view.peaks.doubt else None,
        only_compute=view.only_compute,
        missed=list(view.missed),
    )


def untimed_layers(step: str, layers: Sequence[Layer], missed: Sequence[int], tensors: Tensors) -> LayersData:
    """Return the layers of an engine that nobody ran."""
    zeros = [0] * len(layers)
    columns = _columns(layers, tensors, zeros, zeros, zeros)
    return LayersData(step=step, label=step, columns=columns, missed=list(missed))


def _columns(
    layers: Sequence[Layer], tensors: Tensors, median: Sequence[int], least: Sequence[int], most: Sequence[int]
) -> LayerColumns:
    has_units = knows_units(layers)
    return LayerColumns(
        name=[visible_name(layer.name) for layer in layers],
        index=[layer.index for layer in layers],
        type=[visible_name(layer.type) for layer in layers],
        provider=[short_provider(layer.provider) for layer in layers],
        dims=[shape_text(layer.outputs[0].shape) if layer.outputs else "" for layer in layers],
        role=[visible_name(layer.purpose) for layer in layers],
        tactic=[visible_name(layer.tactic) for layer in layers],
        precision=[visible_name(layer.precision or UNKNOWN) for layer in layers],
        input_precision=[visible_name(layer.input_precision) for layer in layers],
        output_precision=[visible_name(layer.output_precision) for layer in layers],
        precision_basis=[visible_name(layer.precision_basis) for layer in layers],
        channels=[channels_text(layer) for layer in layers],
        unit=[layer.unit or UNKNOWN if has_units else "" for layer in layers],
        asked=[visible_name(layer.asked_precision) for layer in layers],
        depth=[layer.depth for layer in layers],
        stream=[layer.stream for layer in layers],
        macs=[layer.macs for layer in layers],
        read_bytes=[layer.read_bytes for layer in layers],
        written_bytes=[layer.written_bytes for layer in layers],
        weight_bytes=[layer.weight_bytes for layer in layers],
        inputs=[tensors.places(layer.inputs) for layer in layers],
        outputs=[tensors.places(layer.outputs) for layer in layers],
        onnx_nodes=[list(map(visible_name, layer.onnx_nodes)) for layer in layers],
        median_ns=list(median),
        below_ns=_apart(median, least),
        above_ns=_apart(most, median),
    )


def _apart(above: Sequence[int], below: Sequence[int]) -> list[int]:
    return [high - low for high, low in zip(above, below, strict=True)]


def timeline_spans(profile: Profile) -> TimelineSpans:
    """Return one pass; `timeline/data.js` reads it."""
    spans, layers = profile.timeline, profile.layers
    start = nanoseconds(span.start_ms for span in spans)
    duration = nanoseconds(span.duration_ms for span in spans)
    ends = [begin + long for begin, long in zip(start, duration, strict=True)]
    lanes = {lane: index for index, lane in enumerate(dict.fromkeys(span.lane for span in spans))}
    there = range(len(layers))
    # Membership of a range is fast for an int and slow for other types.
    places = [span.layer if span.layer is not None and span.layer in there else None for span in spans]
    return TimelineSpans(
        basis=visible_text(profile.timeline_basis),
        lanes=list(map(visible_name, lanes)),
        lane=[lanes[span.lane] for span in spans],
        depth=[span.depth for span in spans],
        kind=[span.kind for span in spans],
        gap_ns=_apart(start, [0, *ends[:-1]]),
        duration_ns=duration,
        layer=places,
        name=[
            "" if place is not None and layers[place].name == span.name else visible_name(span.name)
            for span, place in zip(spans, places, strict=True)
        ],
    )


@dataclass(frozen=True)
class ReportData:
    """Layers, which several panels show, and the data of each panel's own script."""

    layers: list[LayersData]
    """Those of profiles, then those of engines."""
    graphs: list[GraphShape]
    graph_of: list[int | None]
    """For each item of `layers` its position among the graphs."""
    tensors: list[TensorRow]
    panels: Mapping[str, object]


def report_data(panels: Iterable[PanelView], profiles: Iterable[Profile]) -> ReportData:
    """Return the data of a page. `profiles` are all of the run; those with timed layers have a view each."""
    shown = list(panels)
    views = {panel.name: panel.view for panel in shown}
    timed = filter(has_timed_layers, profiles) if "layers" in views else ()
    layers = list(zip(views.get("layers", ()), timed, strict=True))
    engines = views.get("engines", ())
    graphs, graph_of = collect_graphs([*(profile for _, profile in layers), *(engine.profile for engine in engines)])
    tensors = Tensors()
    return ReportData(
        layers=[
            *(timed_layers(view, profile, tensors) for view, profile in layers),
            *(untimed_layers(view.step, view.profile.layers, view.missed, tensors) for view in engines),
        ],
        graphs=graphs,
        graph_of=graph_of,
        tensors=tensors.rows(),
        panels=panel_data(shown),
    )
