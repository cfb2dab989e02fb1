"""A profile at a glance: where the time goes, what it is bound by, what to try."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass

from ndld_flow.diagnosis.believable import believable
from ndld_flow.diagnosis.bound import bound_by
from ndld_flow.diagnosis.diagnose import diagnose
from ndld_flow.diagnosis.insight import Bound, Insight
from ndld_flow.records.profile import Layer, Profile


@dataclass(frozen=True)
class TopLayer:
    """One of the longest layers."""

    position: int
    """In `Profile.layers`."""
    layer: Layer
    median_ms: float
    share: float
    """Of the sum of all layers, 0 to 1."""


@dataclass(frozen=True)
class LayerGroup:
    """Layers that have something in common."""

    name: str
    count: int
    sum_ms: float
    share: float
    """Of the sum of all layers, 0 to 1."""


@dataclass(frozen=True)
class Triage:
    """Where the time goes, what it is bound by, and what to try; shares are of the sum of all layers."""

    layers_ms: float
    """Sum of all layers' medians."""
    top: tuple[TopLayer, ...]
    """The longest first."""
    by_type: tuple[LayerGroup, ...]
    """The longest first, as in the two that follow."""
    by_precision: tuple[LayerGroup, ...]
    by_role: tuple[LayerGroup, ...]
    bound: Bound
    insights: tuple[Insight, ...]


def triage(profile: Profile, top: int = 10) -> Triage:
    """Look a profile over; `top` says how many of the longest layers to list."""
    profile = believable(profile)
    total = sum(layer.median_ms for layer in profile.layers)
    ordered = sorted(enumerate(profile.layers), key=lambda item: -item[1].median_ms)
    return Triage(
        layers_ms=total,
        top=tuple(
            TopLayer(position, layer, layer.median_ms, layer.median_ms / total if total else 0.0)
            for position, layer in ordered[:top]
        ),
        by_type=_groups(profile, total, lambda layer: layer.type),
        by_precision=_groups(profile, total, lambda layer: layer.precision or "unknown"),
        by_role=_groups(profile, total, lambda layer: layer.role),
        bound=bound_by(profile),
        insights=diagnose(profile),
    )


def _groups(profile: Profile, total: float, name_of: Callable[[Layer], str]) -> tuple[LayerGroup, ...]:
    times: dict[str, list[float]] = defaultdict(list)
    for layer in profile.layers:
        times[name_of(layer)].append(layer.median_ms)
    groups = (
        LayerGroup(name, len(values), sum(values), sum(values) / total if total else 0.0)
        for name, values in times.items()
    )
    return tuple(sorted(groups, key=lambda group: -group.sum_ms))
