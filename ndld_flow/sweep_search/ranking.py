"""Rank points, choose those that are measured again, and the main effect of each setting."""

from __future__ import annotations

import json
import math
import operator
import statistics
from collections import Counter, defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from pydantic import JsonValue

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
    return [numbers[index * (len(numbers) - 1) // (count - 1)] for index in range(count)]


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


_MOST_LEVELS = 8
_GROUPS = 5
"""A numeric axis of more than `_MOST_LEVELS` values is divided into this many groups of neighbours."""


@dataclass(frozen=True)
class Observed:
    """A point with its objective."""

    values: Mapping[str, JsonValue]
    """Axis -> value, all axes."""
    objective: float


@dataclass(frozen=True)
class Level:
    """One value of an axis, or neighbouring values if there are many."""

    values: tuple[JsonValue, ...]
    """One value; for a group of numbers, the smallest and the largest."""
    observed: tuple[float, ...]
    """The objective of each of its points, ascending; for a paired effect, without the effects of other axes."""

    @property
    def median(self) -> float:
        return statistics.median(self.observed)


@dataclass(frozen=True)
class Effect:
    """The effect of an axis on the objective."""

    axis: str
    levels: tuple[Level, ...]
    """Levels with points, in the axis's order."""
    paired: bool
    """True if the compared points are equal on the other axes; otherwise the other axes' effects are mixed in."""

    @property
    def size(self) -> float:
        """Range of the levels' medians, relative to the middle of that range: 0.5 is half of it."""
        medians = [level.median for level in self.levels]
        middle = abs(statistics.median(medians))
        reach = max(medians) - min(medians)
        return reach / middle if middle else reach


def main_effects(axes: Mapping[str, Sequence[JsonValue]], points: Sequence[Observed]) -> tuple[Effect, ...]:
    """Return the effect of every axis with at least two values that have points, the largest first.

    `axes`: name -> the values that points have, in the axis's order.

    Where possible an effect is *paired*: a block consists of points that are equal on all other axes and together have
    each value of this one. With y the objective and g the geometric mean of a block, the level of a value is the median
    over the blocks of G * y / g, where G is the geometric mean of all g: differences between blocks cancel out (the
    main effect of a complete block design: Montgomery, Design and Analysis of Experiments, chapters 4 and 5; with
    medians, so that a single outlier has no influence). If a y is not above 0, differences are used instead of ratios:
    the median of A + y - a, with arithmetic means. Blocks are used if they contain at least half of the points of every
    value except the most common one: all of a full grid, and the points that one-at-a-time varies. Otherwise a level is
    the median over all points with the value. That mixes in the effects of other axes, evenly if points were drawn at
    random; a search that concentrates on good points is not even.
    """
    effects = [_effect(name, values, points) for name, values in axes.items()]
    return tuple(sorted((effect for effect in effects if len(effect.levels) > 1), key=lambda effect: -effect.size))


def _effect(axis: str, values: Sequence[JsonValue], points: Sequence[Observed]) -> Effect:
    there = {_text(point.values[axis]) for point in points}
    present = [value for value in values if _text(value) in there]
    if len(present) > _MOST_LEVELS and all(
        isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value) for value in present
    ):
        return Effect(axis, _grouped(axis, points), paired=False)
    by_others: dict[str, list[Observed]] = defaultdict(list)
    for point in points:
        by_others[_text({name: value for name, value in point.values.items() if name != axis})].append(point)
    blocks = [block for block in by_others.values() if len(block) == len(present)]
    paired = _are_enough(axis, blocks, points)
    observed = _paired(axis, blocks) if paired else _plain(axis, points)
    return Effect(axis, tuple(Level((value,), tuple(sorted(observed[_text(value)]))) for value in present), paired)


def _are_enough(axis: str, blocks: Sequence[Sequence[Observed]], points: Sequence[Observed]) -> bool:
    counted = Counter(_text(point.values[axis]) for point in points)
    paired = Counter(_text(point.values[axis]) for block in blocks for point in block)
    if not blocks:
        return False
    ((commonest, _),) = counted.most_common(1)
    return all(2 * paired[value] >= counted[value] for value in counted if value != commonest)


def _paired(axis: str, blocks: Sequence[Sequence[Observed]]) -> dict[str, list[float]]:
    """Return text of a value -> the objective in each block, without the differences between blocks."""
    # Differences of logarithms are ratios.
    ratios = min(point.objective for block in blocks for point in block) > 0
    there, back = (math.log, math.exp) if ratios else (float, float)
    means = [statistics.fmean(there(point.objective) for point in block) for block in blocks]
    middle = statistics.fmean(means)
    observed: dict[str, list[float]] = defaultdict(list)
    for block, mean in zip(blocks, means, strict=True):
        for point in block:
            observed[_text(point.values[axis])].append(back(there(point.objective) + middle - mean))
    return observed


def _plain(axis: str, points: Sequence[Observed]) -> dict[str, list[float]]:
    observed: dict[str, list[float]] = defaultdict(list)
    for point in points:
        observed[_text(point.values[axis])].append(point.objective)
    return observed


def _grouped(axis: str, points: Sequence[Observed]) -> tuple[Level, ...]:
    """Group neighbouring numbers, with about as many points in each group; equal numbers stay together."""
    of_number: dict[float, list[Observed]] = defaultdict(list)
    for point in points:
        of_number[float(_text(point.values[axis]))].append(point)
    groups: dict[int, list[Observed]] = defaultdict(list)
    before = 0
    for _, members in sorted(of_number.items()):
        # The group that contains the middle of these points.
        groups[(2 * before + len(members)) * _GROUPS // (2 * len(points))] += members
        before += len(members)
    return tuple(_group_level(axis, group) for group in groups.values())


def _group_level(axis: str, group: Sequence[Observed]) -> Level:
    ends = {_text(end.values[axis]): end.values[axis] for end in (group[0], group[-1])}
    return Level(tuple(ends.values()), tuple(sorted(point.objective for point in group)))


def _text(value: JsonValue) -> str:
    return json.dumps(value, sort_keys=True)
