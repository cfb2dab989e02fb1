"""A layer under the roofs of its device: what it reaches of them, and which of the two is the nearer.

Williams, Waterman and Patterson, "Roofline: an insightful visual performance model", 2009,
https://doi.org/10.1145/1498765.1498785
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from ndld_flow.records.profile import Layer, Roofs

_VIEWS = ("Reshape", "Squeeze", "Unsqueeze", "Flatten", "Identity", "Shape", "Size", "NoOp")
"""They give a tensor another shape, or read only its shape: no data moves."""
_PARTS = ("Gather", "GatherElements", "GatherND", "Slice", "Split")
"""They read only what they write."""
_SHORT = 0.01
"""Times shorter than this part of the longest layer's say little about speed."""
_FEWEST = 3


@dataclass(frozen=True)
class Roofline:
    """What a layer reaches, by its median time."""

    macs_per_s: float
    bytes_per_s: float
    intensity: float
    """Multiply-accumulates for each byte moved; 0 where nothing is computed."""
    compute_share: float
    """Of the device's compute roof, 0 to about 1."""
    memory_share: float
    """Of the device's memory roof; above 1 for data that stay in a cache."""
    best_ms: float
    """What the layer would take at the nearer roof."""

    @property
    def limit(self) -> Literal["compute", "memory"]:
        """The roof that it would meet first."""
        return "compute" if self.compute_share > self.memory_share else "memory"

    @property
    def reached(self) -> float:
        """Of the roof that it would meet first."""
        return max(self.compute_share, self.memory_share)


def roofline_of(layer: Layer, roofs: Roofs) -> Roofline | None:
    """None for a layer without time, or whose work is not known."""
    return roofline_at(layer, layer.median_ms, roofs)


def roofline_at(layer: Layer, median_ms: float, roofs: Roofs) -> Roofline | None:
    """`roofline_of` where the median is known: to find it takes longer than all the rest."""
    moved = _moved_bytes(layer)
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


def _moved_bytes(layer: Layer) -> int:
    if layer.type in _VIEWS or layer.role == "control":
        return 0
    if layer.type in _PARTS:
        return 2 * layer.written_bytes
    return layer.read_bytes + layer.written_bytes


def best_of_layers(layers: Sequence[Layer]) -> Roofs | None:
    """Roofs that are known to exist because a layer reached them; None where fewer than three layers tell either.

    They are lower than the device's own, so they say which of the two a layer is nearer to, and no more.
    """
    medians_ms = [layer.median_ms for layer in layers]
    shortest = _SHORT * max(medians_ms, default=0.0)
    known = [(layer, median_ms) for layer, median_ms in zip(layers, medians_ms, strict=True) if median_ms > shortest]
    computing = [layer.macs / median_ms for layer, median_ms in known if layer.macs]
    moving = [moved / median_ms for layer, median_ms in known if (moved := _moved_bytes(layer))]
    if len(computing) < _FEWEST or len(moving) < _FEWEST:
        return None
    return Roofs(
        macs_per_s=max(computing) * 1e3, bytes_per_s=max(moving) * 1e3, how="the best that any of its layers reaches"
    )
