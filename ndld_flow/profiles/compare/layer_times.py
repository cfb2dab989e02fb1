"""Times of layers in each process run."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import accumulate, pairwise
from typing import NamedTuple

from ndld_flow.profiles.compare.measured import LARGEST
from ndld_flow.records.profile import Layer, Profile

TICK_MS = 0.001
"""Resolution of the clock in ONNX Runtime's profiles. Shorter times count as half a tick, because 0 has no ratio."""


class RunTimes(NamedTuple):
    """Time of a row's layers over process runs."""

    runs: int
    median_ms: float
    log_mean: float
    """Mean of the logarithms."""
    log_error: float
    """Its squared standard error, at least that of the clock's resolution; 0 for one run."""


class LayerTimes:
    """Times of one profile's layers, each computed once and reused for all candidates."""

    def __init__(self, profile: Profile) -> None:
        self._cuts = list(pairwise([0, *accumulate(profile.layer_runs)]))
        self._medians_of = [self._run_medians(layer) for layer in profile.layers]
        self._known: dict[tuple[int, ...], RunTimes | None] = {}

    def of(self, positions: tuple[int, ...]) -> RunTimes | None:
        """Return the times of the sum of these layers; None without layers, or if one was not measured."""
        if positions not in self._known:
            self._known[positions] = _reduce(self._sums(positions))
        return self._known[positions]

    def total_ms(self, positions: Sequence[int]) -> float:
        """Return the sum of these layers' medians; unmeasured layers count as 0."""
        return math.fsum(median(self._medians_of[position]) for position in positions if self._medians_of[position])

    def _sums(self, positions: tuple[int, ...]) -> Sequence[float]:
        if len(positions) == 1:
            return self._medians_of[positions[0]]
        return [math.fsum(run) for run in zip(*(self._medians_of[position] for position in positions), strict=False)]

    def _run_medians(self, layer: Layer) -> list[float]:
        samples = layer.samples_ms
        cuts = self._cuts or [(0, len(samples))]
        if samples and min(samples) >= 0 and sum(samples) < LARGEST:  # NaN fails the second
            return [median(samples[start:end]) for start, end in cuts if start < min(end, len(samples))]
        parts = ([one for one in samples[start:end] if 0 <= one < LARGEST] for start, end in cuts)
        return [median(part) for part in parts if part]


def median(values: Sequence[float]) -> float:
    """Return the median in a quarter of the time of `statistics.median`; it is called hundreds of thousands of
    times."""
    ordered, middle = sorted(values), len(values) // 2
    return ordered[middle] if len(values) % 2 else (ordered[middle - 1] + ordered[middle]) / 2


def _reduce(values: Sequence[float]) -> RunTimes | None:
    count = len(values)
    if not count:
        return None
    middle = max(median(values), TICK_MS / 2)
    logs = [math.log(value) if value > TICK_MS / 2 else _LOG_OF_HALF_A_TICK for value in values]
    mean = sum(logs) / count
    if count == 1:
        return RunTimes(count, middle, mean, 0.0)
    variance = sum([(log - mean) ** 2 for log in logs]) / (count - 1)
    return RunTimes(count, middle, mean, max(variance, (TICK_MS / middle) ** 2 / 12) / count)


_LOG_OF_HALF_A_TICK = math.log(TICK_MS / 2)
