"""The space of a sweep: its axes, and points in it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from pydantic import JsonValue

Assignment = Mapping[str, JsonValue]
"""Axis -> the value a point has on it: one point of the space. Equal points have equal `json.dumps(sort_keys=True)`."""


@dataclass(frozen=True)
class Choices:
    """An axis of listed values, in the given order."""

    name: str
    values: tuple[JsonValue, ...]


@dataclass(frozen=True)
class Numbers:
    """An axis of numbers between two bounds, both included."""

    name: str
    low: float
    high: float
    step: float | None = None
    """Distance of neighbours; None: any number between the bounds (every integer, for integers)."""
    integer: bool = False
    log: bool = False
    """Whether searches draw and move on a logarithmic scale."""


Axis = Choices | Numbers


@dataclass(frozen=True)
class Space:
    """All combinations of the axes' values, without excluded points."""

    axes: tuple[Axis, ...]
    exclude: tuple[Mapping[str, tuple[JsonValue, ...]], ...] = ()
    """A point is excluded by a mapping if it has one of the listed values on every named axis."""
