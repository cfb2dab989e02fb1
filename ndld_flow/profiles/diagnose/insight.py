"""What a diagnosis says: what a profile is bound by, and what to try next."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

BoundWord = Literal[
    "compute",
    "memory bandwidth",
    "dispatch overhead",
    "host enqueue",
    "transfers",
    "reformatting",
    "one layer",
    "unknown",
]


@dataclass(frozen=True)
class Bound:
    """What takes the most of a profile's latency."""

    word: BoundWord
    evidence: str
    """The numbers it was decided by, in a sentence."""


@dataclass(frozen=True)
class Insight:
    """One thing that a profile shows, and what to do about it."""

    score: float
    """The share that acting on it may save, 0 to 1, of the latency, or of the layers' time where that is longer; 0 for
    what is only good to know."""
    title: str
    evidence: str
    """The numbers behind it, in a sentence or two."""
    next_step: str
    """What to try, in a sentence or two."""
    layers: tuple[int, ...] = ()
    """Positions in `Profile.layers`, the longest first."""
