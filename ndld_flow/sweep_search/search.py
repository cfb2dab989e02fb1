"""The protocol of searches: ask for points, then report their results."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from ndld_flow.sweep_search.space import Assignment

Method = Literal["grid", "one_at_a_time", "random", "hill_climb", "tpe"]


Direction = Literal["minimize", "maximize"]


@dataclass(frozen=True)
class Saturation:
    """The condition under which a search ends early."""

    gain: float = 0.02
    """Relative improvement of the first objective that still counts: 0.02 is 2 %."""
    points: int = 2
    """Number of points in a row below `gain` that ends the search."""
    along: str = ""
    """An axis whose values are tried in order for each combination of the others; each series ends separately."""


@dataclass(frozen=True)
class SearchOptions:
    """Settings of a search."""

    method: Method = "grid"
    directions: tuple[Direction, ...] = ()
    """One per objective; empty without objectives."""
    points: int | None = None
    """Upper bound of the points to try."""
    seed: int = 0
    start: Assignment | None = None
    """The recipe's own point, if it is in the space: one-at-a-time varies it, and climbs start here."""
    saturation: Saturation | None = None


@dataclass(frozen=True)
class Trial:
    """The result of a point."""

    point: Assignment
    objectives: tuple[float, ...] | None
    """In the order of `directions`; None if it failed, or was not measured because a constraint failed."""
    violation: float = 0.0
    """0 if every constraint is met; else the largest distance from a bound, relative to it."""


class Search(Protocol):
    """An ask-and-tell search; deterministic: the same results give the same points."""

    @property
    def size(self) -> int | None:
        """Upper bound of its points; None if it is unknown."""

    @property
    def stopped_because(self) -> str:
        """The reason why it ended, such as `all 24 points tried` or `40 of 512 points: the budget`; else empty."""

    def ask(self, count: int) -> list[Assignment]:
        """Return at most `count` new points; none if the search has ended."""

    def tell(self, trials: Sequence[Trial]) -> None:
        """Take the results of the points of the last `ask`, in its order."""


Quality = tuple[int, float]
"""Less is better: allowed points by objective, then points that violate constraints by violation, then failed ones."""

FAILED: Quality = (2, 0.0)


def quality_of(trial: Trial, direction: Direction) -> Quality:
    """Return the quality of a trial by its first objective."""
    if trial.violation > 0:
        return 1, trial.violation
    if trial.objectives is None or not math.isfinite(trial.objectives[0]):
        return FAILED
    return 0, trial.objectives[0] if direction == "minimize" else -trial.objectives[0]
