"""Draw a sweep for pull requests: trade-off or curve, parallel coordinates, effects."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ndld_flow.base.quantities import number, quantity
from ndld_flow.records.sweep import SweepRecord
from ndld_flow.report.exports.picture_file import (
    BLUE,
    CRIMSON,
    INK,
    LINE,
    ORANGE,
    PAPER,
    QUIET,
    SERIES,
    new_figure,
    picture_text,
    plain_axes,
    save_picture,
)
from ndld_flow.report.sweep.collect_effects import EffectsView, EffectView, collect_effects
from ndld_flow.report.sweep.dimensions import Curve, Dimension, collect_curves, collect_dimensions
from ndld_flow.report.sweep.points import short_names

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure

_MOST_LINES = 300
"""Maximum lines of parallel coordinates, for a readable picture and a small file."""
_MOST_AXES = 10
_MOST_TICKS = 16
"""Maximum ticks of a curve."""
_MOST_EFFECTS = 6
_ROW_IN = 0.27


def sweep_pictures(record: SweepRecord, folder: Path) -> list[Path]:
    """Write the applicable pictures as SVG into a folder and return their paths, the most important first."""
    return [save_picture(draw, folder / f"{name}.svg") for name, draw in sweep_drawings(record).items()]


def sweep_drawings(record: SweepRecord) -> dict[str, Callable[[], Figure]]:
    """Return name -> function that draws it for the applicable pictures, the most important first."""
    dimensions = collect_dimensions(record)
    curves = collect_curves(record, dimensions)
    effects = collect_effects(record)
    pair = _pair(dimensions)
    drawings: dict[str, Callable[[], Figure]] = {}
    if curves and len(record.objectives) < 2:
        drawings["curve"] = lambda: _curve(curves[0])
    elif pair is not None:
        drawings["trade_off"] = lambda: _trade_off(record, *pair)
    shown = [dimension for dimension in dimensions if dimension.is_default][:_MOST_AXES]
    if len(shown) > 1 and len(record.points) > 1:
        drawings["parallel"] = lambda: _parallel(record, shown)
    if effects:
        drawings["effects"] = lambda: _effects(effects[0])
    return drawings


# --- trade-off ---


def _pair(dimensions: Sequence[Dimension]) -> tuple[Dimension, Dimension] | None:
    """Return the x and y dimensions: the first two objectives, or a relevant metric and the only objective."""
    objectives = [dimension for dimension in dimensions if dimension.kind == "objective"]
    metrics = [dimension for dimension in dimensions if dimension.kind == "metric" and dimension.is_default]
    if not objectives or len(objectives + metrics) < 2:
        return None
    across, up = [*objectives, *metrics][1], objectives[0]
    rows = zip(across.numbers or (), up.numbers or (), strict=True)
    return (across, up) if sum(None not in row for row in rows) > 1 else None


def _trade_off(record: SweepRecord, across: Dimension, up: Dimension) -> Figure:
    figure = new_figure(4.4)
    axes = figure.add_axes((0.1, 0.15, 0.87, 0.76))
    plain_axes(axes)
    rows = [row for row in range(len(record.points)) if None not in (across.at(row), up.at(row))]
    kinds = [_kind(record, row) for row in rows]
    for kind, style in _MARKS.items():
        own = [row for row, own_kind in zip(rows, kinds, strict=True) if own_kind == kind]
        axes.plot([across.at(row) for row in own], [up.at(row) for row in own], ls="none", **style)  # type: ignore[arg-type]
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
    taken: list[tuple[float, float]] = []
    for row in sorted(rows, key=lambda row: record.points[row].rank or len(record.points) + 1):
        x, y = xs[row] or 0.0, ys[row] or 0.0
        if any(abs(x - spot[0]) < 0.04 and abs(y - spot[1]) < 0.05 for spot in taken):
            continue
        taken.append((x, y))
        place = (across.at(row), up.at(row))
        axes.annotate(
            str(record.points[row].number),
            place,
            (7, 4),
            textcoords="offset points",
            size=9,
            color=INK,
        )


def _better(dimension: Dimension) -> str:
    arrow = {"minimize": " (less is better)", "maximize": " (more is better)"}.get(dimension.direction, "")
    return picture_text(dimension.label, 3.5, 10.5) + arrow


def _scaled(axis: Axis, dimension: Dimension) -> None:
    """Format the axis' numbers with their unit."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    if dimension.log and min((value for value in dimension.numbers or () if value is not None), default=0) > 0:
        axis._set_axes_scale("log")  # type: ignore[attr-defined]
        axis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    axis.set_major_formatter(FuncFormatter(lambda value, _: picture_text(quantity(value, dimension.unit), 0.9, 9.5)))
    axis.set_minor_formatter(NullFormatter())


# --- curve ---


def _curve(curve: Curve) -> Figure:
    figure = new_figure(4.0 + 0.22 * len(curve.lines))
    height = 4.0 / (4.0 + 0.22 * len(curve.lines))
    axes = figure.add_axes((0.1, 1 - 0.86 * height, 0.87, 0.75 * height))
    plain_axes(axes)
    for place, line in enumerate(curve.lines):
        known = [(x, y) for x, y in zip(line.x, line.y, strict=True) if y is not None]
        label = picture_text(line.label, 8.0, 9.5) or None
        colour = SERIES[place % len(SERIES)]
        axes.plot(*zip(*known, strict=True), "o-", color=colour, ms=5, lw=1.8, label=label)
        if line.saturated is not None and (y := line.y[line.saturated]) is not None:
            _ring(axes, line.x[line.saturated], y, colour)
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
    return figure


def _ring(axes: Axes, x: float, y: float, colour: str) -> None:
    axes.plot([x], [y], "o", ms=14, mfc="none", mec=colour, mew=1.2)
    axes.annotate(
        f"saturated at {number(x)}", (x, y), (0, 12), textcoords="offset points", size=9, color=INK, ha="center"
    )


# --- parallel coordinates ---


@dataclass(frozen=True)
class _LineStyle:
    """Style of a point's line."""

    colour: str
    alpha: float
    width: float
    dashes: str | tuple[int, tuple[int, int]] = "-"


def _parallel(record: SweepRecord, shown: Sequence[Dimension]) -> Figure:
    from matplotlib.collections import LineCollection
    from matplotlib.colors import to_rgba

    figure = new_figure(4.4)
    axes = figure.add_axes((0.08, 0.06, 0.82, 0.76))
    axes.axis("off")
    axes.set_xlim(0, len(shown) - 1)
    axes.set_ylim(-0.1, 1.02)
    # Unknown values are drawn below the axes.
    heights = [[-0.08 if place is None else place for place in _fractions(dimension)] for dimension in shown]
    # The best points are drawn last, on top.
    order = sorted(range(len(record.points)), key=lambda row: -(record.points[row].rank or len(record.points) + 1))
    order = order[-_MOST_LINES:]
    ranked = sum(point.rank is not None for point in record.points)
    styles = [_line_style(record, row, ranked) for row in order]
    axes.add_collection(
        LineCollection(
            [[(x, column[row]) for x, column in enumerate(heights)] for row in order],
            colors=[to_rgba(style.colour, style.alpha) for style in styles],
            linewidths=[style.width for style in styles],
            linestyles=[style.dashes for style in styles],
        )
    )
    names = short_names([dimension.label for dimension in shown])
    for place, dimension in enumerate(shown):
        _parallel_axis(axes, place, dimension, names[dimension.label], len(shown))
    if len(record.points) > len(order):
        figure.text(
            0.98, 0.01, f"the {len(order)} best of {len(record.points):,} points", size=9, color=QUIET, ha="right"
        )
    return figure


def _line_style(record: SweepRecord, row: int, ranked: int) -> _LineStyle:
    """Return the style of a point's line; better ranks are darker."""
    point = record.points[row]
    if point.number == record.best:
        return _LineStyle(ORANGE, 1, 2.8)
    if point.tied:
        return _LineStyle(ORANGE, 1, 1.5, (0, (5, 3)))
    if point.outcome != "passed":
        return _LineStyle(CRIMSON, 0.6, 1, ":")
    part = 1 - (point.rank or ranked) / ranked if ranked else 0.5
    dense = min(1.0, 120 / ranked) if ranked else 1.0
    return _LineStyle(BLUE, max(0.05, (0.12 + 0.6 * part**2) * dense), 1.2)


def _fractions(dimension: Dimension) -> list[float | None]:
    """Return positions from 0 to 1 for all points; None for unknown values."""
    values: Sequence[float | None] = dimension.levels if dimension.numbers is None else dimension.numbers
    known = [value for value in values if value is not None]
    log = dimension.log and min(known, default=0) > 0
    turned = [None if value is None else math.log(value) if log else float(value) for value in values]
    ends = [value for value in turned if value is not None]
    if not ends or min(ends) == max(ends):
        return [None if value is None else 0.5 for value in turned]
    low, high = min(ends), max(ends)
    return [None if value is None else (value - low) / (high - low) for value in turned]


def _parallel_axis(axes: Axes, place: int, dimension: Dimension, name: str, count: int) -> None:
    axes.axvline(place, ymin=0.09, ymax=0.985, color=INK if dimension.kind == "objective" else QUIET, lw=1, zorder=7)
    room = 8.2 / max(1, count - 1)
    # Bold is a sixth wider than the measured text.
    axes.text(
        place,
        1.11,
        picture_text(name, min(1.5, 0.84 * room), 9),
        size=9,
        weight="bold",
        color=INK,
        ha="center",
        parse_math=False,
    )
    arrow = {"minimize": "less is better", "maximize": "more is better"}.get(dimension.direction, "")
    if dimension.kind == "objective":
        axes.text(place, 1.055, arrow, size=8, color=QUIET, ha="center")
    halo = {"facecolor": PAPER, "edgecolor": "none", "alpha": 0.75, "pad": 0.5}
    for height, text in _axis_ends(dimension):
        shown = picture_text(text, min(1.0, room - 0.2), 8.5)
        axes.text(
            place + 0.03, height, shown, size=8.5, color=QUIET, va="center", zorder=8, bbox=halo, parse_math=False
        )


def _axis_ends(dimension: Dimension) -> list[tuple[float, str]]:
    """Return all labels of a short axis, otherwise those of the two ends."""
    if dimension.numbers is None:
        last = max(1, len(dimension.texts) - 1)
        each = max(1, len(dimension.texts) // 8)
        heights = [place / last if len(dimension.texts) > 1 else 0.5 for place in range(len(dimension.texts))]
        return list(zip(heights, dimension.texts, strict=True))[::each]
    known = sorted({value for value in dimension.numbers if value is not None})
    if len(known) < 2:
        return [(0.5, quantity(value, dimension.unit)) for value in known]
    return [(0.0, quantity(known[0], dimension.unit)), (1.0, quantity(known[-1], dimension.unit))]


# --- effects ---


def _effects(view: EffectsView) -> Figure:
    shown = view.effects[:_MOST_EFFECTS]
    rows = sum(len(effect.levels) for effect in shown) + 1.2 * len(shown)
    total = 0.95 + _ROW_IN * rows
    figure = new_figure(total)
    axes = figure.add_axes((0.3, 0.45 / total, 0.5, (_ROW_IN * rows) / total))
    plain_axes(axes)
    axes.grid(axis="y", visible=False)
    axes.set_xlim(0, 100)
    axes.set_ylim(rows - 0.4, -0.2)
    axes.set_yticks([])
    axes.set_xticks([place for place, _ in view.ticks], [picture_text(text, 0.9, 9.5) for _, text in view.ticks])
    at = 0.0
    for effect in shown:
        at = _effect(axes, effect, at)
    legend = "median with 95 % interval (thin: range of fewer than six points)"
    paired = ", otherwise equal points" if view.paired else ", all points with the value"
    figure.text(
        0.02, 1 - 0.27 / total, picture_text(view.objective, 4, 10.5), size=10.5, weight="bold", parse_math=False
    )
    figure.text(0.98, 1 - 0.27 / total, legend + paired, size=9, color=QUIET, ha="right")
    return figure


def _effect(axes: Axes, effect: EffectView, at: float) -> float:
    """Draw one axis' rows from `at` on, and return where the next begins."""
    across = axes.get_yaxis_transform()
    style = {"va": "center", "transform": across, "clip_on": False, "parse_math": False}
    axes.text(-0.56, at + 0.4, picture_text(effect.axis, 3.6, 10), size=10, weight="bold", color=INK, **style)  # type: ignore[arg-type]
    axes.text(1.38, at + 0.4, effect.size, size=9.5, color=QUIET, ha="right", **style)  # type: ignore[arg-type]
    at += 1.2
    for level in effect.levels:
        colour = ORANGE if level.is_best else BLUE
        axes.plot([0, 100], [at, at], "-", color=LINE, lw=0.8, zorder=1)
        axes.plot(level.dots, [at] * len(level.dots), "o", ms=3.5, mfc=BLUE, mec="none", alpha=0.3, zorder=2)
        axes.plot([level.low, level.high], [at, at], "-", color=colour, lw=1 if level.is_range else 3, zorder=3)
        axes.plot([level.point], [at], "o", ms=8, mfc=colour, mec=PAPER, mew=1, zorder=4)
        label = picture_text(level.label, 2.4, 9.5)
        axes.text(-0.02, at, label, size=9.5, color=INK, ha="right", **style)  # type: ignore[arg-type]
        axes.text(1.2, at, picture_text(level.median, 0.9, 9.5), size=9.5, color=INK, ha="right", **style)  # type: ignore[arg-type]
        axes.text(1.38, at, f"n {level.count}", size=9, color=QUIET, ha="right", **style)  # type: ignore[arg-type]
        at += 1
    return at
