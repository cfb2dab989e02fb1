"""Draw pictures for pull requests: a comparison with its ratios and layers; a sweep with its trade-off.

Pictures have their own background, so that they look the same on any page. Colours are Okabe and Ito's; slower and
faster differ in side and text, not only in colour. The Agg backend is used directly, without a display or global state
of matplotlib.
"""

from __future__ import annotations

import math
import unicodedata
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from ndld_flow.base.quantities import MINUS, TIMES, change, finite, milliseconds, number, quantity
from ndld_flow.base.text import short_name, shortened
from ndld_flow.records.comparison import Comparison, MetricVerdict, ProfileComparison
from ndld_flow.records.profile import Profile
from ndld_flow.records.sweep import SweepRecord
from ndld_flow.report.comparison.verdicts import LayerChange, layer_changes, with_values_of_verdicts
from ndld_flow.report.sweep.dimensions import Curve, Dimension, collect_curves, collect_dimensions

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure
    from matplotlib.ft2font import FT2Font

FONT = "DejaVu Sans"
"""Font included with matplotlib, for equal pictures everywhere."""
_MISSING = "\N{WHITE SQUARE}"
_LONGEST = 120
_DPI = 72


def picture_text(text: str, inches: float, points: float) -> str:
    """Return one line no wider than `inches` at a size of `points`; the middle of a longer one is left out.

    Characters that the font lacks, such as emoji, and those that change the writing direction become squares.
    """
    shown = "".join(letter if _is_drawable(letter) else _MISSING for letter in short_name(text, _LONGEST))
    fitted, limit = shown, len(shown)
    while limit > 4 and _width(fitted, points) > inches:
        # Steps are proportional to the excess, so that a long name needs few.
        limit = min(limit - 1, int(limit * inches / _width(fitted, points)) + 1)
        fitted = shortened(shown, limit)
    return fitted


@cache
def _font() -> FT2Font:
    from matplotlib.font_manager import FontProperties, findfont, get_font

    return get_font(findfont(FontProperties(family=[FONT])))


@cache
def _is_drawable(letter: str) -> bool:
    return unicodedata.category(letter) != "Cf" and bool(_font().get_char_index(ord(letter)))


def _width(text: str, points: float) -> float:
    """Return the width in inches."""
    font = _font()
    font.set_size(points, _DPI)
    font.set_text(text, 0.0)
    return float(font.get_width_height()[0]) / 64 / _DPI


WIDTH_IN, DPI = 10.0, 200
"""2,000 pixels for a display width of 1,000, sharp on every screen."""
PAPER, INK, QUIET, LINE = "#ffffff", "#1a1c1f", "#5c636b", "#d5d7d4"
BLUE, ORANGE = "#0072b2", "#d55e00"
SERIES = (BLUE, ORANGE, "#009e73", "#b6588f", "#c79a00", "#3a3f45", "#6cc4f0", "#a3123a", "#9a9fa6", "#6a4cf0")
"""Colours of subjects and lines, as in the page's light theme."""


def save_picture(draw: Callable[[], Figure], path: Path) -> Path:
    """Write a PNG and return its path. Equal data give equal bytes, whatever the user's matplotlibrc has."""
    import matplotlib as mpl

    with mpl.rc_context():
        mpl.rcdefaults()
        mpl.rcParams["font.family"] = [FONT]
        mpl.rcParams["font.size"] = 11
        draw().savefig(path, dpi=DPI, facecolor=PAPER, metadata={"Software": None})
    return path


def new_figure(height_in: float) -> Figure:
    """Return an empty figure of the usual width."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(WIDTH_IN, height_in))
    FigureCanvasAgg(figure)
    return figure


def plain_axes(axes: Axes) -> None:
    """Style axes: light numbers and grid, no box."""
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.spines["bottom"].set_color(LINE)
    axes.tick_params(color=LINE, labelcolor=QUIET, labelsize=9.5, length=0, pad=6)
    axes.grid(color=LINE, lw=0.6, alpha=0.7)
    axes.set_axisbelow(True)


_PROFILES_SHOWN, _LAYERS_SHOWN, _SUBJECTS_SHOWN = 6, 10, 10


class Row(NamedTuple):
    """One subject of one profile in the upper panel."""

    label: str
    value: float | None
    unit: str
    verdict: MetricVerdict | None


class Group(NamedTuple):
    """One profile in the upper panel, a row for each subject."""

    title: str
    rows: Sequence[Row]


def picture_groups(comparison: Comparison) -> list[Group]:
    """Return the first profiles, up to a readable number."""
    shown = with_values_of_verdicts(comparison)
    return [_group(shown, compared) for compared in shown.profiles[:_PROFILES_SHOWN]]


def _group(comparison: Comparison, compared: ProfileComparison) -> Group:
    metric = next((metric for metric in compared.metrics if metric.metric == compared.decided_by), None)
    values, unit = (metric.values, metric.unit) if metric is not None else ([None] * len(compared.subjects), "")
    verdicts = {verdict.candidate: verdict for verdict in compared.deciding}
    rows = [
        Row(comparison.subjects[subject].label, finite(value), unit, verdicts.get(index))
        for index, (subject, value) in enumerate(zip(compared.subjects, values, strict=True))
    ]
    name = f"{compared.name}: {compared.decided_by}" if len(comparison.profiles) > 1 else compared.decided_by
    return Group(name, rows[:_SUBJECTS_SHOWN])


def largest_changes(comparison: Comparison, profiles: Sequence[Sequence[Profile]]) -> list[LayerChange]:
    """Return the largest changes of the first deciding profile, or of the first with layers, for the last candidate."""
    order = sorted(
        zip(comparison.profiles, profiles, strict=True),
        key=lambda pair: all(judged.verdict != comparison.verdict for judged in pair[0].deciding),
    )
    for compared, measured in order:
        changes = [change for change in layer_changes(compared, measured) if change.delta_ms][:_LAYERS_SHOWN]
        if changes:
            return changes
    return []


_VERDICTS = {"improved": "#00704f", "regressed": "#b04600", "inconclusive": "#8a5a00", "incomparable": "#a3123a"}
_ROW_IN, _BETWEEN_IN = 0.30, 1.15
_LEFT = 0.02


def comparison_picture(comparison: Comparison, profiles: Sequence[Sequence[Profile]], path: Path) -> Path:
    """Write a PNG or an SVG, by the file's suffix, and return its path. Equal data give equal bytes.

    `profiles[i][j]` is the profile that `comparison.profiles[i]` has at position j of its subjects.
    """
    return save_picture(lambda: draw_comparison(comparison, profiles), path)


def draw_comparison(comparison: Comparison, profiles: Sequence[Sequence[Profile]]) -> Figure:
    """Draw the picture's panels, with heights in inches, so that rows have the same height in every picture."""
    groups = picture_groups(comparison)
    changes = largest_changes(comparison, profiles)
    upper = 0.3 + _ROW_IN * sum(len(group.rows) + 0.9 for group in groups)
    lower = 0.3 + _ROW_IN * len(changes) if changes else 0.0
    heights = [0.95, upper, *([_BETWEEN_IN, lower] if changes else [])]
    total = sum(heights) + (0.2 if changes else 0.75)
    figure = new_figure(total)
    _title(figure, comparison, total)
    top = 1 - heights[0] / total
    bottom = top - upper / total
    _ratios(figure.add_axes((0.4, bottom, 0.43, top - bottom)), groups)
    if changes:
        top = bottom - _BETWEEN_IN / total
        _layers(figure.add_axes((0.4, top - lower / total, 0.43, lower / total)), changes)
    return figure


def _title(figure: Figure, comparison: Comparison, total: float) -> None:
    colour = _VERDICTS.get(comparison.verdict, INK)
    loud = {"size": 16, "weight": "bold", "color": colour, "va": "center"}
    quiet = {"size": 9.5, "color": QUIET, "va": "center"}
    first, second = 1 - 0.28 / total, 1 - 0.58 / total
    figure.text(_LEFT, first, comparison.verdict, fontdict=loud)
    figure.text(1 - _LEFT, first, "ndld-flow compare", fontdict=quiet | {"ha": "right"})
    # Without math parsing, here and below: a `$` in a name is literal.
    figure.text(
        _LEFT, second, picture_text(comparison.why, WIDTH_IN * (1 - 2 * _LEFT), 9.5), fontdict=quiet, parse_math=False
    )


def _places(groups: Sequence[Group]) -> list[tuple[float, Row]]:
    """Return the vertical position of each row, with room for its group's title."""
    placed, at = [], 0.0
    for group in groups:
        at += 0.9
        for row in group.rows:
            placed.append((at, row))
            at += 1
    return placed


def _heading(axes: Axes, at: float, text: str) -> None:
    """Draw a heading at the left edge of the picture, at a vertical position of the panel."""
    from matplotlib.transforms import blended_transform_factory

    figure = axes.get_figure()
    assert figure is not None
    place = blended_transform_factory(figure.transFigure, axes.transData)
    style = {"size": 10.5, "weight": "bold", "color": INK, "va": "center"}
    axes.text(_LEFT, at, text, fontdict=style, transform=place, parse_math=False, clip_on=False)


def _ratios(axes: Axes, groups: Sequence[Group]) -> None:
    """Draw values, their ratios to the base with the intervals, and the band of irrelevant differences."""
    placed = _places(groups)
    plain_axes(axes)
    axes.grid(visible=False, axis="y")
    axes.set_ylim(placed[-1][0] + 0.65 if placed else 0.65, 0.0)
    axes.axvline(1, color=QUIET, lw=1, zorder=1)
    for at, row in placed:
        if row.verdict is None or not math.isfinite(row.verdict.ratio):
            _label_row(axes, at, "base" if row.verdict is None else "", QUIET)
            continue
        verdict = row.verdict
        colour = _VERDICTS.get(verdict.verdict, INK)
        axes.fill_betweenx([at - 0.42, at + 0.42], 1 - verdict.threshold, 1 + verdict.threshold, color=LINE, lw=0)
        ends = (verdict.low, verdict.high) if verdict.interval_is_known else (verdict.ratio, verdict.ratio)
        axes.plot(ends, [at, at], "-", color=colour, lw=3, solid_capstyle="butt", zorder=3)
        axes.plot([verdict.ratio], [at], "D", ms=6, color=colour, mec=PAPER, mew=0.8, zorder=4)
        _label_row(axes, at, f"{verdict.ratio:.3f}{TIMES}  {verdict.verdict}", colour)
    axes.margins(x=0.1)
    axes.set_yticks([at for at, _ in placed])
    labels = []
    for _, row in placed:  # the complete value, and the name shortened to the remaining room
        value = f"  {quantity(row.value, row.unit)}" if row.value is not None else ""
        labels.append(picture_text(row.label, 2.7 if value else 3.4, 10) + value)
    axes.set_yticklabels(labels, parse_math=False, color=INK, size=10)
    top = 0.22
    for group in groups:
        _heading(axes, top, picture_text(group.title, 6.0, 10.5))
        top += len(group.rows) + 0.9
    axes.set_xlabel("ratio to the base, 95 % interval; grey: below the threshold", color=QUIET, size=9.5)


def _label_row(axes: Axes, at: float, text: str, colour: str) -> None:
    axes.text(1.03, at, text, transform=axes.get_yaxis_transform(), va="center_baseline", size=9.5, color=colour)


def _layers(axes: Axes, changes: Sequence[LayerChange]) -> None:
    """Draw the largest changes: faster to the left, slower to the right."""
    deltas = [shown_change.delta_ms for shown_change in changes]
    places = range(len(changes))
    colours = [_VERDICTS["improved"] if delta < 0 else _VERDICTS["regressed"] for delta in deltas]
    axes.barh(places, deltas, height=0.62, color=colours, zorder=2)
    axes.axvline(0, color=QUIET, lw=1, zorder=3)
    axes.set_ylim(len(changes) - 0.4, -0.7)
    axes.spines[["top", "right", "left", "bottom"]].set_visible(False)
    axes.tick_params(axis="y", length=0)
    axes.set_xticks([])
    axes.set_yticks(list(places))
    axes.set_yticklabels(
        [picture_text(shown_change.name, 3.65, 9.5) for shown_change in changes], parse_math=False, color=INK, size=9.5
    )
    reach = max(map(abs, deltas))
    axes.set_xlim(min(0.0, *deltas) - 0.02 * reach, max(0.0, *deltas) + 0.02 * reach)
    for at, shown_change in zip(places, changes, strict=True):
        delta = f"{'+' if shown_change.delta_ms > 0 else MINUS}{milliseconds(abs(shown_change.delta_ms))}"
        if not shown_change.base or not shown_change.candidate:
            note = "gone" if shown_change.base else "new"
        else:
            note = f"({change(shown_change.base_ms, shown_change.candidate_ms)})"
        _label_row(axes, at, f"{delta} {note}", colours[at])
    _heading(axes, -1.15, "Largest changes of layers: faster to the left, slower to the right")


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
