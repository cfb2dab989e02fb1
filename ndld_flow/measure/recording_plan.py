"""Settings of the recording of a model's layers."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class RecordingPlan:
    """Settings of a recording."""

    passes: int
    """Measured passes; fewer where ONNX Runtime cannot keep all their events."""
    events_per_pass: int | None = None
    """Events of one pass; None when they must be counted in a trial pass."""
    keep_optimised: bool = True
    """Write the optimised model; once is enough for any number of process runs."""
