"""Draw the divergence along the depth of a network, for pull requests."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ndld_flow.report.collect_divergence import NOT_FINITE, DepthView, error_of
from ndld_flow.report.exports.picture_file import (
    BLUE,
    CRIMSON,
    INK,
    ORANGE,
    PAPER,
    QUIET,
    SERIES,
    new_figure,
    plain_axes,
    save_picture,
)
from ndld_flow.report.exports.picture_text import picture_text

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_CURVES = (ORANGE, SERIES[2])
_MOST_KEPT = 200
"""Maximum number of lines for kept layers."""


def divergence_picture(view: DepthView, path: Path) -> Path:
    """Write the curves as PNG or SVG, by the file's name, and return its path."""
    return save_picture(lambda: _draw(view), path)


def _draw(view: DepthView) -> Figure:
    figure = new_figure(3.9)
    axes = figure.add_axes((0.085, 0.14, 0.895, 0.72))
    plain_axes(axes)
    axes.set_yscale("log")
    axes.minorticks_off()
    positions = [one.layer.position for one in view.layers]
    low, high = _ends(view)
    axes.set_ylim(low, high)
    axes.set_xlim(min(positions) - 0.5, max(positions) + 0.5)
    for place, curve in enumerate(view.curves):
        errors = [error_of(one.of_curves[place], view.metric) for one in view.layers]
        _curve(axes, positions, errors, (low, high), _CURVES[place % len(_CURVES)], picture_text(curve, 2.5, 9.5))
    _marks(axes, view, positions)
    if view.bound is not None:
        axes.axhline(view.bound.error, color=INK, lw=1, ls=(0, (5, 4)), alpha=0.7)
        axes.annotate(view.bound.words, (1, view.bound.error), (0, 3), xycoords=("axes fraction", "data"),
                      textcoords="offset points", ha="right", size=9, color=INK, parse_math=False)  # fmt: skip
    axes.legend(loc="lower right", bbox_to_anchor=(1, 1.0), ncols=4, frameon=False, fontsize=9.5)
    figure.text(0.01, 0.94, "relative error of each layer", size=10.5, weight="bold", color=INK)
    figure.text(0.97, 0.02, "layers, in execution order", size=9.5, color=QUIET, ha="right")
    return figure


def _ends(view: DepthView) -> tuple[float, float]:
    """Return decades that cover all positive errors and the bound."""
    errors = [error_of(layer, view.metric) for one in view.layers for layer in one.of_curves]
    known = [error for error in errors if error is not None and error > 0]
    known += [view.bound.error] if view.bound else []
    if not known:
        return 1e-6, 1.0
    return 10.0 ** math.floor(math.log10(min(known)) - 0.05), 10.0 ** math.ceil(math.log10(max(known)) + 0.15)


def _curve(
    axes: Axes,
    positions: Sequence[int],
    errors: Sequence[float | None],
    ends: tuple[float, float],
    color: str,
    label: str,
) -> None:
    """Draw a curve; zero errors are at the bottom, NaN and infinity at the top edge."""
    drawn = [math.nan if one is None or one == NOT_FINITE else max(one, ends[0]) for one in errors]
    axes.plot(positions, drawn, color=color, lw=1.2, label=label)
    broken = [position for position, one in zip(positions, errors, strict=True) if one == NOT_FINITE]
    if broken:
        top = [ends[1]] * len(broken)
        axes.plot(broken, top, ls="none", marker="x", ms=4, color=color, clip_on=False, label="NaN or infinite")


def _marks(axes: Axes, view: DepthView, positions: Sequence[int]) -> None:
    bottom = axes.get_ylim()[0]
    for place in view.kept[:_MOST_KEPT]:
        axes.axvline(positions[place], color=BLUE, lw=0.8, alpha=0.3)
    if view.kept:
        kept = [positions[place] for place in view.kept[:_MOST_KEPT]]
        axes.plot(kept, [bottom] * len(kept), ls="none", marker="D", ms=5, color=BLUE, mec=PAPER, clip_on=False,
                  label="kept")  # fmt: skip
    if view.first is None:
        return
    layer = view.layers[view.first].layer
    x = positions[view.first]
    axes.axvline(x, color=CRIMSON, lw=1.2)
    is_left = view.first < 0.6 * len(positions)
    said = f"starts here: {picture_text(f'{layer.op_type} {layer.node or layer.tensor}', 3.5, 9.5)}"
    axes.annotate(said, (x, 0.94), (6 if is_left else -6, 0), xycoords=("data", "axes fraction"), size=9.5,
                  textcoords="offset points", ha="left" if is_left else "right", color=INK, weight="bold",
                  parse_math=False)  # fmt: skip
