"""All combinations."""

from __future__ import annotations

from ndld_flow.sweep_search.search import InOrder, SearchMethod, SearchOptions, check_countable
from ndld_flow.sweep_search.space import NumberedSpace, Space


def grid(space: Space, options: SearchOptions) -> InOrder:
    """Return a search over all points, the last axis fastest. Raises ValueError for an axis that is not countable."""
    check_countable(space, options.method)
    numbered = NumberedSpace(space)
    return InOrder(numbered, map(numbered.place, range(numbered.count)), numbered.count)


METHOD = SearchMethod(grid)
