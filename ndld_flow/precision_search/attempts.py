"""What a search tries: sets to keep, what came of each, and how many may be tried."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

Phase = Literal["whole", "suspects", "op_types", "regions", "nodes", "shrink"]
Kept = frozenset[int]


@dataclass(frozen=True)
class Candidate:
    """One thing that may be kept."""

    index: int
    """Its place in the order of execution; two never have the same."""
    kind: str
    """Its operator."""
    name: str = ""
    """How people know it."""
    severity: float = 0.0
    """How much is known to speak against it: 1 and more is a suspect, 0 is nothing."""


@dataclass(frozen=True)
class Outcome:
    """What keeping a set comes to."""

    passed: bool
    score: float
    """More is better; it orders what did not pass. `-inf` for what could not be run."""


@dataclass(frozen=True)
class Attempt:
    """A set that was tried."""

    number: int
    """From 1."""
    phase: Phase
    what: str
    kept: Kept
    outcome: Outcome


@dataclass(frozen=True)
class Budget:
    """How long a search may go on."""

    attempts: int
    time_is_up: Callable[[], bool] = lambda: False


class BudgetSpentError(Exception):
    """There is nothing left to try with. Never leaves the package."""


Oracle = Callable[[Kept], Outcome]


class Attempts:
    """Asks the oracle, never twice for one set, until the budget is spent; knows the best that was seen."""

    def __init__(self, oracle: Oracle, budget: Budget, tell: Callable[[Attempt], None]) -> None:
        self._oracle = oracle
        self._budget = budget
        self._tell = tell
        self._known: dict[Kept, Attempt] = {}

    @property
    def all(self) -> tuple[Attempt, ...]:
        """In the order they were made."""
        return tuple(self._known.values())

    @property
    def best(self) -> Attempt:
        """The smallest set that passed, else the one with the best score. There must have been an attempt."""
        return max(self._known.values(), key=_goodness)

    def outcome(self, kept: Kept, phase: Phase, what: str) -> Outcome:
        """What keeping this set comes to. Raises `BudgetSpentError` when it is not known and may not be tried."""
        if kept not in self._known:
            # The first tells what there is to do at all, so it is made in any case.
            if self._known and (len(self._known) >= self._budget.attempts or self._budget.time_is_up()):
                raise BudgetSpentError
            attempt = Attempt(len(self._known) + 1, phase, what, kept, self._oracle(kept))
            self._known[kept] = attempt
            self._tell(attempt)
        return self._known[kept].outcome

    def known(self, kept: Kept) -> Outcome | None:
        """What came of a set that was tried."""
        return self._known[kept].outcome if kept in self._known else None


def _goodness(attempt: Attempt) -> tuple[bool, float, float]:
    size = -len(attempt.kept)
    outcome = attempt.outcome
    return (True, size, outcome.score) if outcome.passed else (False, outcome.score, size)
