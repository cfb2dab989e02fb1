"""Which points are done together, and so measured in one sitting."""

from __future__ import annotations

import random
from collections.abc import Iterator

from ndld_flow.recipe.points import Sweep
from ndld_flow.sweep_search.search import Search
from ndld_flow.sweep_search.space import Assignment

UNMEASURED_AT_ONCE = 64
"""Points done together where nothing is measured: enough to keep every worker busy."""
MIXED_SITTINGS = 8
"""Sittings over which the points of a grid are mixed: a wider grid leaves those before it as they are."""

Batch = list[tuple[int, Assignment]]
"""Points with their numbers, in the order of numbers."""


def ask_batches(sweep: Sweep, search: Search) -> Iterator[Batch]:
    """Points that are done together, one batch after the other.

    A search that learns is asked for one batch at a time, and told in between. Of the others the points of several
    sittings are mixed, by the seed: neighbours in a grid differ in its last axes only, so that else the first ones
    would change with the time of day, and the machine's drift would look like an effect of theirs.
    """
    size = batch_size(sweep)
    number = 0
    mixes = measures(sweep) and not depends_on_results(sweep)
    while asked := search.ask(size * MIXED_SITTINGS if mixes else size):
        points = list(enumerate(asked, number + 1))
        number += len(points)
        if mixes and len(points) > size:
            random.Random(f"{sweep.section.seed} {number}").shuffle(points)  # noqa: S311 - no secret
        for begin in range(0, len(points), size):
            yield sorted(points[begin : begin + size], key=lambda one: one[0])


def batch_size(sweep: Sweep) -> int:
    """How many points are done together."""
    return sweep.section.together if measures(sweep) or depends_on_results(sweep) else UNMEASURED_AT_ONCE


def measures(sweep: Sweep) -> bool:
    """Whether points have steps that take turns."""
    return any(step.type.cls.takes_turns for step in sweep.base.steps)


def depends_on_results(sweep: Sweep) -> bool:
    """Whether which points come next depends on what the first ones came to."""
    return sweep.section.method in ("hill_climb", "tpe") or sweep.section.saturation is not None
