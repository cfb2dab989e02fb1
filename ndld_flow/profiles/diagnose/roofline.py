"""The roofline model: how close a layer comes to the compute and memory limits of its device.

Williams, Waterman and Patterson, "Roofline: an insightful visual performance model", 2009,
https://doi.org/10.1145/1498765.1498785
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from ndld_flow.records.profile import Layer, Roofs

_VIEWS = ("Reshape", "Squeeze", "Unsqueeze", "Flatten", "Identity", "Shape", "Size", "NoOp")
"""Operators that change or read only a tensor's shape: no data moves."""
_PARTS = ("Gather", "GatherElements", "GatherND", "Slice", "Split")
"""Operators that read only as much as they write."""
_SHORT = 0.01
"""Layers shorter than this part of the longest one are too inaccurate for rates."""
_FEWEST = 3


@dataclass(frozen=True)
class Roofline:
    """The rates that a layer reaches, by its median time."""

    macs_per_s: float
    bytes_per_s: float
    intensity: float
    """Multiply-accumulates per byte moved; 0 if nothing is computed."""
    compute_share: float
    """Share of the device's compute roof, 0 to about 1."""
    memory_share: float
    """Share of the device's memory roof; above 1 for data that stay in a cache."""
    best_ms: float
    """Time of the layer at its limiting roof."""

    @property
    def limit(self) -> Literal["compute", "memory"]:
        """The limiting roof."""
        return "compute" if self.compute_share > self.memory_share else "memory"

    @property
    def reached(self) -> float:
        """Share of the limiting roof."""
        return max(self.compute_share, self.memory_share)


def roofline_of(layer: Layer, median_ms: float, roofs: Roofs) -> Roofline | None:
    """Return the roofline of a layer with this median time; None without a time or known work."""
    moved = moved_bytes(layer)
    macs = layer.macs or 0
    seconds = median_ms / 1e3
    if seconds <= 0 or not (moved or macs) or roofs.macs_per_s <= 0 or roofs.bytes_per_s <= 0:
        return None
    compute_s, memory_s = macs / roofs.macs_per_s, moved / roofs.bytes_per_s
    return Roofline(
        macs_per_s=macs / seconds,
        bytes_per_s=moved / seconds,
        intensity=macs / moved if moved else 0.0,
        compute_share=compute_s / seconds,
        memory_share=memory_s / seconds,
        best_ms=max(compute_s, memory_s) * 1e3,
    )


def moved_bytes(layer: Layer) -> int:
    """Return the bytes that a layer has to read and write."""
    if layer.type in _VIEWS or layer.role == "control":
        return 0
    if layer.type in _PARTS:
        return 2 * layer.written_bytes
    return layer.read_bytes + layer.written_bytes


def best_of_layers(layers: Sequence[Layer]) -> Roofs | None:
    """Return roofs that some layer reached; None if fewer than three layers have usable times.

    They are lower than the device's own, so they only show which of the two is nearer.
    """
    medians_ms = [layer.median_ms for layer in layers]
    shortest = _SHORT * max(medians_ms, default=0.0)
    known = [(layer, median_ms) for layer, median_ms in zip(layers, medians_ms, strict=True) if median_ms > shortest]
    computing = [layer.macs / median_ms for layer, median_ms in known if layer.macs]
    moving = [moved / median_ms for layer, median_ms in known if (moved := moved_bytes(layer))]
    if len(computing) < _FEWEST or len(moving) < _FEWEST:
        return None
    return Roofs(
        macs_per_s=max(computing) * 1e3, bytes_per_s=max(moving) * 1e3, how="the best rate of any of its layers"
    )
