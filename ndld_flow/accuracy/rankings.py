"""Whether two models rank the same element first."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ndld_flow.models.tensors import Array


@dataclass
class Ranking:
    """Rows along the last axis, and how many of them agree on the largest element."""

    rows: int = 0
    first: int = 0
    """Rows whose largest element is at the same place; of equal ones, the first counts (numpy.argmax)."""
    among: int = 0
    """Rows where fewer than k of the candidate's elements are larger than the one at the reference's place."""
    long: bool = False
    """Rows have more than k elements, else all are among the k largest."""

    def take(self, other: Ranking) -> None:
        self.rows += other.rows
        self.first += other.first
        self.among += other.among
        self.long |= other.long

    def metrics(self, k: int) -> dict[str, float]:
        if not self.rows:
            return {}
        among = {f"top{k}": self.among / self.rows} if self.long else {}
        return {"top1": self.first / self.rows} | among


def rank(reference: Array, candidate: Array, k: int) -> Ranking:
    """No rows where nothing can be ranked: scalars, rows of one element, bools."""
    if reference.ndim == 0 or reference.shape[-1] < 2 or not reference.size or reference.dtype.kind == "b":
        return Ranking()
    places = np.argmax(reference, axis=-1)
    same = np.argmax(candidate, axis=-1) == places
    if reference.shape[-1] <= k:
        return Ranking(int(same.size), int(np.count_nonzero(same)))
    there = np.take_along_axis(candidate, np.expand_dims(places, -1), axis=-1)
    # NaN is larger than everything, as for numpy.argmax.
    larger = np.count_nonzero(~(candidate <= there), axis=-1)
    return Ranking(int(same.size), int(np.count_nonzero(same)), int(np.count_nonzero(larger < k)), long=True)
