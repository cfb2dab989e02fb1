"""Layers of engines that nobody has timed: what they are, not how long they take."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from ndld_flow.base.text import short_name, shortened, visible_name
from ndld_flow.profiles.diagnose.asked_precision import missed_precisions
from ndld_flow.profiles.diagnose.diagnose_engine import insights_of_engine
from ndld_flow.profiles.diagnose.engine_subject import EngineSubject
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
    "file": "as the file tells them",
    "engine inspector": "as TensorRT's engine inspector tells them",
    "build log": "as the builder's log names them: what was compiled",
    "network as parsed": "of the network before it was optimised: what was compiled is not known",
}
"""Where layers are known from, in words."""


@dataclass(frozen=True)
class LayerCount:
    """Layers that share a precision, a type or a tactic."""

    name: str
    """Empty for layers that do not tell."""
    count: int
    share: float
    """Of all layers, 0 to 1."""

    @property
    def shown(self) -> str:
        """Both ends of a long name: tactics differ at their ends."""
        return shortened(self.name, 40)


@dataclass(frozen=True)
class EngineRow:
    """One layer, as it is printed where there is no script."""

    index: int
    name: str
    type: str
    dims: str
    precision: str
    types: str
    """Of what it reads and writes; empty where both are that precision."""
    asked: str
    """Precision that was asked for; empty for none."""
    is_missed: bool
    """Whether it surely did not get that."""
    nodes: int
    """How many ONNX nodes it holds."""


@dataclass(frozen=True)
class EngineView:
    """One engine: how it was built, where that is known, and its layers."""

    step: str
    """The step that made it, or the file it was read from."""
    label: str
    """What it was made of; empty where that is not known."""
    built: BuiltView | None
    layer_count: int
    network_layer_count: int
    """Before optimisation; 0 where it is not known."""
    basis: str
    """Where the layers are known from."""
    node_count: int
    """ONNX nodes that the layers name, each once."""
    precisions: tuple[LayerCount, ...]
    """Most layers first, as in the two that follow."""
    types: tuple[LayerCount, ...]
    tactics: tuple[LayerCount, ...]
    """Those of several layers; without any, the first few."""
    tactic_count: int
    missed: tuple[int, ...]
    """Positions of layers that did not get the precision that was asked for."""
    reformats: ReformatsView | None
    footprint: FootprintView | None
    insights: tuple[InsightView, ...]
    first: tuple[EngineRow, ...]
    notes: tuple[str, ...]
    profile: Profile
    """The layers as the payload reads them."""


def collect_engines(builds: dict[str, Build]) -> tuple[EngineView, ...]:
    """Return the engines of a run, by the step that built them."""
    return tuple(_view(step, build.as_profile(), build) for step, build in builds.items())


def collect_untimed(profiles: dict[str, Profile]) -> tuple[EngineView, ...]:
    """Return profiles whose layers have no times, such as what TensorRT's engine inspector wrote."""
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
    """Return layers of equal keys together, the most frequent first."""
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
