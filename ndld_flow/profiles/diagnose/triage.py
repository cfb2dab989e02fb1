"""Summarise a profile: where the time goes, its bottleneck, and what to try."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass

from ndld_flow.profiles.diagnose.bound import bound_of
from ndld_flow.profiles.diagnose.diagnose import insights_of, insights_of_engine
from ndld_flow.profiles.diagnose.engine_subject import EngineSubject
from ndld_flow.profiles.diagnose.insight import Bound, Insight
from ndld_flow.profiles.diagnose.subject import Subject
from ndld_flow.records.profile import Layer, Profile


@dataclass(frozen=True)
class TopLayer:
    """One of the longest layers."""

    position: int
    """Position in `Profile.layers`."""
    layer: Layer
    median_ms: float
    share: float
    """Share of the sum of all layers, 0 to 1."""


@dataclass(frozen=True)
class LayerGroup:
    """Layers that share a property."""

    name: str
    count: int
    sum_ms: float
    share: float
    """Share of the sum of all layers, 0 to 1."""


@dataclass(frozen=True)
class Triage:
    """Summary of a profile. Shares are of the sum of all layers."""

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
    """Return the summary of a profile with its `top` longest layers; an engine that was not run has none."""
    subject = Subject(profile)
    timed = bool(profile.runs) or any(layer.samples_ms for layer in profile.layers)
    longest = subject.listed[: top if timed else 0]
    return Triage(
        layers_ms=subject.layers_ms,
        top=tuple(_top(subject, position) for position in longest),
        by_type=_groups(subject, lambda layer: layer.type),
        by_precision=_groups(subject, lambda layer: layer.precision or "unknown"),
        by_role=_groups(subject, lambda layer: layer.role),
        bound=bound_of(subject) if timed else Bound("unknown", "nothing was timed"),
        insights=insights_of(subject) if timed else insights_of_engine(EngineSubject(profile, None)),
    )


def _top(subject: Subject, position: int) -> TopLayer:
    median_ms = subject.medians_ms[position]
    return TopLayer(position, subject.layers[position], median_ms, median_ms / (subject.layers_ms or 1.0))


def _groups(subject: Subject, name_of: Callable[[Layer], str]) -> tuple[LayerGroup, ...]:
    times: dict[str, list[float]] = defaultdict(list)
    for layer, median_ms in zip(subject.layers, subject.medians_ms, strict=True):
        times[name_of(layer)].append(median_ms)
    total = subject.layers_ms or 1.0
    groups = (LayerGroup(name, len(values), sum(values), sum(values) / total) for name, values in times.items())
    return tuple(sorted(groups, key=lambda group: -group.sum_ms))
