"""The accuracy of sets of quantized layers, and a large part of a set that meets a tolerance.

Layers are ordered by what they save for their error, and halving finds how many of them, from the first, meet the
tolerance; it begins with the number that their errors let expect. Then each of the others is added, those that save the
most first, and stays if the tolerance is still met. So a layer that ruins an output costs one trial, and there is a
part soon.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path

from ndld_flow.base.errors import ModelError
from ndld_flow.precision_search.minimal_set import Budget
from ndld_flow.precision_search.trials import Judge, TrialResult
from ndld_flow.quantize.onnxruntime_quantizer import QuantizerError

WriteSet = Callable[[frozenset[int], Path], None]
"""Write the model to a file, with only these layers quantized. Raises `ModelError` and `QuantizerError`."""
_LEAST_ERROR = 1e-6
_USUAL_BOUND = 0.1
"""The bound on relative errors by which the first part is chosen, if the tolerance has none of slices."""


@dataclass(frozen=True)
class Worth:
    """The reasons to quantize a layer, and not to."""

    saved_ms: float
    """Time that it saves alone; 0 if it was not measured."""
    error: float | None
    """Relative RMS of the worst output's error if only it is quantized; None if it was not measured."""

    @property
    def per_error(self) -> float:
        """Return the time saved for the square of the error: independent errors add as squares."""
        return self.saved_ms / max(self.error or 0.0, _LEAST_ERROR) ** 2


class AccurateSets:
    """Finds parts of sets of layers that meet the tolerance on the samples; each set is run once."""

    def __init__(self, judge: Judge, write: WriteSet, worths: Sequence[Worth], scratch: Path) -> None:
        self._bound = judge.bounds.tolerance.bounds().get("slice_rms", _USUAL_BOUND)
        self._judge, self._write, self._file = judge, write, scratch / "tried.onnx"
        self._worths = worths
        self._results: dict[frozenset[int], TrialResult] = {}
        self.broken: dict[int, str] = {}
        """Layer that could not be added to a set -> the bound that does not hold with it."""
        self.untried: set[int] = set()
        """Layers that were left out of a set and not tried with the rest, because the budget was spent."""

    @property
    def tried(self) -> int:
        return len(self._results)

    def large_part(self, wanted: frozenset[int], budget: Budget) -> frozenset[int]:
        """Return a part of a set that meets the tolerance; the empty one if no other was found in the budget."""
        end = self.tried + budget.attempts

        def is_spent() -> bool:
            return self.tried >= end or budget.time_is_up()

        if self.meets(wanted):
            return wanted
        order = sorted(wanted, key=lambda index: (-self._worths[index].per_error, index))
        enough, many = 0, len(order)
        # The layers that are expected to meet the tolerance, if errors add as squares.
        sums = accumulate((self._worths[index].error or 0.0) ** 2 for index in order)
        fitting = sum(math.sqrt(total) <= self._bound for total in sums)
        middle = max(1, min(fitting, len(order) - 1))
        while many - enough > 1 and not is_spent():
            if self.meets(frozenset(order[:middle])):
                enough = middle
            else:
                many = middle
            middle = (enough + many) // 2
        part = frozenset(order[:enough])
        for index in sorted(order[enough:], key=lambda index: -self._worths[index].saved_ms):
            if part | {index} not in self._results and is_spent():
                self.untried.add(index)
            elif self.meets(part | {index}):
                part |= {index}
            else:
                self.broken[index] = self._judge.bounds.broken(self._results[part | {index}])
        return part

    def meets(self, quantized: frozenset[int]) -> bool:
        """Return whether a set meets the tolerance; a model that cannot be written or run does not."""
        if not quantized:
            return True
        if quantized not in self._results:
            try:
                self._write(quantized, self._file)
                self._results[quantized] = self._judge.judge(self._file)
            except (ModelError, QuantizerError) as error:  # another set may be possible
                self._results[quantized] = TrialResult(trouble=str(error))
        return self._judge.bounds.passed(self._results[quantized])

    def metrics(self, quantized: frozenset[int]) -> Mapping[str, float]:
        """Return the metrics of the worst output of a set; none for a set that was not tried."""
        judged = self._results.get(quantized)
        return {} if judged is None else self._judge.bounds.worst(judged)

    def why_not(self, quantized: frozenset[int]) -> str:
        """Return the bound that does not hold for a set that was tried."""
        return self._judge.bounds.broken(self._results[quantized])
