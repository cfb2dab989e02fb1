"""Facts and times reported by a device and its runtime library."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class DeviceTimes:
    """Times of one pass in ms by the device's own clock; None for unknown ones."""

    enqueue_ms: float | None = None
    """Time of the host to launch the pass."""
    h2d_ms: float | None = None
    """Copy of the inputs to the device."""
    compute_ms: float | None = None
    d2h_ms: float | None = None
    """Copy of the outputs from the device."""


@dataclass(frozen=True)
class DeviceFacts:
    """Facts about an open model."""

    facts: Mapping[str, int | str | bool] = field(default_factory=dict)
    """Facts such as memory in bytes."""
    versions: Mapping[str, str] = field(default_factory=dict)
    """Versions of libraries that only the measuring process loads."""
    notes: tuple[str, ...] = ()
    """Notes for the profile."""
