"""Peak rates of devices as their vendors publish them, and the share of a peak that a layer reaches.

The rates hold at boost clock. A layer has a share only where its multiply unit is known: the same device multiplies
8-bit integers many times as fast as float32.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from ndld_flow.profiles.diagnose.roofline import moved_bytes
from ndld_flow.profiles.diagnose.subject import Subject
from ndld_flow.records.profile import Profile, Roofs

_MOST = 1.05
"""A layer that multiplies faster than this part of a peak disproves the peak: the machine was busy when it was
measured, or the device is not the one that the name says. More than the bandwidth only shows that data stay in a
cache."""
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


def units_in_use(profile: Profile, peaks: PublishedPeaks) -> dict[str, float]:
    """Return multiply unit -> its peak, of those on which layers of a profile multiply, the highest first."""
    used = {layer.unit for layer in profile.layers if layer.macs}
    known = {unit: peak for unit, peak in peaks.macs_per_s.items() if unit in used}
    return dict(sorted(known.items(), key=lambda item: -item[1]))


@dataclass(frozen=True)
class PeakShares:
    """Shares of the device's peaks that one layer reaches, 0 to 1; None where a peak, the work or a time is not
    known."""

    compute: float | None = None
    bandwidth: float | None = None


class LayerPeaks:
    """The peaks that apply to the layers of a profile: measured ones, otherwise the published ones of its device."""

    def __init__(self, subject: Subject) -> None:
        self._subject = subject
        self.measured: Roofs | None = subject.profile.roofs
        self.published = None if self.measured is not None else published_peaks(subject.profile)
        self._shares = tuple(map(self._shares_of, range(len(subject.layers))))
        self.exceeded = sum(shares.compute is not None and shares.compute > _MOST for shares in self._shares)
        """Number of layers that multiply faster than the peak, which is then none."""

    @property
    def how(self) -> str:
        """The origin of the peaks; empty if there are none."""
        if self.measured is not None:
            return self.measured.how
        return self.published.how if self.published is not None else ""

    def shares(self, position: int) -> PeakShares:
        """Return the shares of one layer, without that of a peak that some layer exceeds."""
        shares = self._shares[position]
        return PeakShares(bandwidth=shares.bandwidth) if self.exceeded else shares

    def _shares_of(self, position: int) -> PeakShares:
        """Return the shares of one layer. The times of a host that does not wait for the device are no rates."""
        layer, median_ms = self._subject.layers[position], self._subject.medians_ms[position]
        if median_ms <= 0 or not self._subject.is_rate(position):
            return PeakShares()
        seconds, moved = median_ms / 1e3, moved_bytes(layer)
        peak, bandwidth = self._compute_peak(position), self._bandwidth
        return PeakShares(
            compute=layer.macs / seconds / peak if layer.macs and peak else None,
            bandwidth=moved / seconds / bandwidth if moved and bandwidth else None,
        )

    @property
    def _bandwidth(self) -> float:
        if self.measured is not None:
            return self.measured.bytes_per_s
        return self.published.bytes_per_s if self.published is not None else 0.0

    def _compute_peak(self, position: int) -> float:
        """Return the peak of the layer's multiply unit, or the measured one of its precision; 0 if unknown."""
        layer = self._subject.layers[position]
        if self.measured is not None:
            return self.measured.macs_per_s if layer.precision and layer.precision == self.measured.dtype else 0.0
        return self.published.macs_per_s.get(layer.unit, 0.0) if self.published is not None else 0.0
