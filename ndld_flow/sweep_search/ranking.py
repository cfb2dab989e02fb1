"""Rank points, and choose those that are measured again before the best is determined."""

from __future__ import annotations

import math
import operator
import statistics
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from ndld_flow.records.sweep import WinnerVerdict
from ndld_flow.sweep_search.search import Direction

_Values = tuple[float, ...]
"""The objectives of a point, one for each goal, with signs so that less is better."""


@dataclass(frozen=True)
class Goal:
    """One objective."""

    direction: Direction
    noise: float = 0.0
    """Relative difference that counts as noise: 0.03 is 3 %; 0 for counted values."""


@dataclass(frozen=True)
class Contender:
    """A point's results for the ranking."""

    number: int
    """Number of the point."""
    passed: bool
    """Only these are ranked."""
    objectives: tuple[float | None, ...]
    """One for each goal, as first measured; without all of them a point is not ranked."""
    again: tuple[float | None, ...] | None = None
    """The objectives as measured again in turns with the other winners."""
    verdict: WinnerVerdict | None = None
    """The verdict of that measurement against the best."""

    def relative_to(self, median: float) -> Contender:
        """Return the point with its only objective divided by a median; unchanged without one."""
        value = self.objectives[0] if self.objectives else None
        return self if value is None or median <= 0 else replace(self, objectives=(value / median,))


@dataclass(frozen=True)
class Place:
    """A point's place in the ranking."""

    rank: int | None = None
    """1 is the best; ranks are unique."""
    tied: bool = False
    """Not the best, but within the noise of the best."""
    on_front: bool = False
    """No other point is better in one objective and not worse in any; only if there are several objectives."""


def rank_points(points: Collection[Contender], goals: Sequence[Goal]) -> dict[int, Place]:
    """Return number -> place. The order of `points` does not matter.

    Winners that were measured again come before all others, ordered by the repeated measurement; the others follow,
    ordered by the first one. With several goals the Pareto front comes first, ordered by the first goal, and the rest
    follows in the same order. Points that are equal in all goals are ordered by number.

    For the front only measurements under the same conditions are compared: repeated ones with each other, the others
    by their first measurement.
    """
    first = {point.number: values for point in points if (values := _ranking_values(point.objectives, point, goals))}
    chosen = [point for point in points if point.number in first and point.again is not None]
    again = {point.number: values for point in chosen if (values := _ranking_values(point.again or (), point, goals))}
    front = _find_front(again) | (_find_front(first) - again.keys()) if len(goals) > 1 else set()
    others = {number: values for number, values in first.items() if number not in again}
    order = [*_in_order(again, front), *_in_order(others, front)]
    ranks = {number: rank for rank, number in enumerate(order, 1)}
    tied = {
        point.number
        for point in points
        if ranks.get(point.number, 1) > 1 and _is_tie(point, order[0], again if point.number in again else first, goals)
    }
    return {
        point.number: Place(ranks.get(point.number), point.number in tied, point.number in front) for point in points
    }


def find_best(places: Mapping[int, Place]) -> int | None:
    """Return the number of the point with rank 1."""
    return next((number for number, place in places.items() if place.rank == 1), None)


def choose_winners(points: Collection[Contender], goals: Sequence[Goal], count: int) -> list[int]:
    """Return the numbers of the points to measure again, best first; none for a `count` of 0.

    These are the best `count`, and all within the noise of the best; with several goals the front, filled up with the
    next best to `count`. At most twice `count`: of a longer front, points spread evenly along it, with both ends.
    """
    places = rank_points(points, goals)
    ranked = [number for _, number in sorted((place.rank, n) for n, place in places.items() if place.rank)]
    if len(goals) > 1:
        front = [number for number in ranked if places[number].on_front]
        others = [number for number in ranked if not places[number].on_front]
        return [*_spread(front, 2 * count), *others[: max(count - len(front), 0)]]
    close = [number for number in ranked[count:] if places[number].tied]
    return [*ranked[:count], *close][: 2 * count]


def _ranking_values(objectives: Sequence[float | None], point: Contender, goals: Sequence[Goal]) -> _Values:
    """Return the values by which a point is ranked; empty if it is not ranked."""
    known = [value for value in objectives if value is not None and not math.isnan(value)]
    if not point.passed or len(known) < len(goals):
        return ()
    return tuple(value if goal.direction == "minimize" else -value for value, goal in zip(known, goals, strict=True))


def _find_front(values: Mapping[int, _Values]) -> set[int]:
    """Return the points that no other dominates: better in one value and worse in none.

    A dominating point comes earlier in the order of values, and one of them is on the front.
    """
    front: dict[int, _Values] = {}
    for number, ours in sorted(values.items(), key=lambda pair: pair[1]):
        dominated = any(theirs != ours and all(map(operator.le, theirs, ours)) for theirs in front.values())
        if not dominated:
            front[number] = ours
    return set(front)


def _in_order(values: Mapping[int, _Values], front: Collection[int]) -> list[int]:
    return sorted(values, key=lambda number: (number not in front, values[number], number))


def _is_tie(point: Contender, best: int, values: Mapping[int, _Values], goals: Sequence[Goal]) -> bool:
    """Return whether a point is within the noise of the best in all goals; for the first goal, by its verdict if it has
    one."""
    close = [
        _is_inside(ours, theirs, goal.noise)
        for ours, theirs, goal in zip(values[point.number], values[best], goals, strict=True)
    ]
    if point.again is not None and point.verdict is not None:
        close[0] = point.verdict == "tie"
    return all(close)


def _is_inside(ours: float, theirs: float, noise: float) -> bool:
    if ours == theirs:
        return True
    if 0 in (ours, theirs) or (ours > 0) != (theirs > 0):
        return False
    smaller, larger = sorted((abs(ours), abs(theirs)))
    return larger / smaller - 1 <= noise


def _spread(numbers: Sequence[int], count: int) -> list[int]:
    """Return at most `count` numbers, evenly spread, with the first and the last."""
    if len(numbers) <= count:
        return list(numbers)
    return [numbers[place * (len(numbers) - 1) // (count - 1)] for place in range(count)]


def remove_session_drift(points: Sequence[Contender], session: Mapping[int, int | None]) -> list[Contender]:
    """Return points whose only objective is divided by the median of their measurement session.

    Valid if points are assigned to sessions at random: then medians of sessions differ mostly by the machine's drift.
    The result only selects points to measure again; its values are not shown.
    """
    by_session: dict[int | None, list[float]] = defaultdict(list)
    for point in points:
        if point.objectives and point.objectives[0] is not None:
            by_session[session[point.number]].append(point.objectives[0])
    medians = {number: statistics.median(values) for number, values in by_session.items()}
    return [point.relative_to(medians.get(session[point.number], 0.0)) for point in points]
