"""Collect the best points: both measurements, the comparison with the best, and recipe lines."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from ndld_flow.base.text import short_name
from ndld_flow.records.sweep import SweepPoint, SweepRecord
from ndld_flow.report.comparison.verdicts import IntervalPlot, IntervalScale, ratio_text
from ndld_flow.report.sweep.points import (
    final,
    link,
    objective_words,
    recipe_lines,
    short_names,
    value_words,
)
from ndld_flow.report.value_text import Fact

_SETTINGS = 8
_SHOWN = 5
"""Minimum number of points shown, besides those measured again and the Pareto front."""
_MOST = 10
_TIMES = ("ns", "us", "ms", "s", "1/s")
_APART = 21.0
"""Minimum distance between two labels, in percent of the axis."""
_MARKS = {"best": "improved", "tie": "unchanged", "worse": "regressed", "inconclusive": "inconclusive"}


@dataclass(frozen=True)
class GoalCell:
    """One objective of one point."""

    decides: str
    """Value that ranks the point among those of the same measurement: of the second one if any point has it; empty if
    this one has none."""
    first: str
    """First measurement if there was a second one of any point; otherwise empty."""


@dataclass(frozen=True)
class WinnerView:
    """One of the best points."""

    number: int
    rank: int
    settings: tuple[Fact, ...]
    """The first varied settings."""
    more: int
    """Number of further settings."""
    goals: tuple[GoalCell, ...]
    """One per objective."""
    comparison: str
    """`best`, `tie`, `worse`, `inconclusive`; empty if not measured again."""
    mark: str
    """Verdict that selects the interval's colour."""
    ratio: str
    interval: str
    """`0.99x to 1.02x`; empty without an interval."""
    plot: IntervalPlot | None
    on_front: bool
    tied: bool
    """True if it is within the noise of the best, by the first measurement if there is no second one."""
    lines: str
    """Recipe lines for this point."""
    report: str
    """URL of its own report; empty without one."""


@dataclass(frozen=True)
class WinnersView:
    """The best points on one axis of ratios."""

    rows: tuple[WinnerView, ...]
    ticks: tuple[tuple[float, str], ...]
    measured_again: bool
    once: str
    """The reason why there is no second measurement, or what that means; empty if there is one."""
    objectives: tuple[str, ...]
    """Names of the objectives; ratios are of the first."""
    left_out: int
    """Number of points of the Pareto front, or measured again, that are not shown."""


def collect_winners(record: SweepRecord) -> WinnersView | None:
    """Return the best points; None without ranked points or objectives."""
    ranked = sorted((point for point in record.points if point.rank is not None), key=lambda point: point.rank or 0)
    worth = [point for index, point in enumerate(ranked) if index < _SHOWN or point.again or point.on_front]
    chosen = worth[:_MOST]
    if not chosen or not record.objectives:
        return None
    ratios = [point.again.ratio if point.again else None for point in chosen]
    ends = [*ratios, *(end for point in chosen for end in _ends(point) or ())]
    # Around 1, wider than typical noise.
    scale = IntervalScale.covering([1 / 1.02, 1.02, *(end for end in ends if end is not None and 1e-3 <= end <= 1e3)])
    measured_again = any(point.again for point in chosen)
    return WinnersView(
        rows=tuple(_winner(point, record, scale, measured_again=measured_again) for point in chosen),
        ticks=_fitting_ticks(scale.ticks()),
        measured_again=measured_again,
        once=_once(chosen, record.objectives[0].unit),
        objectives=tuple(short_name(objective.text, 60) for objective in record.objectives),
        left_out=len(worth) - len(chosen),
    )


def _winner(point: SweepPoint, record: SweepRecord, scale: IntervalScale, *, measured_again: bool) -> WinnerView:
    again = point.again
    names = short_names(list(point.values))
    varied = [axis.name for axis in record.axes if len(axis.values) > 1 and axis.name in names]
    shown = varied or list(names)
    ratio = again.ratio if again is not None and again.ratio is not None and math.isfinite(again.ratio) else None
    low, high = _ends(point) or (None, None)
    return WinnerView(
        number=point.number,
        rank=point.rank or 0,
        settings=tuple(Fact(names[name], value_words(point.values[name])) for name in shown[:_SETTINGS]),
        more=max(0, len(shown) - _SETTINGS),
        goals=tuple(
            GoalCell(
                objective_words(decides, objective) if again or not measured_again else "",
                objective_words(first, objective) if measured_again else "",
            )
            for decides, first, objective in zip(final(point), point.objectives, record.objectives, strict=False)
        ),
        comparison=again.verdict if again else "",
        mark=_MARKS[again.verdict] if again else "",
        ratio=ratio_text(ratio) if ratio is not None else "",
        interval=f"{ratio_text(low)} to {ratio_text(high)}" if low is not None and high is not None else "",
        plot=IntervalPlot(*(round(scale.place(end), 2) for end in (low or ratio, ratio, high or ratio, 1.0, 1.0)))
        if ratio is not None and ratio > 0
        else None,
        on_front=point.on_front,
        tied=point.tied,
        lines=recipe_lines(point, record.recipe),
        report=link(point),
    )


def _ends(point: SweepPoint) -> tuple[float, float] | None:
    again = point.again
    if again is None or again.ratio_low is None or again.ratio_high is None:
        return None
    both = (again.ratio_low, again.ratio_high)
    return both if all(math.isfinite(end) and end > 0 for end in both) else None


def _fitting_ticks(ticks: Sequence[tuple[float, str]]) -> tuple[tuple[float, str], ...]:
    """Return the ticks that fit: `same`, and outwards those with enough room."""
    same = next((place for place, text in ticks if text == "same"), 0.0)
    kept: list[tuple[float, str]] = []
    for place, text in sorted(ticks, key=lambda tick: abs(tick[0] - same)):
        if all(abs(place - other) >= _APART for other, _ in kept):
            kept.append((place, text))
    return tuple(sorted(kept))


def _once(points: list[SweepPoint], unit: str) -> str:
    """Return why these points have one measurement only, or what that means; empty if some were measured again."""
    if any(point.again for point in points):
        return ""
    if unit not in _TIMES and not any(point.session for point in points):
        return "The deciding objective is exact, so nothing was measured again."
    return "These points were not measured again: the first is best only by its first measurement."
