"""The search that was asked for."""

from __future__ import annotations

from ndld_flow.sweep_search.budget import Budget
from ndld_flow.sweep_search.grid import Grid
from ndld_flow.sweep_search.hill_climb import HillClimb
from ndld_flow.sweep_search.one_at_a_time import OneAtATime
from ndld_flow.sweep_search.random_points import RandomPoints
from ndld_flow.sweep_search.saturation import Ladders, Saturating, without_axis
from ndld_flow.sweep_search.search import Saturation, Search, SearchOptions
from ndld_flow.sweep_search.space import Space


def make_search(space: Space, options: SearchOptions) -> Search:
    """A search of the space, at its beginning.

    Raises ValueError, with a sentence, where method and space, or method and objectives, do not go together.
    Raises BackendError when the method needs a library that is not installed.
    """
    search = (
        _by_method(space, options) if options.saturation is None else _saturating(space, options, options.saturation)
    )
    return search if options.points is None else Budget(search, options.points)


def _saturating(space: Space, options: SearchOptions, saturation: Saturation) -> Search:
    if not options.directions:
        raise ValueError("`saturation` ends a search that gains too little; say by `minimize` or `maximize` of what.")
    direction = options.directions[0]
    if not saturation.along:
        return Saturating(_by_method(space, options), saturation, direction)
    others = _by_method(without_axis(space, saturation.along), options)
    return Ladders(space, others, saturation, direction)


def _by_method(space: Space, options: SearchOptions) -> Search:
    match options.method:
        case "grid":
            return Grid(space)
        case "one_at_a_time":
            return OneAtATime(space, options.start)
        case "random":
            return RandomPoints(space, options.seed)
        case "hill_climb":
            return HillClimb(space, options)
        case "tpe":
            from ndld_flow.sweep_search.tpe import Tpe

            return Tpe(space, options)
