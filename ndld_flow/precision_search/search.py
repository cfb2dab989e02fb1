"""Search for a small set to keep, most likely ones first.

1. `whole`: nothing is kept. If that passes, there is nothing to find.
2. `suspects`: those with a severity of 1 and more; if that is not enough, twice and again twice as many, by severity.
3. `op_types`, `regions`, `nodes`: with everything kept the goal is reached, so it is asked which operators are needed,
   which regions of the order of execution with these, and which nodes in these, by halving (see `narrowing`).
4. `shrink`: halving once more where many are left, then each is left out alone, until none can be: it is 1-minimal.

Nothing is assumed of the oracle: whatever is delivered was tried. Where not even everything passes, the goal becomes
to be as good as that. For k needed of n, in an oracle where keeping more is never worse, and without help from
severities, it takes at most `attempts_at_most(k, n)` attempts.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from ndld_flow.precision_search.attempts import (
    Attempt,
    Attempts,
    Budget,
    BudgetSpentError,
    Candidate,
    Kept,
    Oracle,
    Outcome,
    Phase,
)
from ndld_flow.precision_search.narrowing import Piece, needed_pieces, together

_FEW = 8
"""So many are left out one by one at once; of more, half are left out first."""
_REGIONS = 16
_AS_GOOD = 0.02
"""Scores this near count as equal where the goal cannot be reached."""
_SUSPECT = 1.0


@dataclass(frozen=True)
class Found:
    """What a search found."""

    kept: Kept
    outcome: Outcome
    attempts: tuple[Attempt, ...]
    without: Mapping[int, Outcome]
    """Member of `kept` -> what came of leaving it out alone, as far as that was tried."""
    minimal: bool
    """Every member was left out alone, and then the goal was not reached."""
    spent: bool
    """The budget ended the search."""


def attempts_at_most(needed: int, candidates: int) -> int:
    """Attempts for `needed` of `candidates`, at most, where keeping more is never worse and no severities help."""
    halvings = math.ceil(math.log2(max(candidates, 2)))
    narrowing = 3 * (needed * (halvings + 1) + 1) + needed * (halvings + 1) + 1
    return 2 + halvings + narrowing + needed * (needed + 1)


def search(
    candidates: Sequence[Candidate], oracle: Oracle, budget: Budget, tell: Callable[[Attempt], None] = lambda _: None
) -> Found:
    """Find a small set to keep. `tell` hears of every attempt, in order."""
    looking = _Search(candidates, Attempts(oracle, budget, tell))
    spent = False
    try:
        looking.run()
    except BudgetSpentError:
        spent = True
    return looking.found(spent)


class _Search:
    def __init__(self, candidates: Sequence[Candidate], attempts: Attempts) -> None:
        self._by_index = {each.index: each for each in sorted(candidates, key=lambda each: each.index)}
        self._ranked = sorted(self._by_index.values(), key=lambda each: (-each.severity, each.index))
        self._attempts = attempts
        self._enough = math.inf
        """A score that will do though it does not pass."""
        self._small: Kept | None = None
        """What was left in the end where nothing passes."""

    def run(self) -> None:
        if self._try(frozenset(), "whole", "nothing kept").passed or not self._by_index:
            return
        kept = self._suspects() or self._by_parts()
        self._small = self._shrink(kept)
        best = self._attempts.best
        if best.outcome.passed and best.kept != self._small:
            # Found on the way to something that would only have been as good.
            self._enough = math.inf
            self._small = self._shrink(best.kept)

    def found(self, spent: bool) -> Found:
        best = self._attempts.best
        kept, outcome = best.kept, best.outcome
        if not outcome.passed and self._small is not None:
            kept = self._small
            outcome = self._attempts.known(kept) or outcome
        left_out = {index: self._attempts.known(kept - {index}) for index in sorted(kept)}
        without = {index: known for index, known in left_out.items() if known is not None}
        minimal = len(without) == len(kept) and not any(map(self._will_do, without.values()))
        return Found(kept, outcome, self._attempts.all, without, minimal, spent)

    def _try(self, kept: Kept, phase: Phase, what: str) -> Outcome:
        return self._attempts.outcome(kept, phase, what)

    def _will_do(self, outcome: Outcome) -> bool:
        return outcome.passed or outcome.score >= self._enough

    def _reaches(self, phase: Phase) -> Callable[[Kept, str], bool]:
        return lambda kept, what: self._will_do(self._try(kept, phase, what))

    def _suspects(self) -> Kept | None:
        """The fewest of the most severe that pass together, in doublings up to half of all; None when none do."""
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
        """Which operators, then which regions with them, then which nodes in these."""
        everything = self._try(frozenset(self._by_index), "op_types", "everything kept")
        if not everything.passed:
            best = self._attempts.best
            self._enough = best.outcome.score - _AS_GOOD
            if not self._will_do(everything):
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
        """The set without one that it does not need, least severe first; None when it needs all."""
        for candidate in reversed(self._of(kept)):
            rest = kept - {candidate.index}
            if self._will_do(self._try(rest, "shrink", f"without {candidate.name or candidate.index}")):
                return rest
        return None

    def _of(self, kept: Kept) -> list[Candidate]:
        return [each for each in self._ranked if each.index in kept]

    def _singles(self, kept: Kept) -> list[Piece]:
        return [(each.name or str(each.index), frozenset({each.index})) for each in self._of(kept)]

    def _kinds(self) -> list[Piece]:
        """Operators, those with the most severe nodes first, then those with few nodes."""
        kinds: dict[str, list[Candidate]] = {}
        for each in self._ranked:
            kinds.setdefault(each.kind, []).append(each)
        ordered = sorted(kinds.items(), key=lambda item: (-item[1][0].severity, len(item[1])))
        return [(kind, frozenset(each.index for each in members)) for kind, members in ordered]

    def _regions(self, kept: Kept) -> list[Piece]:
        """Runs of the order of execution, about equally long, first ones first."""
        order = sorted(kept)
        size = max(1, math.ceil(len(order) / _REGIONS))
        runs = [order[start : start + size] for start in range(0, len(order), size)]
        return [(f"nodes {run[0]} to {run[-1]}", frozenset(run)) for run in runs]
