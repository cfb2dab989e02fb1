"""What to record of a model's layers."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class RecordingPlan:
    """What to record."""

    passes: int
    """Measured passes; fewer where their events would be more than ONNX Runtime keeps."""
    events_per_pass: int | None = None
    """None when one pass has to be tried to know."""
    keep_optimised: bool = True
    """Whether to write the model as it runs: once is enough for any number of process runs."""
