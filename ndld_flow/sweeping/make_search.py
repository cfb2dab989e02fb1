"""The search that was asked for."""

from __future__ import annotations

from ndld_flow.sweeping.budget import Budget
from ndld_flow.sweeping.grid import Grid
from ndld_flow.sweeping.search import Search, SearchOptions
from ndld_flow.sweeping.space import Space


def make_search(space: Space, options: SearchOptions) -> Search:
    """A search of the space, at its beginning.

    Raises ValueError, with a sentence, where method and space, or method and objectives, do not go together.
    Raises BackendError when the method needs a library that is not installed.
    """
    if options.method != "grid":
        raise NotImplementedError(options.method)
    search = Grid(space)
    return search if options.points is None else Budget(search, options.points)
