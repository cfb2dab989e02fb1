"""Collect engines: their layers without times."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from ndld_flow.base.text import short_name, shortened, visible_name
from ndld_flow.profiles.diagnose.diagnose import insights_of_engine
from ndld_flow.profiles.diagnose.engine_subject import EngineSubject
from ndld_flow.profiles.diagnose.requested_precision import missed_precisions
from ndld_flow.records.build import Build
from ndld_flow.records.profile import Layer, Profile
from ndld_flow.report.collect_builds import BuiltView, collect_build
from ndld_flow.report.collect_footprint import FootprintView, collect_footprint
from ndld_flow.report.collect_insights import InsightView, insight_view
from ndld_flow.report.collect_layers import UNKNOWN, has_timed_layers, types_text
from ndld_flow.report.collect_reformats import ReformatsView, collect_reformats
from ndld_flow.report.shape_words import shape_text

_ROWS_WITHOUT_SCRIPT = 20
_TACTICS = 12
_FEW_TACTICS = 4

BASES = {
    "file": "as in the file",
    "engine inspector": "from TensorRT's engine inspector",
    "build log": "compiled layers from the builder's log",
    "network as parsed": "of the network before optimisation; the compiled layers are unknown",
}
"""Source of layers -> description."""


@dataclass(frozen=True)
class LayerCount:
    """Layers that share a precision, a type or a tactic."""

    name: str
    """Empty for layers without a recorded value."""
    count: int
    share: float
    """Share of all layers, 0 to 1."""

    @property
    def shown(self) -> str:
        """The name; a long one with its middle left out, because tactics differ at their ends."""
        return shortened(self.name, 40)


@dataclass(frozen=True)
class EngineRow:
    """One layer of the table for pages without a script."""

    index: int
    name: str
    type: str
    dims: str
    precision: str
    types: str
    """Types of inputs and outputs; empty if equal to the precision."""
    asked: str
    """Requested precision; empty for none."""
    is_missed: bool
    """True if it certainly has another precision."""
    nodes: int
    """Number of its ONNX nodes."""


@dataclass(frozen=True)
class EngineView:
    """One engine: its build, if known, and its layers."""

    step: str
    """The step that built it, or the file it was read from."""
    label: str
    """Its source model; empty if unknown."""
    built: BuiltView | None
    layer_count: int
    network_layer_count: int
    """Number of layers before optimisation; 0 if unknown."""
    basis: str
    """Source of the layers."""
    node_count: int
    """Number of distinct ONNX nodes of the layers."""
    precisions: tuple[LayerCount, ...]
    """By number of layers, like the following two fields."""
    types: tuple[LayerCount, ...]
    tactics: tuple[LayerCount, ...]
    """Tactics of several layers; if there are none, the first few."""
    tactic_count: int
    missed: tuple[int, ...]
    """Positions of layers without the requested precision."""
    reformats: ReformatsView | None
    footprint: FootprintView | None
    insights: tuple[InsightView, ...]
    first: tuple[EngineRow, ...]
    notes: tuple[str, ...]
    profile: Profile
    """The layers for the page data."""


def collect_engines(builds: dict[str, Build]) -> tuple[EngineView, ...]:
    """Return the engines of a run."""
    return tuple(_view(step, build.as_profile(), build) for step, build in builds.items())


def collect_untimed(profiles: dict[str, Profile]) -> tuple[EngineView, ...]:
    """Return profiles whose layers have no times, such as output of TensorRT's engine inspector."""
    return tuple(
        _view(step, profile, None)
        for step, profile in profiles.items()
        if profile.layers and not has_timed_layers(profile)
    )


def _view(step: str, profile: Profile, build: Build | None) -> EngineView:
    layers = profile.layers
    tactics = [one for one in count_layers(layer.tactic for layer in layers) if one.name]
    nodes = {node for layer in layers for node in layer.onnx_nodes}
    missed = missed_precisions(profile, build)
    return EngineView(
        step=visible_name(step),
        label=short_name(profile.label) if build is not None else "",
        built=collect_build(build) if build is not None else None,
        layer_count=len(layers),
        network_layer_count=build.network_layer_count if build is not None else 0,
        basis=BASES[build.layers_basis if build is not None else "file"],
        node_count=len(nodes),
        precisions=count_layers(layer.precision or UNKNOWN for layer in layers),
        types=count_layers(layer.type for layer in layers),
        tactics=tuple([one for one in tactics if one.count > 1][:_TACTICS] or tactics[:_FEW_TACTICS]),
        tactic_count=len(tactics),
        missed=missed,
        reformats=collect_reformats(layers, profile.inputs, profile.outputs),
        footprint=collect_footprint(profile) if layers else None,
        insights=tuple(map(insight_view, insights_of_engine(EngineSubject(profile, build)))),
        first=tuple(_row(layer, place in missed) for place, layer in enumerate(layers[:_ROWS_WITHOUT_SCRIPT])),
        notes=tuple(short_name(note, 1000) for note in profile.notes),
        profile=profile,
    )


def count_layers(keys: Iterable[str]) -> tuple[LayerCount, ...]:
    """Return groups of layers with equal keys, the most frequent first."""
    counts = Counter(keys)
    total = counts.total() or 1
    ordered = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    return tuple(LayerCount(visible_name(name), number, number / total) for name, number in ordered)


def _row(layer: Layer, is_missed: bool) -> EngineRow:
    return EngineRow(
        index=layer.index,
        name=visible_name(layer.name),
        type=visible_name(layer.type),
        dims=shape_text(layer.outputs[0].shape) if layer.outputs else "",
        precision=visible_name(layer.precision or UNKNOWN),
        types=types_text(layer),
        asked=visible_name(layer.asked_precision),
        is_missed=is_missed,
        nodes=len(layer.onnx_nodes),
    )
