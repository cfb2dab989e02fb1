"""Results of a diagnosis: the bottleneck, and findings with what to try next."""

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
    """The bottleneck of a profile."""

    word: BoundWord
    evidence: str
    """The numbers behind it, in a sentence."""


@dataclass(frozen=True)
class Insight:
    """One finding, with a suggestion."""

    score: float
    """Estimated saving as a share, 0 to 1, of the latency, or of the layers' time if that is longer; 0 for a note."""
    title: str
    evidence: str
    """The numbers behind it, in a sentence or two."""
    next_step: str
    """What to try, in a sentence or two."""
    layers: tuple[int, ...] = ()
    """Positions in `Profile.layers`, the longest first."""
