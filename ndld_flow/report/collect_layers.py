"""Layers of every profile, and their time by type."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from ndld_flow.records.profile import Layer, Profile, TensorInfo
from ndld_flow.report.collect_accuracy import shape_text
from ndld_flow.report.collect_profiles import short_provider
from ndld_flow.report.plain_text import visible_name
from ndld_flow.report.profile_titles import profile_titles

_TYPES_SHOWN = 12
_ROWS_WITHOUT_SCRIPT = 20


@dataclass(frozen=True, slots=True)
class LayerRow:
    """One layer; times in ms over the passes of the layer pass."""

    index: int
    name: str
    type: str
    dims: str
    """Of its first output."""
    provider: str
    precision: str
    share: float
    """Median over the sum of all layers' medians, 0 to 1."""
    median_ms: float
    min_ms: float
    max_ms: float
    depth: int
    inputs: str
    outputs: str
    onnx_nodes: tuple[str, ...]


@dataclass(frozen=True)
class TypeTime:
    """All layers of one type together."""

    type: str
    count: int
    sum_ms: float
    share: float
    relative: float
    """Against the longest bar, 0 to 1."""
    is_rest: bool = False
    """True for the bar that holds all types too short to be shown."""


@dataclass(frozen=True)
class LayersView:
    """The layers of one profile."""

    step: str
    label: str
    rows: tuple[LayerRow, ...]
    """In execution order."""
    sum_ms: float
    passes: int
    types: tuple[TypeTime, ...]

    @property
    def slowest(self) -> tuple[LayerRow, ...]:
        """The rows to print, and to show where there is no script."""
        return tuple(sorted(self.rows, key=lambda row: -row.median_ms)[:_ROWS_WITHOUT_SCRIPT])


def collect_layers(profiles: dict[str, Profile]) -> tuple[LayersView, ...]:
    """Layers of every profile that has some."""
    titles = profile_titles(profiles)
    return tuple(_view(step, titles[step], profile) for step, profile in profiles.items() if profile.layers)


def _view(step: str, title: str, profile: Profile) -> LayersView:
    medians = [statistics.median(layer.samples_ms) if layer.samples_ms else 0.0 for layer in profile.layers]
    total = sum(medians)
    rows = tuple(_row(layer, value, total) for layer, value in zip(profile.layers, medians, strict=True))
    return LayersView(
        step=visible_name(step),
        label=title,
        rows=rows,
        sum_ms=total,
        passes=max(len(layer.samples_ms) for layer in profile.layers),
        types=_by_type(rows, total),
    )


def _row(layer: Layer, median_ms: float, total: float) -> LayerRow:
    return LayerRow(
        index=layer.index,
        name=visible_name(layer.name),
        type=visible_name(layer.type),
        dims=shape_text(layer.outputs[0].shape) if layer.outputs else "",
        provider=short_provider(layer.provider),
        precision=visible_name(layer.precision),
        share=median_ms / total if total else 0.0,
        median_ms=median_ms,
        min_ms=min(layer.samples_ms, default=0.0),
        max_ms=max(layer.samples_ms, default=0.0),
        depth=layer.depth,
        inputs=_tensors(layer.inputs),
        outputs=_tensors(layer.outputs),
        onnx_nodes=tuple(map(visible_name, layer.onnx_nodes)),
    )


def _tensors(tensors: Sequence[TensorInfo]) -> str:
    return ", ".join(
        f"{visible_name(one.name)} {visible_name(one.dtype)} {shape_text(one.shape)}".strip() for one in tensors
    )


def _by_type(rows: Sequence[LayerRow], total: float) -> tuple[TypeTime, ...]:
    """Longest first; types past the twelfth in one bar at the end."""
    times: dict[str, list[float]] = defaultdict(list)
    for row in rows:
        times[row.type].append(row.median_ms)
    ordered = sorted(times.items(), key=lambda item: (-sum(item[1]), item[0]))
    rest = [value for _, values in ordered[_TYPES_SHOWN:] for value in values]
    longest = max([sum(values) for _, values in ordered[:_TYPES_SHOWN]] + [sum(rest)]) or 1.0
    whole = total or 1.0
    shown = [
        TypeTime(name, len(values), sum(values), sum(values) / whole, sum(values) / longest)
        for name, values in ordered[:_TYPES_SHOWN]
    ]
    if rest:
        name = f"{len(ordered) - _TYPES_SHOWN} more types"
        shown.append(TypeTime(name, len(rest), sum(rest), sum(rest) / whole, sum(rest) / longest, True))
    return tuple(shown)
