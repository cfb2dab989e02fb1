"""Made-up oracles for searches of what to keep: known sets are needed, and nothing has to run."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

from ndld_flow.precision_search.minimal_set import (
    Attempt,
    Budget,
    Candidate,
    Kept,
    MinimalSet,
    Outcome,
    find_minimal_set,
)

FOREVER = Budget(100_000)


@dataclass
class Planted:
    """Passes when one of some sets is kept whole, and none of others is."""

    needed: Collection[frozenset[int]]
    harmful: Collection[frozenset[int]] = ()
    """Keeping all of one of these is worse than not."""
    asked: list[Kept] = field(default_factory=list)

    def __call__(self, kept: Kept) -> Outcome:
        self.asked.append(kept)
        best = max((len(kept & item) / len(item) for item in self.needed), default=1.0)
        bad = any(item <= kept for item in self.harmful)
        return Outcome(best >= 1.0 and not bad, best - 1.0 - bad)

    def passes(self, kept: Kept) -> bool:
        return any(item <= kept for item in self.needed) and not any(item <= kept for item in self.harmful)


def line(size: int, kinds: Sequence[str] = ("Conv",), severity: dict[int, float] | None = None) -> list[Candidate]:
    """Candidates 0 to size - 1; operators in turn."""
    known = severity or {}
    return [Candidate(i, kinds[i % len(kinds)], f"node_{i}", known.get(i, 0.0)) for i in range(size)]


def find(
    candidates: Sequence[Candidate], oracle: Planted, budget: Budget = FOREVER
) -> tuple[MinimalSet, list[Attempt]]:
    """Return the result of a search and its trials."""
    result: list[Attempt] = []
    return find_minimal_set(candidates, oracle, budget, result.append), result
