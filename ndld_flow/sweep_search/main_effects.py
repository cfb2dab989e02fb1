"""The main effect of each setting on an objective."""

from __future__ import annotations

import json
import math
import statistics
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pydantic import JsonValue

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
    compared = [_Point(point, {name: _text(value) for name, value in point.values.items()}) for point in points]
    effects = [_effect(name, values, compared) for name, values in axes.items()]
    return tuple(sorted((effect for effect in effects if len(effect.levels) > 1), key=lambda effect: -effect.size))


@dataclass(frozen=True)
class _Point:
    """A point, and its values as texts for comparison."""

    point: Observed
    texts: Mapping[str, str]

    @property
    def objective(self) -> float:
        return self.point.objective


def _effect(axis: str, values: Sequence[JsonValue], points: Sequence[_Point]) -> Effect:
    there = {point.texts[axis] for point in points}
    present = [value for value in values if _text(value) in there]
    if len(present) > _MOST_LEVELS and all(
        isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value) for value in present
    ):
        return Effect(axis, _grouped(axis, points), paired=False)
    by_others: dict[tuple[str, ...], list[_Point]] = defaultdict(list)
    for each in points:
        by_others[tuple(text for name, text in sorted(each.texts.items()) if name != axis)].append(each)
    blocks = [block for block in by_others.values() if len(block) == len(present)]
    paired = _are_enough(axis, blocks, points)
    observed = _paired(axis, blocks) if paired else _plain(axis, points)
    return Effect(axis, tuple(Level((value,), tuple(sorted(observed[_text(value)]))) for value in present), paired)


def _are_enough(axis: str, blocks: Sequence[Sequence[_Point]], points: Sequence[_Point]) -> bool:
    counted = Counter(point.texts[axis] for point in points)
    paired = Counter(point.texts[axis] for block in blocks for point in block)
    if not blocks:
        return False
    ((commonest, _),) = counted.most_common(1)
    return all(2 * paired[value] >= counted[value] for value in counted if value != commonest)


def _paired(axis: str, blocks: Sequence[Sequence[_Point]]) -> dict[str, list[float]]:
    """Return text of a value -> the objective in each block, without the differences between blocks."""
    # Differences of logarithms are ratios.
    ratios = min(point.objective for block in blocks for point in block) > 0
    there, back = (math.log, math.exp) if ratios else (float, float)
    means = [statistics.fmean(there(point.objective) for point in block) for block in blocks]
    middle = statistics.fmean(means)
    observed: dict[str, list[float]] = defaultdict(list)
    for block, mean in zip(blocks, means, strict=True):
        for point in block:
            observed[point.texts[axis]].append(back(there(point.objective) + middle - mean))
    return observed


def _plain(axis: str, points: Sequence[_Point]) -> dict[str, list[float]]:
    observed: dict[str, list[float]] = defaultdict(list)
    for point in points:
        observed[point.texts[axis]].append(point.objective)
    return observed


def _grouped(axis: str, points: Sequence[_Point]) -> tuple[Level, ...]:
    """Group neighbouring numbers, with about as many points in each group; equal numbers stay together."""
    of_number: dict[float, list[_Point]] = defaultdict(list)
    for point in points:
        of_number[float(point.texts[axis])].append(point)
    groups: dict[int, list[_Point]] = defaultdict(list)
    before = 0
    for _, members in sorted(of_number.items()):
        # The group that contains the middle of these points.
        groups[(2 * before + len(members)) * _GROUPS // (2 * len(points))] += members
        before += len(members)
    return tuple(_group_level(axis, group) for group in groups.values())


def _group_level(axis: str, group: Sequence[_Point]) -> Level:
    ends = {end.texts[axis]: end.point.values[axis] for end in (group[0], group[-1])}
    return Level(tuple(ends.values()), tuple(sorted(point.objective for point in group)))


def _text(value: JsonValue) -> str:
    return json.dumps(value, sort_keys=True)
