"""What a machine's drift from one sitting to the next does to points, taken out as far as that can be."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace

from ndld_flow.sweep_search.ranking import Contender


def steady_sittings(points: Sequence[Contender], sitting: Mapping[int, int | None]) -> list[Contender]:
    """Points whose one objective is taken relative to the median of those it was measured with.

    Sound where points are spread over sittings by chance: then medians of sittings differ by what the machine did
    meanwhile, and little else. It is only for choosing whom to measure again; no value of it is shown.
    """
    by_sitting: dict[int | None, list[float]] = defaultdict(list)
    for point in points:
        if point.objectives and point.objectives[0] is not None:
            by_sitting[sitting[point.number]].append(point.objectives[0])
    medians = {number: statistics.median(values) for number, values in by_sitting.items()}
    return [_steady(point, medians.get(sitting[point.number], 0.0)) for point in points]


def _steady(point: Contender, median: float) -> Contender:
    value = point.objectives[0] if point.objectives else None
    if value is None or median <= 0:
        return point
    return replace(point, objectives=(value / median,))
