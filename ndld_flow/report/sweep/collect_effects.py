"""Collect the effect of each setting on each objective, as dots and intervals on one scale."""

from __future__ import annotations

import math
from dataclasses import dataclass

from ndld_flow.base.quantities import share
from ndld_flow.base.text import short_name
from ndld_flow.profiles.compare.intervals import median_interval
from ndld_flow.records.sweep import SweepObjective, SweepRecord
from ndld_flow.report.sweep.points import objective_words, value_words
from ndld_flow.sweep_search.ranking import Effect, Level, Observed, main_effects

_OBJECTIVES, _AXES = 3, 12
_DOTS = 12
"""Maximum number of dots; a value with more points only shows its interval."""
_FEW = 6
"""Minimum number of values for a 95 % interval; with fewer, the range is shown."""


@dataclass(frozen=True)
class LevelView:
    """One value of an axis. Positions are in percent of the scale."""

    label: str
    count: int
    median: str
    interval: str
    """`3.1 ms to 3.4 ms`; empty for a single point."""
    is_range: bool
    """True if the interval is the range of all, because there are too few for a 95 % interval."""
    low: float
    point: float
    high: float
    dots: tuple[float, ...]
    is_best: bool
    """True if it is the best, with an interval apart from that of the worst."""


@dataclass(frozen=True)
class EffectView:
    """One axis."""

    axis: str
    size: str
    """`63.9 %`"""
    paired: bool
    levels: tuple[LevelView, ...]


@dataclass(frozen=True)
class EffectsView:
    """All axes for one objective."""

    objective: str
    effects: tuple[EffectView, ...]
    ticks: tuple[tuple[float, str], ...]
    paired: bool
    """True if all effects are paired."""


def collect_effects(record: SweepRecord) -> tuple[EffectsView, ...]:
    """Return one view per objective with points for at least two values of an axis."""
    axes = {axis.name: axis.values for axis in record.axes}
    views = []
    for index, objective in enumerate(record.objectives[:_OBJECTIVES]):
        effects = main_effects(axes, _observed(record, index))[:_AXES]
        if effects:
            observed = [level.observed for effect in effects for level in effect.levels]
            ends = [end for values in observed for end in (values if len(values) <= _DOTS else median_interval(values))]
            scale = _Scale(min(ends), max(ends))
            views.append(
                EffectsView(
                    objective=short_name(objective.text, 100),
                    effects=tuple(_effect(effect, objective, scale) for effect in effects),
                    ticks=scale.ticks(objective),
                    paired=all(effect.paired for effect in effects),
                )
            )
    return tuple(views)


def _observed(record: SweepRecord, index: int) -> list[Observed]:
    """Return the first measurements of all measured points, including refused ones: all under the same conditions."""
    values = ((point, point.objectives[index : index + 1]) for point in record.points)
    return [
        Observed(point.values, value[0])
        for point, value in values
        if value and value[0] is not None and math.isfinite(value[0]) and len(point.values) == len(record.axes)
    ]


def _effect(effect: Effect, objective: SweepObjective, scale: _Scale) -> EffectView:
    ordered = sorted(effect.levels, key=lambda level: level.median)
    first, last = (ordered[0], ordered[-1]) if objective.direction == "minimize" else (ordered[-1], ordered[0])
    best = None  # the best median; none if its interval overlaps that of the worst
    if min(len(first.observed), len(last.observed)) >= _FEW:
        (low, high), (worst_low, worst_high) = median_interval(first.observed), median_interval(last.observed)
        best = first.median if high < worst_low or worst_high < low else None
    return EffectView(
        axis=short_name(effect.axis, 100),
        size=share(effect.size),
        paired=effect.paired,
        levels=tuple(_level(level, objective, scale, best) for level in effect.levels),
    )


def _level(level: Level, objective: SweepObjective, scale: _Scale, best: float | None) -> LevelView:
    low, high = median_interval(level.observed)
    ends = f"{objective_words(low, objective)} to {objective_words(high, objective)}"
    return LevelView(
        label=" to ".join(value_words(value) for value in level.values),
        count=len(level.observed),
        median=objective_words(level.median, objective),
        interval=ends if len(level.observed) > 1 else "",
        is_range=len(level.observed) < _FEW,
        low=scale.place(low),
        point=scale.place(level.median),
        high=scale.place(high),
        dots=tuple(scale.place(value) for value in level.observed) if len(level.observed) <= _DOTS else (),
        is_best=level.median == best,
    )


@dataclass(frozen=True)
class _Scale:
    """A linear axis with a margin."""

    low: float
    high: float

    def place(self, value: float) -> float:
        """Return a position in percent."""
        span = self.high - self.low
        return round(4 + 92 * (value - self.low) / span, 2) if span > 0 else 50.0

    def ticks(self, objective: SweepObjective) -> tuple[tuple[float, str], ...]:
        """Return (position, text) of about three round numbers."""
        span = self.high - self.low
        if span <= 0:
            return ((50.0, objective_words(self.low, objective)),)
        rough = span / 3
        power = 10.0 ** math.floor(math.log10(rough))
        step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= rough * (1 - 1e-9))
        first = math.ceil(self.low / step)
        places = [first + index for index in range(12) if (first + index) * step <= self.high]
        return tuple((self.place(place * step), objective_words(place * step, objective)) for place in places)
