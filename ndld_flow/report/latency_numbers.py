"""Numbers that describe latency samples. They describe one sample; they prove nothing about another."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass


def percentile(ordered: Sequence[float], percent: float) -> float:
    """Percentile of values in rising order, linear between neighbours (as NumPy's default)."""
    place = (len(ordered) - 1) * percent / 100
    below = math.floor(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (place - below)


def median(values: Sequence[float]) -> float:
    """Median; 0 of no values."""
    return percentile(sorted(values), 50) if values else 0.0


@dataclass(frozen=True)
class Latency:
    """Latency samples in numbers, all in ms (`cov` is a ratio)."""

    count: int
    mean: float
    median: float
    min: float
    p25: float
    p75: float
    p90: float
    p95: float
    p99: float
    max: float
    std: float
    cov: float
    """Coefficient of variation: std / mean."""
    median_pass: int
    """Position of the pass nearest to the median: the one a person should look at."""


def describe(samples: Sequence[float]) -> Latency:
    """Describe at least one sample."""
    ordered = sorted(samples)
    mean = math.fsum(ordered) / len(ordered)
    squares = math.fsum((value - mean) ** 2 for value in ordered)
    std = math.sqrt(squares / (len(ordered) - 1)) if len(ordered) > 1 else 0.0
    middle = percentile(ordered, 50)
    return Latency(
        count=len(ordered),
        mean=mean,
        median=middle,
        min=ordered[0],
        p25=percentile(ordered, 25),
        p75=percentile(ordered, 75),
        p90=percentile(ordered, 90),
        p95=percentile(ordered, 95),
        p99=percentile(ordered, 99),
        max=ordered[-1],
        std=std,
        cov=std / mean if mean else 0.0,
        median_pass=min(range(len(samples)), key=lambda place: abs(samples[place] - middle)),
    )
