"""Which of two trials came to more."""

from __future__ import annotations

import math

from ndld_flow.sweep_search.search import Direction, Trial

Quality = tuple[int, float]
"""Less is better: what was measured and is allowed, by its objective; then what is not allowed, by how far from it;
then what failed."""

FAILED: Quality = (2, 0.0)


def quality_of(trial: Trial, direction: Direction) -> Quality:
    """How good it is by its first objective."""
    if trial.violation > 0:
        return 1, trial.violation
    if trial.objectives is None or not math.isfinite(trial.objectives[0]):
        return FAILED
    return 0, trial.objectives[0] if direction == "minimize" else -trial.objectives[0]
