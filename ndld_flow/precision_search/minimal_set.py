"""Search for a small set of nodes to keep, the most suspect first.

1. `whole`: nothing is kept. If that passes, the search ends.
2. `suspects`: the candidates with a severity of 1 or more are kept; if that fails, twice as many, and so on.
3. `op_types`, `regions`, `nodes`: keeping everything reaches the goal, so halving finds the operators that are needed,
   then the regions of the execution order among their nodes, then the nodes in these regions.
4. `shrink`: if many nodes are left, one more halving; then nodes are dropped one at a time until none can be: the set
   is 1-minimal.

The search assumes nothing about the oracle: it returns only sets that were tried. If keeping everything does not pass
either, the goal becomes a score as good as that. If k of n candidates are needed, keeping more never hurts and
severities give no hint, the search takes at most 6 + h + 4 k (h + 1) + k (k + 1) attempts, where h is log2 n rounded
up.

Halving (`needed_pieces`) maintains two facts, both tried: the first `high` pieces reach the goal, the first `low` do
not. When the two meet, the piece between them is needed in addition to those before it. The result therefore reaches
the goal even if keeping more can hurt; only then may it contain unneeded pieces. With k of n pieces needed, it takes at
most k (log2 n + 1) + 1 attempts. (Junker's QUICKXPLAIN, AAAI 2004, compares such searches.)
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

Phase = Literal["whole", "suspects", "op_types", "regions", "nodes", "shrink"]
Kept = frozenset[int]


@dataclass(frozen=True)
class Candidate:
    """A node that may be kept."""

    index: int
    """Position in the order of execution; unique."""
    kind: str
    """Operator type."""
    name: str = ""
    """Display name."""
    severity: float = 0.0
    """Strength of the evidence against the node: 0 is none, 1 or more makes it a suspect."""


@dataclass(frozen=True)
class Outcome:
    """The result of keeping a set."""

    passed: bool
    score: float
    """Higher is better; it ranks sets that did not pass. `-inf` if the model could not run."""


@dataclass(frozen=True)
class Attempt:
    """A set that was tried."""

    number: int
    """From 1."""
    phase: Phase
    description: str
    kept: Kept
    outcome: Outcome


@dataclass(frozen=True)
class Budget:
    """The limits of a search."""

    attempts: int
    time_is_up: Callable[[], bool] = lambda: False


class BudgetSpentError(Exception):
    """The budget of a search is spent: it ends with what it has."""


Oracle = Callable[[Kept], Outcome]


class Attempts:
    """Queries the oracle once per set until the budget is spent, and keeps the results."""

    def __init__(self, oracle: Oracle, budget: Budget, on_attempt: Callable[[Attempt], None]) -> None:
        self._oracle = oracle
        self._budget = budget
        self._on_attempt = on_attempt
        self._known: dict[Kept, Attempt] = {}

    @property
    def all(self) -> tuple[Attempt, ...]:
        """All attempts, in order."""
        return tuple(self._known.values())

    @property
    def best(self) -> Attempt:
        """The smallest set that passed, or else the one with the best score. Requires at least one attempt."""
        return max(self._known.values(), key=_quality)

    def outcome(self, kept: Kept, phase: Phase, description: str) -> Outcome:
        """Return the outcome of keeping a set. Raises `BudgetSpentError` if it is unknown and the budget is spent."""
        if kept not in self._known:
            # The first attempt ignores the budget: without it there is no result at all.
            if self._known and (len(self._known) >= self._budget.attempts or self._budget.time_is_up()):
                raise BudgetSpentError
            attempt = Attempt(len(self._known) + 1, phase, description, kept, self._oracle(kept))
            self._known[kept] = attempt
            self._on_attempt(attempt)
        return self._known[kept].outcome

    def known(self, kept: Kept) -> Outcome | None:
        """Return the outcome of a set, or None if it was not tried."""
        return self._known[kept].outcome if kept in self._known else None


def _quality(attempt: Attempt) -> tuple[bool, float, float]:
    size = -len(attempt.kept)
    outcome = attempt.outcome
    return (True, size, outcome.score) if outcome.passed else (False, outcome.score, size)


Reaches = Callable[[Kept, str], bool]
"""Return whether keeping a set reaches the goal; the text describes the attempt."""
Piece = tuple[str, Kept]
"""Its name and its members."""


def needed_pieces(pieces: Sequence[Piece], reaches: Reaches) -> list[Piece]:
    """Return pieces that together reach the goal, given that all of them do; list the pieces that are least likely to
    be needed last."""
    needed: list[Piece] = []
    rest = list(pieces)
    while rest and not reaches(together(needed), _named(needed)):

        def is_enough(count: int, after: tuple[Piece, ...] = tuple(needed)) -> bool:
            tried = [*rest[:count], *after]
            return reaches(together(tried), _named(tried))

        count = smallest_count(is_enough, 0, len(rest))
        needed.insert(0, rest[count - 1])
        del rest[count - 1 :]
    return needed


def smallest_count(is_enough: Callable[[int], bool], low: int, high: int) -> int:
    """Return by halving a count that is enough while one less is not, given that `high` is enough and `low` is not."""
    while high - low > 1:
        middle = (low + high) // 2
        if is_enough(middle):
            high = middle
        else:
            low = middle
    return high


def together(pieces: Sequence[Piece]) -> Kept:
    """Return the members of all pieces."""
    return frozenset().union(*(held for _, held in pieces))


_NAMED = 3


def _named(pieces: Sequence[Piece]) -> str:
    names = [name for name, _ in pieces]
    rest = len(names) - _NAMED
    return ", ".join(names[:_NAMED]) + (f" and {rest} more" if rest > 0 else "") or "nothing"


_FEW = 8
"""Sets up to this size are shrunk node by node; larger ones are halved first."""
_REGIONS = 16
_AS_GOOD = 0.02
"""Scores closer than this count as equal if the goal cannot be reached."""
_SUSPECT = 1.0


@dataclass(frozen=True)
class MinimalSet:
    """The result of a search."""

    kept: Kept
    outcome: Outcome
    attempts: tuple[Attempt, ...]
    without: Mapping[int, Outcome]
    """Member of `kept` -> the outcome of dropping only it, if that was tried."""
    minimal: bool
    """True if dropping any single member misses the goal."""
    spent: bool
    """True if the budget ended the search."""


def find_minimal_set(
    candidates: Sequence[Candidate],
    oracle: Oracle,
    budget: Budget,
    on_attempt: Callable[[Attempt], None] = lambda _: None,
) -> MinimalSet:
    """Find a small set to keep. `on_attempt` is called with every attempt, in order."""
    search = _Search(candidates, Attempts(oracle, budget, on_attempt))
    spent = False
    try:
        search.run()
    except BudgetSpentError:
        spent = True
    return search.result(spent)


class _Search:
    def __init__(self, candidates: Sequence[Candidate], attempts: Attempts) -> None:
        self._by_index = {each.index: each for each in sorted(candidates, key=lambda each: each.index)}
        self._ranked = sorted(self._by_index.values(), key=lambda each: (-each.severity, each.index))
        self._attempts = attempts
        self._enough = math.inf
        """A score that is accepted although it does not pass."""
        self._small: Kept | None = None
        """The shrunk set, even if nothing passes."""

    def run(self) -> None:
        if self._try(frozenset(), "whole", "nothing kept").passed or not self._by_index:
            return
        kept = self._suspects() or self._by_parts()
        self._small = self._shrink(kept)
        best = self._attempts.best
        if best.outcome.passed and best.kept != self._small:
            # A set passed while the search was only looking for one that is as good as keeping everything.
            self._enough = math.inf
            self._small = self._shrink(best.kept)

    def result(self, spent: bool) -> MinimalSet:
        best = self._attempts.best
        kept, outcome = best.kept, best.outcome
        if not outcome.passed and self._small is not None:
            kept = self._small
            outcome = self._attempts.known(kept) or outcome
        left_out = {index: self._attempts.known(kept - {index}) for index in sorted(kept)}
        without = {index: known for index, known in left_out.items() if known is not None}
        minimal = len(without) == len(kept) and not any(map(self._is_enough, without.values()))
        return MinimalSet(kept, outcome, self._attempts.all, without, minimal, spent)

    def _try(self, kept: Kept, phase: Phase, description: str) -> Outcome:
        return self._attempts.outcome(kept, phase, description)

    def _is_enough(self, outcome: Outcome) -> bool:
        return outcome.passed or outcome.score >= self._enough

    def _reaches(self, phase: Phase) -> Callable[[Kept, str], bool]:
        return lambda kept, description: self._is_enough(self._try(kept, phase, description))

    def _suspects(self) -> Kept | None:
        """Return the most severe candidates that pass together, doubling up to half of all; None if none pass."""
        known = sum(each.severity > 0 for each in self._ranked)
        certain = sum(each.severity >= _SUSPECT for each in self._ranked)
        size = certain or min(known, _FEW)
        while 0 < size <= known:
            kept = frozenset(each.index for each in self._ranked[:size])
            if self._try(kept, "suspects", f"the {size} most suspect kept").passed:
                return kept
            if size == known or 2 * size > len(self._ranked):
                return None
            size = min(2 * size, known)
        return None

    def _by_parts(self) -> Kept:
        """Find the operators that are needed, then the regions among their nodes, then the nodes in these."""
        everything = self._try(frozenset(self._by_index), "op_types", "everything kept")
        if not everything.passed:
            best = self._attempts.best
            self._enough = best.outcome.score - _AS_GOOD
            if not self._is_enough(everything):
                return best.kept
        kept = together(needed_pieces(self._kinds(), self._reaches("op_types")))
        if len(kept) > 2 * _REGIONS:
            kept = together(needed_pieces(self._regions(kept), self._reaches("regions")))
        return together(needed_pieces(self._singles(kept), self._reaches("nodes")))

    def _shrink(self, kept: Kept) -> Kept:
        if len(kept) > _FEW:
            kept = together(needed_pieces(self._singles(kept), self._reaches("shrink")))
        smaller = self._leave_one_out(kept)
        while smaller is not None:
            kept, smaller = smaller, self._leave_one_out(smaller)
        return kept

    def _leave_one_out(self, kept: Kept) -> Kept | None:
        """Return the set without one spare node, the least severe first; None if every node is needed."""
        for candidate in reversed(self._of(kept)):
            rest = kept - {candidate.index}
            if self._is_enough(self._try(rest, "shrink", f"without {candidate.name or candidate.index}")):
                return rest
        return None

    def _of(self, kept: Kept) -> list[Candidate]:
        return [each for each in self._ranked if each.index in kept]

    def _singles(self, kept: Kept) -> list[Piece]:
        return [(each.name or str(each.index), frozenset({each.index})) for each in self._of(kept)]

    def _kinds(self) -> list[Piece]:
        """Return the nodes by operator: most severe first, then those with the fewest nodes."""
        kinds: dict[str, list[Candidate]] = {}
        for each in self._ranked:
            kinds.setdefault(each.kind, []).append(each)
        ordered = sorted(kinds.items(), key=lambda item: (-item[1][0].severity, len(item[1])))
        return [(kind, frozenset(each.index for each in members)) for kind, members in ordered]

    def _regions(self, kept: Kept) -> list[Piece]:
        """Return about equally long runs of the execution order, in that order."""
        order = sorted(kept)
        size = max(1, math.ceil(len(order) / _REGIONS))
        runs = [order[start : start + size] for start in range(0, len(order), size)]
        return [(f"nodes {run[0]} to {run[-1]}", frozenset(run)) for run in runs]
