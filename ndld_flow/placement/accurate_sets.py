"""The accuracy of sets of quantized layers, and the largest part of a set that meets a tolerance."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from ndld_flow.base.errors import ModelError
from ndld_flow.precision_search.minimal_set import Budget, Candidate, Kept, Outcome, find_minimal_set
from ndld_flow.precision_search.trials import Judge, TrialResult

WriteSet = Callable[[frozenset[int], Path], None]
"""Write the model to a file, with only these layers quantized. Raises `ModelError`."""


class AccurateSets:
    """Finds parts of sets of layers that meet the tolerance on the samples; each set is run once."""

    def __init__(self, judge: Judge, write: WriteSet, candidates: Sequence[Candidate], scratch: Path) -> None:
        """`candidates` are all layers, by their index; the severe ones are left out first."""
        self._judge, self._write, self._file = judge, write, scratch / "tried.onnx"
        self._candidates = {candidate.index: candidate for candidate in candidates}
        self._results: dict[frozenset[int], TrialResult] = {frozenset(): TrialResult()}
        self.broken: dict[int, str] = {}
        """Layer that was left out of a set -> the bound that does not hold with it."""

    @property
    def tried(self) -> int:
        return len(self._results) - 1

    def largest(self, wanted: frozenset[int], budget: Budget) -> frozenset[int] | None:
        """Return a part of a set that meets the tolerance, without the layers that broke another set.

        None if the budget ended before one was found. No single left-out layer could be in it, unless the budget ended.
        """
        wanted = wanted.difference(self.broken)

        def keep(kept: Kept) -> Outcome:
            return self._outcome(wanted - kept)

        found = find_minimal_set([self._candidates[index] for index in sorted(wanted)], keep, budget)
        if not found.outcome.passed:
            return None
        part = wanted - found.kept
        for index in found.kept:
            broken = self._judge.bounds.broken(self._results.get(part | {index}, TrialResult()))
            self.broken[index] = broken or "left out to meet the tolerance; it was not tried alone"
        return part

    def meets(self, quantized: frozenset[int]) -> bool:
        """Return whether a set meets the tolerance."""
        return self._outcome(quantized).passed

    def metrics(self, quantized: frozenset[int]) -> dict[str, float]:
        """Return the metrics of the worst output of a set that was tried; none for the empty set."""
        return self._judge.bounds.worst(self._results[quantized])

    def why_not(self, quantized: frozenset[int]) -> str:
        """Return the bound that does not hold for a set; empty if it was not tried."""
        return self._judge.bounds.broken(self._results.get(quantized, TrialResult()))

    def _outcome(self, quantized: frozenset[int]) -> Outcome:
        if not quantized:
            return Outcome(passed=True, score=0.0)
        if quantized not in self._results:
            try:
                self._write(quantized, self._file)
                self._results[quantized] = self._judge.judge(self._file)
            except ModelError as error:
                self._results[quantized] = TrialResult(trouble=str(error))
        judged = self._results[quantized]
        return Outcome(self._judge.bounds.passed(judged), self._judge.bounds.score(judged))
