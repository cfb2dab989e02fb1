"""Levels of a series between its steps, the trend within the present one, and the best one: what gates compare with."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

from ndld_flow.base.metric_directions import Better

_LEAST = 12
"""Minimum number of points that show a trend."""
_BINS = 60
_CONFIDENT = 3.29
"""Standard deviations of a test at 99.9 % confidence."""


@dataclass(frozen=True)
class Drift:
    """A slow change within the present level."""

    change: float
    """Relative to the start of the level, from its first point to its last; a difference if values may be 0."""
    points: int


def find_drift(values: Sequence[float], least_change: float) -> Drift | None:
    """Return the trend of a level's values; None if it is not significant, or smaller than `least_change`.

    The slope is the median of those between all pairs of points (Sen, 1968, Estimates of the regression coefficient
    based on Kendall's tau), and its test is that of Mann and Kendall. Long levels are reduced to medians of parts
    first, which have less noise and less autocorrelation.
    """
    if len(values) < _LEAST:
        return None
    size = math.ceil(len(values) / _BINS)
    bins = [statistics.median(values[start : start + size]) for start in range(0, len(values) - size + 1, size)]
    count = len(bins)
    if count < _LEAST:
        return None
    relative = min(bins) > 0
    points = [math.log(value) for value in bins] if relative else bins
    pairs = [
        (later - first, there - here)
        for first, here in enumerate(points)
        for later, there in enumerate(points[first + 1 :], first + 1)
    ]
    score = sum((rise > 0) - (rise < 0) for _, rise in pairs)
    slope = statistics.median(rise / distance for distance, rise in pairs)
    residuals = [value - slope * place for place, value in enumerate(points)]
    deviation = math.sqrt(count * (count - 1) * (2 * count + 5) / 18 * _inflation(residuals))
    whole = slope * (count - 1)
    change = math.expm1(whole) if relative else whole
    least = least_change if relative else least_change * abs(statistics.median(points))
    if abs(score) - 1 < _CONFIDENT * deviation or abs(change) < max(least, 1e-12):
        return None
    return Drift(change, len(values))


def _inflation(residuals: Sequence[float]) -> float:
    """Return the factor by which autocorrelation increases the variance of a mean, for an AR(1) process."""
    middle = statistics.fmean(residuals)
    total = math.fsum((value - middle) ** 2 for value in residuals)
    if total <= 0:
        return 1.0
    correlation = math.fsum((a - middle) * (b - middle) for a, b in pairwise(residuals)) / total
    correlation = min(max(correlation + 1 / math.sqrt(len(residuals)), 0.0), 0.95)
    return (1 + correlation) / (1 - correlation)


@dataclass(frozen=True)
class Level:
    """The points from one step to the next."""

    start: int
    end: int
    """Position after its last point."""
    median: float
    """Median of its good measurements."""
    count: int
    """Number of its good measurements."""


def split_levels(values: Sequence[float], good: Sequence[bool], steps: Sequence[int]) -> list[Level]:
    """Return the levels between steps that have good measurements, in order."""
    levels = []
    for start, end in pairwise([0, *steps, len(values)]):
        kept = [value for value, is_good in zip(values[start:end], good[start:end], strict=True) if is_good]
        if kept:
            levels.append(Level(start, end, statistics.median(kept), len(kept)))
    return levels


def best_level(levels: Sequence[Level], better: Literal["lower", "higher"] | Better) -> Level | None:
    """Return the best level; None without one. Levels, and not points: the best of many points is the luckiest."""
    choose = max if better == "higher" else min
    return choose(levels, key=lambda level: level.median, default=None)
