"""What layers took in each process run."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import accumulate, pairwise

from ndld_flow.records.profile import Layer, Profile


class LayerTimes:
    """Times of one profile's layers, each reduced once however many rows and candidates ask."""

    def __init__(self, profile: Profile) -> None:
        ends = [0, *accumulate(profile.layer_runs)]
        self._cuts = list(pairwise(ends))
        self._of_layer = [self._reduce(layer) for layer in profile.layers]

    def of(self, positions: Sequence[int]) -> tuple[float, ...]:
        """For each process run, the sum of these layers' medians in ms; empty when one of them was not measured."""
        if len(positions) == 1:
            return self._of_layer[positions[0]]
        return tuple(map(math.fsum, zip(*(self._of_layer[position] for position in positions), strict=False)))

    def total_ms(self, positions: Sequence[int]) -> float:
        """The sum of these layers' medians over their process runs."""
        return math.fsum(median(self._of_layer[position]) for position in positions if self._of_layer[position])

    def _reduce(self, layer: Layer) -> tuple[float, ...]:
        cuts = self._cuts or [(0, len(layer.samples_ms))]
        parts = ([one for one in layer.samples_ms[start:end] if 0 <= one < math.inf] for start, end in cuts)
        return tuple(median(part) for part in parts if part)


def median(values: Sequence[float]) -> float:
    """As `statistics.median`, in a quarter of the time: there are hundreds of thousands of them."""
    ordered, middle = sorted(values), len(values) // 2
    return ordered[middle] if len(values) % 2 else (ordered[middle - 1] + ordered[middle]) / 2
