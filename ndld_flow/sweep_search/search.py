"""The protocol of searches: ask for points, then report their results."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from ndld_flow.sweep_search.space import Assignment

Direction = Literal["minimize", "maximize"]
Method = Literal["grid", "one_at_a_time", "random", "hill_climb", "tpe"]


@dataclass(frozen=True)
class Saturation:
    """When going on is not worth it."""

    gain: float = 0.02
    """Relative improvement of the first objective that still counts: 0.02 is 2 %."""
    points: int = 2
    """So many points in a row that do not reach it end the search."""
    along: str = ""
    """An axis: for each combination of the others, its values are tried in order, and each stops by itself."""


@dataclass(frozen=True)
class SearchOptions:
    """How to search."""

    method: Method = "grid"
    directions: tuple[Direction, ...] = ()
    """One for each objective; none where nothing is looked for and all points are just run."""
    points: int | None = None
    """Points to try, at most."""
    seed: int = 0
    start: Assignment | None = None
    """Where the recipe itself stands, when that is a point of the space: one-at-a-time varies it, climbs begin here."""
    saturation: Saturation | None = None


@dataclass(frozen=True)
class Trial:
    """What a point came to."""

    point: Assignment
    objectives: tuple[float, ...] | None
    """In the order of `directions`; None when it failed, or was not measured because a constraint said no."""
    violation: float = 0.0
    """0: every constraint holds; more: how far the worst is from holding, relative to its bound."""


class Search(Protocol):
    """Asked and told in turns; deterministic: the same answers give the same questions."""

    @property
    def size(self) -> int | None:
        """Points it will ask for at most; None when that cannot be known."""

    @property
    def stopped_because(self) -> str:
        """Why there is nothing more to ask: `all 24 points tried`, `40 of 512 points: the budget`, `saturated: ...`.

        Empty as long as there may be.
        """

    def ask(self, count: int) -> list[Assignment]:
        """At most `count` points that were not asked for before; none when the search is over."""

    def tell(self, trials: Sequence[Trial]) -> None:
        """What the points of the last `ask` came to, in its order."""


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
