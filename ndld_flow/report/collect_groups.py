"""Sum layers by a common property."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ndld_flow.base.text import visible_name
from ndld_flow.records.profile import Layer


@dataclass(frozen=True)
class LayerGroup:
    """Layers that share a type, a precision, a role or a tactic."""

    name: str
    """Displayed value; empty for layers without one."""
    count: int
    sum_ms: float
    """Sum of their medians."""
    share: float
    """Of the sum of all layers, 0 to 1."""
    moved_bytes: int
    """Bytes read and written."""


def group_layers(layers: Sequence[Layer], medians_ms: Sequence[float], keys: Iterable[str]) -> tuple[LayerGroup, ...]:
    """Return groups of layers with equal keys, the longest first."""
    members: dict[str, list[int]] = {}
    for place, key in enumerate(keys):
        members.setdefault(key, []).append(place)
    total = sum(medians_ms) or 1.0
    groups = [
        _group(name, [layers[at] for at in at_], sum(medians_ms[at] for at in at_), total)
        for name, at_ in members.items()
    ]
    return tuple(sorted(groups, key=lambda group: (-group.sum_ms, group.name)))


def _group(name: str, layers: Sequence[Layer], sum_ms: float, total: float) -> LayerGroup:
    return LayerGroup(
        name=visible_name(name),
        count=len(layers),
        sum_ms=sum_ms,
        share=sum_ms / total,
        moved_bytes=sum([layer.read_bytes + layer.written_bytes for layer in layers]),
    )
