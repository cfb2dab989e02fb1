"""How many points a space has."""

from __future__ import annotations

from ndld_flow.sweep_search.numbered_space import NumberedSpace
from ndld_flow.sweep_search.space import Space


def count_points(space: Space) -> int | None:
    """Points that are not excluded; None when an axis takes any number between two bounds.

    Raises ValueError, with a sentence, for bounds that make no axis and exclusions that name none.
    """
    return NumberedSpace(space).size


def excluded_count(space: Space) -> int | None:
    """Points that are left out; None when an axis takes any number between two bounds. Raises as `count_points`."""
    numbered = NumberedSpace(space)
    return numbered.with_excluded - numbered.count if numbered.finite else None
