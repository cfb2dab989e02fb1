"""What goes into a comparison: measured profiles, and the rules by which differences count."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from ndld_flow.records.comparison import Allowance
from ndld_flow.records.metric import Metric
from ndld_flow.records.noise import Noise
from ndld_flow.records.profile import Profile

FEW_RUNS = 5
"""With fewer process runs a side, their spread says too little and an assumed one is used."""

SMALLEST, LARGEST = 1e-12, 1e15
"""No time in ms, size or rate that was measured lies outside; a broken export holds anything."""


@dataclass(frozen=True)
class Measured:
    """One profile of one subject."""

    subject: int
    """Position among the subjects of the comparison."""
    step: str
    """The step it came from; empty for a file."""
    profile: Profile
    metrics: Mapping[str, Metric] = field(default_factory=dict)
    """More of the same run that is exact: `model.bytes`, `model.nodes`, `accuracy.cosine`."""


@dataclass(frozen=True)
class Rules:
    """Which differences count."""

    threshold: float = 0.03
    """Relative difference that counts; learned noise can only raise it."""
    floor_ms: float = 0.002
    """Absolute difference of a latency that counts: below it, the clock and the call itself are what is seen."""
    metric: str = "latency.min"
    """The metric that decides."""
    noise: Noise | None = None
    """What `ndld-flow noise` learned; it is used where machine, backend and provider are its own."""
    allow: frozenset[Allowance] = frozenset()
    """Circumstances that may differ, or be unknown, although they forbid a verdict."""
