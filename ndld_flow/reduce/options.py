"""Options of `reduce`, for programs and the command line."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class ReduceOptions:
    """Limits of a reduction, and what must stay the same."""

    trials: int = 300
    """Maximum number of runs; then the smallest model found is packed."""
    samples: int = 4
    """Maximum number of samples that the reduced model gets, and of steps of a sequence where the data has no end."""
    keep_values: bool = False
    """Keep all weights and inputs; by default those that the failure does not need are replaced by random ones."""
    strict: bool = False
    """Count a failure as the same only if it is at the same outputs, by the same criteria, and at least half as far
    beyond the bound of a gate."""
