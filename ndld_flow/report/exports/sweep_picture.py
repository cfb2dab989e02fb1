"""Draw a sweep for pull requests: its trade-off, or a curve."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ndld_flow.base.quantities import number, quantity
from ndld_flow.records.sweep import SweepRecord
from ndld_flow.report.exports.picture_file import (
    BLUE,
    INK,
    ORANGE,
    PAPER,
    QUIET,
    SERIES,
    new_figure,
    picture_text,
    plain_axes,
    save_picture,
)
from ndld_flow.report.sweep.dimensions import Curve, Dimension, collect_curves, collect_dimensions

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure

_MOST_TICKS = 16
"""Maximum ticks of a curve."""


def sweep_picture(record: SweepRecord, path: Path) -> Path | None:
    """Write the picture as PNG and return its path; None if the sweep has nothing to draw."""
    draw = sweep_drawing(record)
    return None if draw is None else save_picture(draw, path)


def sweep_drawing(record: SweepRecord) -> Callable[[], Figure] | None:
    """Return the function that draws a sweep: a curve of its only objective, or two quantities against each other.

    None if fewer than two points have both.
    """
    dimensions = collect_dimensions(record)
    curves = collect_curves(record, dimensions)
    if curves and len(record.objectives) < 2:
        return lambda: _curve(curves[0], is_first=any(point.again for point in record.points))
    pair = _pair(dimensions)
    return None if pair is None else lambda: _trade_off(record, *pair)


# --- trade-off ---


def _pair(dimensions: Sequence[Dimension]) -> tuple[Dimension, Dimension] | None:
    """Return the x and y dimensions: the first two objectives, or a relevant metric and the only objective."""
    objectives = [dimension for dimension in dimensions if dimension.kind == "objective"]
    metrics = [dimension for dimension in dimensions if dimension.kind == "metric" and dimension.is_default]
    if not objectives or len(objectives + metrics) < 2:
        return None
    across, up = [*objectives, *metrics][1], objectives[0]
    rows = zip(across.finals, up.finals, strict=True)
    return (across, up) if sum(None not in row for row in rows) > 1 else None


def _trade_off(record: SweepRecord, across: Dimension, up: Dimension) -> Figure:
    figure = new_figure(4.4)
    axes = figure.add_axes((0.1, 0.15, 0.87, 0.76))
    plain_axes(axes)
    xs, ys = across.finals, up.finals
    rows = [row for row in range(len(record.points)) if None not in (xs[row], ys[row])]
    kinds = [_kind(record, row) for row in rows]
    for kind, style in _MARKS.items():
        own = [row for row, own_kind in zip(rows, kinds, strict=True) if own_kind == kind]
        axes.plot([xs[row] for row in own], [ys[row] for row in own], ls="none", **style)  # type: ignore[arg-type]
    _number(axes, record, [row for row, kind in zip(rows, kinds, strict=True) if kind in _NUMBERED], across, up)
    _scaled(axes.xaxis, across)
    _scaled(axes.yaxis, up)
    axes.margins(0.06)
    figure.text(0.02, 0.95, _better(up), size=10.5, weight="bold", color=INK, parse_math=False)
    figure.text(0.97, 0.02, _better(across), size=10.5, weight="bold", color=INK, ha="right", parse_math=False)
    figure.text(0.97, 0.95, "◆ best  ◇ tie  ● Pareto front  ○ did not pass", size=9.5, color=QUIET, ha="right")
    return figure


def _kind(record: SweepRecord, row: int) -> str:
    point = record.points[row]
    if point.number == record.best:
        return "best"
    if point.tied:
        return "tie"
    return "refused" if point.outcome != "passed" else "front" if point.on_front else "plain"


_NUMBERED = ("best", "tie", "front")
_MARKS: dict[str, dict[str, object]] = {
    "best": {"marker": "D", "ms": 9, "mfc": ORANGE, "mec": PAPER, "zorder": 6},
    "tie": {"marker": "D", "ms": 7, "mfc": PAPER, "mec": ORANGE, "mew": 1.6, "zorder": 5},
    "front": {"marker": "o", "ms": 7, "mfc": BLUE, "mec": PAPER, "mew": 0.6, "zorder": 4},
    "plain": {"marker": "o", "ms": 5, "mfc": BLUE, "mec": PAPER, "mew": 0.4, "alpha": 0.45, "zorder": 3},
    "refused": {"marker": "o", "ms": 5, "mfc": "none", "mec": QUIET, "zorder": 3},
}


def _number(axes: Axes, record: SweepRecord, rows: Sequence[int], across: Dimension, up: Dimension) -> None:
    """Draw the numbers of points where there is room, the best first."""
    xs, ys = _fractions(across), _fractions(up)
    places = list(zip(across.finals, up.finals, strict=True))
    taken: list[tuple[float, float]] = []
    for row in sorted(rows, key=lambda row: record.points[row].rank or len(record.points) + 1):
        x, y = xs[row] or 0.0, ys[row] or 0.0
        if any(abs(x - spot[0]) < 0.04 and abs(y - spot[1]) < 0.05 for spot in taken):
            continue
        taken.append((x, y))
        number_text = str(record.points[row].number)
        axes.annotate(number_text, places[row], (7, 4), textcoords="offset points", size=9, color=INK)


def _fractions(dimension: Dimension) -> list[float | None]:
    """Return positions from 0 to 1 for all points; None for unknown values."""
    values: Sequence[float | None] = dimension.levels if dimension.numbers is None else dimension.finals
    known = [value for value in values if value is not None]
    log = dimension.log and min(known, default=0) > 0
    turned = [None if value is None else math.log(value) if log else float(value) for value in values]
    ends = [value for value in turned if value is not None]
    if not ends or min(ends) == max(ends):
        return [None if value is None else 0.5 for value in turned]
    low, high = min(ends), max(ends)
    return [None if value is None else (value - low) / (high - low) for value in turned]


def _better(dimension: Dimension) -> str:
    arrow = {"minimize": " (less is better)", "maximize": " (more is better)"}.get(dimension.direction, "")
    return picture_text(dimension.label, 3.5, 10.5) + arrow


def _scaled(axis: Axis, dimension: Dimension) -> None:
    """Format the axis' numbers with their unit."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    if dimension.log and min((value for value in dimension.finals if value is not None), default=0) > 0:
        axis._set_axes_scale("log")  # type: ignore[attr-defined]
        axis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    axis.set_major_formatter(FuncFormatter(lambda value, _: picture_text(quantity(value, dimension.unit), 0.9, 9.5)))
    axis.set_minor_formatter(NullFormatter())


# --- curve ---


def _curve(curve: Curve, *, is_first: bool) -> Figure:
    """Draw a curve, with a note if it `is_first`: of measurements other than those that decided the best."""
    figure = new_figure(4.0 + 0.22 * len(curve.lines))
    height = 4.0 / (4.0 + 0.22 * len(curve.lines))
    axes = figure.add_axes((0.1, 1 - 0.86 * height, 0.87, 0.75 * height))
    plain_axes(axes)
    for index, line in enumerate(curve.lines):
        known = [(x, y) for x, y in zip(line.x, line.y, strict=True) if y is not None]
        label = picture_text(line.label, 8.0, 9.5) or None
        colour = SERIES[index % len(SERIES)]
        axes.plot(*zip(*known, strict=True), "o-", color=colour, ms=5, lw=1.8, label=label)
        if line.saturated is not None and (y := line.y[line.saturated]) is not None:
            x, text = line.x[line.saturated], f"saturated at {number(line.x[line.saturated])}"
            axes.plot([x], [y], "o", ms=14, mfc="none", mec=colour, mew=1.2)
            axes.annotate(text, (x, y), (0, 12), textcoords="offset points", size=9, color=INK, ha="center")
    if curve.log:
        axes.set_xscale("log")
    own = sorted({x for line in curve.lines for x in line.x})
    ticks = own[:: -(-len(own) // _MOST_TICKS)]
    axes.set_xticks(ticks, [number(x) for x in ticks])
    axes.minorticks_off()
    _scaled(axes.yaxis, curve.y)
    axes.set_xlabel(picture_text(curve.axis, 6.0, 10), color=QUIET, size=10, parse_math=False)
    if any(line.label for line in curve.lines):
        figure.legend(loc="lower left", bbox_to_anchor=(0.08, 0.0), frameon=False, fontsize=9.5, labelcolor=INK)
    figure.text(0.02, 1 - 0.05 * height, _better(curve.y), size=10.5, weight="bold", color=INK, parse_math=False)
    if is_first:
        figure.text(0.45, 0.01, "first measurement; a second one decided the best", size=8, color=QUIET, ha="center")
    return figure
