"""Random points."""

from __future__ import annotations

from ndld_flow.sweep_search.search import InOrder, SearchMethod, SearchOptions
from ndld_flow.sweep_search.space import NumberedSpace, Space, UntriedPoints


def random_points(space: Space, options: SearchOptions) -> InOrder:
    """Return a search over seeded draws, until a finite space is exhausted."""
    numbered = NumberedSpace(space)
    return InOrder(numbered, iter(UntriedPoints(numbered, options.seed).draw, None), numbered.size)


METHOD = SearchMethod(random_points, counts=False)
