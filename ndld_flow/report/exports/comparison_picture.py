"""Draw a comparison for pull requests: process runs, ratios with intervals, layers.

Slower and faster differ in side and text, not only in colour."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ndld_flow.base.quantities import MINUS, TIMES, change, milliseconds, quantity
from ndld_flow.records.comparison import ComparedMetric, Comparison, MetricVerdict, ProfileComparison
from ndld_flow.records.profile import Profile
from ndld_flow.report.comparison.layers import LayerChange, layer_changes
from ndld_flow.report.comparison.verdicts import with_values_of_verdicts
from ndld_flow.report.exports.picture_file import (
    INK,
    LINE,
    PAPER,
    QUIET,
    SERIES,
    WIDTH_IN,
    new_figure,
    picture_text,
    save_picture,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_PROFILES_SHOWN, _LAYERS_SHOWN, _SUBJECTS_SHOWN = 6, 10, 10


@dataclass(frozen=True)
class Row:
    """One subject of one profile in the upper panels."""

    label: str
    colour: str
    runs: tuple[float, ...]
    value: float | None
    unit: str
    verdict: MetricVerdict | None


@dataclass(frozen=True)
class Group:
    """One profile in the upper panels, a row for each subject."""

    title: str
    rows: tuple[Row, ...]

    @property
    def base(self) -> float | None:
        """The base's value."""
        return self.rows[0].value if self.rows else None


def picture_groups(comparison: Comparison) -> list[Group]:
    """Return the first profiles, up to a readable number."""
    shown = with_values_of_verdicts(comparison)
    return [_group(shown, compared) for compared in shown.profiles[:_PROFILES_SHOWN]]


def _group(comparison: Comparison, compared: ProfileComparison) -> Group:
    metric = next((metric for metric in compared.metrics if metric.metric == compared.decided_by), None)
    verdicts = {verdict.candidate: verdict for verdict in compared.deciding}
    rows = [
        _row(comparison, metric, compared.subjects[index], index, verdicts.get(index))
        for index in range(min(len(compared.subjects), _SUBJECTS_SHOWN))
    ]
    name = f"{compared.name}: {compared.decided_by}" if len(comparison.profiles) > 1 else compared.decided_by
    return Group(name, tuple(rows))


def _row(
    comparison: Comparison, metric: ComparedMetric | None, subject: int, index: int, verdict: MetricVerdict | None
) -> Row:
    runs = metric.runs[index] if metric is not None and index < len(metric.runs) else ()
    value = metric.values[index] if metric is not None else None
    return Row(
        label=comparison.subjects[subject].label,
        colour=SERIES[subject % len(SERIES)],
        runs=tuple(run for run in runs if math.isfinite(run)),
        value=value if value is not None and math.isfinite(value) else None,
        unit=metric.unit if metric is not None else "",
        verdict=verdict,
    )


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
    _runs(figure.add_axes((0.265, bottom, 0.285, top - bottom)), groups)
    _ratios(figure.add_axes((0.615, bottom, 0.2, top - bottom)), groups)
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


def _runs(axes: Axes, groups: Sequence[Group]) -> None:
    """Draw the deciding metric: a dot per process run and a bar at the value."""
    placed = _places(groups)
    _plain(axes, placed)
    # The scales of several profiles may differ: each is drawn relative to its base.
    scales = [group.base or 1.0 if len(groups) > 1 else 1.0 for group in groups for _ in group.rows]
    for (at, row), scale in zip(placed, scales, strict=True):
        runs = [run / scale for run in row.runs]
        axes.plot(runs, [at] * len(runs), "o", ms=5, mfc=row.colour, mec=PAPER, mew=0.6, alpha=0.75, zorder=3)
        if row.value is not None:
            axes.plot([row.value / scale] * 2, [at - 0.3, at + 0.3], "-", color=row.colour, lw=2.2, zorder=4)
    axes.margins(x=0.08)
    low, high = axes.get_xlim()
    axes.set_xlim(min(low, 0.0) if low < 0.25 * high else low, high)
    axes.set_yticks([at for at, _ in placed])
    labels = []
    for _, row in placed:  # the complete value, and the name shortened to the remaining room
        value = f"  {quantity(row.value, row.unit)}" if row.value is not None else ""
        labels.append(picture_text(row.label, 1.6 if value else 2.3, 10) + value)
    axes.set_yticklabels(labels, parse_math=False, color=INK, size=10)
    top = 0.22
    for group in groups:
        _heading(axes, top, picture_text(group.title, 6.0, 10.5))
        top += len(group.rows) + 0.9
    unit = next((row.unit for _, row in placed if row.unit), "")
    unit_text = "relative to the base" if len(groups) > 1 else unit
    axes.set_xlabel(f"each process run, {unit_text}".rstrip(", "), color=QUIET, size=9.5)


def _heading(axes: Axes, at: float, text: str) -> None:
    """Draw a heading at the left edge of the picture, at a vertical position of the panel."""
    from matplotlib.transforms import blended_transform_factory

    figure = axes.get_figure()
    assert figure is not None
    place = blended_transform_factory(figure.transFigure, axes.transData)
    style = {"size": 10.5, "weight": "bold", "color": INK, "va": "center"}
    axes.text(_LEFT, at, text, fontdict=style, transform=place, parse_math=False, clip_on=False)


def _ratios(axes: Axes, groups: Sequence[Group]) -> None:
    """Draw the ratio to the base with its interval, and the band of irrelevant differences."""
    placed = _places(groups)
    _plain(axes, placed)
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
    axes.locator_params(axis="x", nbins=4)
    axes.set_yticks([])
    axes.set_xlabel("ratio to the base, 95 % interval;\ngrey: below the threshold", color=QUIET, size=9.5)


def _label_row(axes: Axes, at: float, text: str, colour: str) -> None:
    axes.text(1.03, at, text, transform=axes.get_yaxis_transform(), va="center_baseline", size=9.5, color=colour)


def _plain(axes: Axes, placed: Sequence[tuple[float, Row]]) -> None:
    """Style the axes: rows from the top, one frame line, small numbers."""
    last = placed[-1][0] if placed else 0.0
    axes.set_ylim(last + 0.65, 0.0)
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.spines["bottom"].set_color(LINE)
    axes.tick_params(axis="y", length=0, pad=6)
    axes.tick_params(axis="x", color=LINE, labelcolor=QUIET, labelsize=9.5)
    axes.locator_params(axis="x", nbins=5)
    axes.grid(axis="x", color=LINE, lw=0.6, alpha=0.7)
    axes.set_axisbelow(True)


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
