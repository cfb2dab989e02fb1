"""The device that ran a profile: its properties, and its published peak rates."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from pydantic import JsonValue

from ndld_flow.base.quantities import size, three_digits
from ndld_flow.base.text import short_name, value_text
from ndld_flow.profiles.diagnose.published_peaks import PublishedPeaks, published_peaks
from ndld_flow.records.profile import Profile
from ndld_flow.report.measured import Fact, profile_titles
from ndld_flow.report.panel import profiles_panel

_SIZES = ("TotalMemory", "L2_CACHE_SIZE", "MAX_SHARED_MEMORY_PER_BLOCK", "MAX_SHARED_MEMORY_PER_MULTIPROCESSOR")
_KILOHERTZ = ("CLOCK_RATE", "MEMORY_CLOCK_RATE")
_NAMES = {
    "ComputeCapability": "compute capability",
    "MULTIPROCESSOR_COUNT": "multiprocessors",
    "CLOCK_RATE": "clock",
    "TotalMemory": "memory",
    "MEMORY_CLOCK_RATE": "memory clock",
    "GLOBAL_MEMORY_BUS_WIDTH": "memory bus",
    "L2_CACHE_SIZE": "L2 cache",
    "MAX_SHARED_MEMORY_PER_MULTIPROCESSOR": "shared memory of a multiprocessor",
    "MAX_SHARED_MEMORY_PER_BLOCK": "shared memory of a block",
    "MAX_REGISTERS_PER_MULTIPROCESSOR": "registers of a multiprocessor",
    "MAX_THREADS_PER_MULTIPROCESSOR": "threads of a multiprocessor",
    "WARP_SIZE": "threads of a warp",
    "ASYNC_ENGINE_COUNT": "copy engines",
    "ECC_ENABLED": "error correction",
}
"""CUDA's name of a property -> its name here, in order."""


@dataclass(frozen=True)
class DeviceView:
    """One device, and the profiles that it ran."""

    name: str
    labels: tuple[str, ...]
    properties: tuple[Fact, ...]
    peaks: tuple[Fact, ...]
    """Multiply unit -> its published peak, and the memory's; empty if they are not known."""
    source: str
    """Address of the peaks."""


def collect(profiles: Mapping[str, Profile]) -> tuple[DeviceView, ...]:
    """Return the devices of the profiles that record properties or have published peaks."""
    titles = profile_titles(profiles)
    devices: dict[str, list[str]] = {}
    first: dict[str, Profile] = {}
    for step, profile in profiles.items():
        if profile.runtime.on_gpu and profile.machine.gpus:
            name = ", ".join(dict.fromkeys(profile.machine.gpus))
            devices.setdefault(name, []).append(titles[step])
            first.setdefault(name, profile)
    views = (_view(name, tuple(labels), first[name]) for name, labels in devices.items())
    return tuple(view for view in views if view.properties or view.peaks)


def _view(name: str, labels: tuple[str, ...], profile: Profile) -> DeviceView:
    peaks = published_peaks(profile)
    return DeviceView(
        name=short_name(name),
        labels=labels,
        properties=tuple(_properties(profile)),
        peaks=tuple(_peaks(peaks)) if peaks is not None else (),
        source=peaks.source if peaks is not None else "",
    )


def _properties(profile: Profile) -> Iterator[Fact]:
    recorded = profile.conditions.get("device_properties")
    known = recorded if isinstance(recorded, dict) else {}
    for name, title in _NAMES.items():
        if name in known:
            yield Fact(title, _text(name, known[name]))
    clock, bus = known.get("MEMORY_CLOCK_RATE"), known.get("GLOBAL_MEMORY_BUS_WIDTH")
    if isinstance(clock, int) and isinstance(bus, int) and clock > 0 and bus > 0:
        # Memory transfers twice in each cycle of the clock that CUDA reports.
        yield Fact("bandwidth by clock and bus", f"{three_digits(2 * clock * 1e3 * bus / 8 / 1e9)} GB/s")
    if not known and isinstance(logged := profile.conditions.get("device_information"), dict):
        yield from (Fact(short_name(name), value_text(value)) for name, value in logged.items())


def _text(name: str, value: JsonValue) -> str:
    if isinstance(value, list):
        return ".".join(map(str, value))
    if name in _SIZES and isinstance(value, int):
        return size(value)
    if name in _KILOHERTZ and isinstance(value, int):
        return f"{three_digits(value / 1e3)} MHz"
    if name == "GLOBAL_MEMORY_BUS_WIDTH":
        return f"{value} bits"
    return ("on" if value else "off") if name == "ECC_ENABLED" else value_text(value)


def _peaks(peaks: PublishedPeaks) -> Iterator[Fact]:
    for unit, macs_per_s in peaks.macs_per_s.items():
        yield Fact(unit, f"{three_digits(2 * macs_per_s / 1e12)} {'TOP/s' if 'INT' in unit.upper() else 'TFLOP/s'}")
    yield Fact("memory", f"{three_digits(peaks.bytes_per_s / 1e9)} GB/s")


PANEL = profiles_panel("Device", collect)
