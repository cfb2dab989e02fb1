"""Options of `bisect`, for programs and the command line."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class BisectOptions:
    """The values to search, and how."""

    good: str = ""
    """The release with which the recipe passes."""
    bad: str = ""
    """The release with which it fails."""
    values: tuple[str, ...] = ()
    """All values in order, from a good one to a bad one, instead of the releases that pip's index lists."""
    gates: tuple[str, ...] = ()
    """Gates that replace those of the recipe."""
    attempts: int = 3
    """Number of runs with a value whose verdict remains inconclusive; then it is skipped."""
    every: bool = False
    """Try every value, so that several changes are found; by default, only one is assumed."""
