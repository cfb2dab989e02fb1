"""The roofline model: the shares of the device's peak rates that its layers reach.

A peak is measured, or published by the vendor at boost clock. A layer has a share of the arithmetic only where its
multiply unit or precision is known: the same device multiplies 8-bit integers many times as fast as float32.

Williams, Waterman and Patterson, "Roofline: an insightful visual performance model", 2009,
https://doi.org/10.1145/1498765.1498785
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Literal

from ndld_flow.base.quantities import counted
from ndld_flow.records.profile import Layer, Profile

_MOST = 1.05
"""A layer that exceeds this part of a peak disproves it: the machine was busy when it was measured, the device is not
the one that the name says, or data stay in a cache."""
_SHORT = 0.01
"""Layers shorter than this part of the longest one are too inaccurate to disprove a peak."""
_VIEWS = ("Reshape", "Squeeze", "Unsqueeze", "Flatten", "Identity", "Shape", "Size", "NoOp")
"""Operators that change or read only a tensor's shape: no data moves."""
_PARTS = ("Gather", "GatherElements", "GatherND", "Slice", "Split")
"""Operators that read only as much as they write."""
_FILE = Path(__file__).with_suffix(".json")


@dataclass(frozen=True)
class PublishedPeaks:
    """Peak rates of one device."""

    device: str
    macs_per_s: Mapping[str, float]
    """Multiply unit -> multiply-accumulates per second."""
    bytes_per_s: float
    source: str
    """Address of the vendor's document."""

    @property
    def how(self) -> str:
        """The origin of the rates."""
        return f"published for {self.device}, at boost clock"


@cache
def _known_devices() -> dict[str, PublishedPeaks]:
    listed = json.loads(_FILE.read_text(encoding="utf-8"))["devices"]
    return {
        name: PublishedPeaks(
            device=name,
            macs_per_s={unit: tops * 1e12 / 2 for unit, tops in device["tops"].items()},
            bytes_per_s=device["gb_per_s"] * 1e9,
            source=device["source"],
        )
        for device in listed
        for name in device["names"]
    }


def published_peaks(profile: Profile) -> PublishedPeaks | None:
    """Return the published peaks of the device that ran a profile; None if the device or its peaks are not known.

    Names must be equal: an A10G is no A10, and an instance of a partitioned GPU (MIG) has a part of its units. Where a
    machine has different GPUs, the one that ran is not known.
    """
    gpus = set(profile.machine.gpus)
    return _known_devices().get(gpus.pop().strip()) if len(gpus) == 1 and profile.runtime.on_gpu else None


def moved_bytes(layer: Layer) -> int:
    """Return the bytes that a layer has to read and write."""
    if layer.type in _VIEWS or layer.role == "control":
        return 0
    if layer.type in _PARTS:
        return 2 * layer.written_bytes
    return layer.read_bytes + layer.written_bytes


@dataclass(frozen=True)
class PeakShares:
    """Shares of the device's peaks that one layer reaches, 0 to 1; None where a peak, the work or a time is not
    known."""

    compute: float | None = None
    bandwidth: float | None = None
    """Above 1 if the peak is published and the data stay in a cache."""

    @property
    def nearer(self) -> tuple[Literal["compute", "memory"], float] | None:
        """The nearer roof, with its share; None if none is known, or if data stay in a cache, whose roof is not."""
        if self.bandwidth is not None and self.bandwidth > _MOST:
            return None
        compute, memory = self.compute or 0.0, self.bandwidth or 0.0
        return (("compute", compute) if compute > memory else ("memory", memory)) if compute or memory else None


class LayerPeaks:
    """The peaks that apply to the layers of a profile: measured ones, otherwise the published ones of its device.

    A peak that some layer exceeds is none, except a published bandwidth.
    """

    def __init__(self, profile: Profile, medians_ms: Sequence[float], are_rates: Sequence[bool]) -> None:
        """Take the layers' times; `are_rates` marks those that are the device's own."""
        self.measured = profile.roofs
        self.published = None if self.measured is not None else published_peaks(profile)
        shortest = _SHORT * max(medians_ms, default=0.0)
        self._layers = profile.layers
        self._shares = [
            self._shares_of(layer, median_ms) if is_rate else PeakShares()
            for layer, median_ms, is_rate in zip(profile.layers, medians_ms, are_rates, strict=True)
        ]
        long = [shares for shares, ms in zip(self._shares, medians_ms, strict=True) if ms >= shortest]
        self.exceeded = sum((shares.compute or 0.0) > _MOST for shares in long)
        """Number of layers that multiply faster than the peak, which is then none."""
        self.exceeded_bandwidth = sum((shares.bandwidth or 0.0) > _MOST for shares in long) if self.measured else 0
        """Number of layers that move data faster than the measured bandwidth, which is then none."""

    @property
    def how(self) -> str:
        """The origin of the peaks; empty if there are none."""
        if self.measured is not None:
            return self.measured.how
        return self.published.how if self.published is not None else ""

    @property
    def doubt(self) -> str:
        """The reason why the peaks, or a part of them, are not known; empty if they are."""
        if not self.how:
            return "no roofs were measured, and the peaks of the device are not known"
        origin = "measured" if self.measured is not None else "published"
        if self.exceeded:
            return f"{counted(self.exceeded, 'layer')} faster than the {origin} arithmetic, which is then no roof"
        if self.exceeded_bandwidth:
            return (
                f"{counted(self.exceeded_bandwidth, 'layer')} faster than the {origin} bandwidth, which is then no roof"
            )
        return ""

    @property
    def ceilings(self) -> dict[str, float]:
        """Multiply unit, or measured precision -> its peak, of those on which layers multiply, the highest first."""
        if self.measured is not None:
            known = {self.measured.dtype: self.measured.macs_per_s}
        else:
            known = dict(self.published.macs_per_s) if self.published is not None else {}
        used = {name for layer in self._layers if layer.macs for name in (layer.unit, layer.precision)}
        return dict(sorted(((name, peak) for name, peak in known.items() if name in used), key=lambda item: -item[1]))

    @property
    def bytes_per_s(self) -> float:
        """The bandwidth; 0 if it is not known."""
        peaks = self.measured or self.published
        return peaks.bytes_per_s if peaks is not None else 0.0

    def shares(self, position: int) -> PeakShares:
        """Return the shares of one layer, without those of a peak that is none."""
        shares = self._shares[position]
        return PeakShares(
            None if self.exceeded else shares.compute, None if self.exceeded_bandwidth else shares.bandwidth
        )

    def most(self, position: int) -> float | None:
        """Return the larger share of one layer; None if one of the peaks is not known.

        The true share is smaller where other layers exceed the peak.
        """
        shares, layer = self._shares[position], self._layers[position]
        if (layer.macs and shares.compute is None) or (moved_bytes(layer) and shares.bandwidth is None):
            return None
        return max(shares.compute or 0.0, shares.bandwidth or 0.0)

    def _shares_of(self, layer: Layer, median_ms: float) -> PeakShares:
        if median_ms <= 0:
            return PeakShares()
        seconds, moved, peak = median_ms / 1e3, moved_bytes(layer), self._compute_peak(layer)
        return PeakShares(
            compute=layer.macs / seconds / peak if layer.macs and peak else None,
            bandwidth=moved / seconds / self.bytes_per_s if moved and self.bytes_per_s else None,
        )

    def _compute_peak(self, layer: Layer) -> float:
        """Return the peak of the layer's multiply unit, or the measured one of its precision; 0 if unknown."""
        if self.measured is not None:
            return self.measured.macs_per_s if layer.precision and layer.precision == self.measured.dtype else 0.0
        return self.published.macs_per_s.get(layer.unit, 0.0) if self.published is not None else 0.0
