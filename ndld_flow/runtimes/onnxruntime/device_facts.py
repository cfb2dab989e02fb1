"""What a device, and the library that runs models on it, tell of themselves."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class DeviceTimes:
    """Of one pass, in ms by the device's own clock; None for what is not known."""

    enqueue_ms: float | None = None
    """Of the host, to launch it."""
    h2d_ms: float | None = None
    """Copy of the inputs to the device."""
    compute_ms: float | None = None
    d2h_ms: float | None = None
    """Copy of the outputs from the device."""


@dataclass(frozen=True)
class DeviceFacts:
    """What is to be told of an opened model."""

    facts: Mapping[str, int | str | bool] = field(default_factory=dict)
    """Such as memory in bytes."""
    versions: Mapping[str, str] = field(default_factory=dict)
    """Libraries that only the measuring process sees."""
    notes: tuple[str, ...] = ()
    """Sentences for people."""
