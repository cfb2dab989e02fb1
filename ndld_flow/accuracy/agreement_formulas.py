"""The formulas of agreement that are made of sums: of whole outputs and of tensors inside a model alike."""

from __future__ import annotations

import math

from ndld_flow.records.accuracy import SAME_DB

SMALLEST = 2.0**-126
"""float32's smallest normal number: what is below it counts as that where something is divided by it."""


def cosine(dot: float, signal: float, energy: float) -> float:
    """sum(r c) / (|r| |c|), of sum(r c), sum(r^2) and sum(c^2); 0 where one of them is all zero."""
    length = math.sqrt(signal) * math.sqrt(energy)
    return max(-1.0, min(1.0, dot / length)) if length else 0.0


def decibels(signal: float, noise: float) -> float:
    """10 log10(signal / noise), both energies; `SAME_DB` without noise, its negative without a signal."""
    if noise == 0.0:
        return SAME_DB
    return 10.0 * (math.log10(signal) - math.log10(noise)) if signal else -SAME_DB
