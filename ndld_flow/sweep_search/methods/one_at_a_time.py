"""One setting varies at a time, the others keep the recipe's values."""

from __future__ import annotations

from ndld_flow.sweep_search.search import InOrder, SearchMethod, SearchOptions, check_countable
from ndld_flow.sweep_search.space import NumberedSpace, Space


def one_at_a_time(space: Space, options: SearchOptions) -> InOrder:
    """Return a search over the recipe's own point, then every other value of each axis.

    If the recipe has no value for an axis, the first value is used. Raises ValueError as `grid`.
    """
    check_countable(space, options.method)
    numbered = NumberedSpace(space)
    own = numbered.start(options.start)
    varied = (
        (*own[:depth], position, *own[depth + 1 :])
        for depth, axis in enumerate(numbered.axes)
        for position in range(axis.count or 0)
        if position != own[depth]
    )
    places = [place for place in (own, *varied) if not numbered.excludes(place)]
    return InOrder(numbered, places, len(places))


METHOD = SearchMethod(one_at_a_time)
