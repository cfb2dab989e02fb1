"""The input of a comparison: measured profiles and the rules for judging differences."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from ndld_flow.records.comparison import Allowance
from ndld_flow.records.measurement import Metric
from ndld_flow.records.noise import Noise
from ndld_flow.records.profile import Profile

FEW_RUNS = 5
"""Minimum process runs per side; with fewer, an assumed spread is used."""

SMALLEST, LARGEST = 1e-12, 1e15
"""Range of plausible times in ms, sizes and rates; damaged exports may contain others."""


@dataclass(frozen=True)
class Measured:
    """One profile of one subject."""

    subject: int
    """Position among the subjects of the comparison."""
    step: str
    """The step that produced it; empty for a file."""
    profile: Profile
    metrics: Mapping[str, Metric] = field(default_factory=dict)
    """Exact metrics of the same run: `model.bytes`, `model.nodes`, `accuracy.cosine`."""


@dataclass(frozen=True)
class Rules:
    """Rules for judging differences."""

    threshold: float = 0.03
    """Minimum relevant relative difference; learned noise can only raise it."""
    floor_ms: float = 0.002
    """Minimum relevant absolute difference of a latency; smaller ones are due to the clock and call overhead."""
    metric: str = "latency.min"
    """The metric that decides."""
    noise: Noise | None = None
    """Noise learned by `ndld-flow noise`, used for the same machine, backend and provider."""
    allow: frozenset[Allowance] = frozenset()
    """Circumstances that may differ or be unknown although they would forbid a verdict."""
