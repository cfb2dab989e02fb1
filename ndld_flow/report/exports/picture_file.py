"""Draw pictures with their own background, so that they look the same on any page.

Colours are Okabe and Ito's. The Agg or SVG backend is used directly, without a display or global state of matplotlib.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from ndld_flow.report.exports.picture_text import FONT

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

WIDTH_IN, DPI = 10.0, 200
"""2,000 pixels for a display width of 1,000, sharp on every screen."""
PAPER, INK, QUIET, LINE = "#ffffff", "#1a1c1f", "#5c636b", "#d5d7d4"
BLUE, ORANGE, CRIMSON = "#0072b2", "#d55e00", "#a3123a"
SERIES = ("#0072b2", "#d55e00", "#009e73", "#b6588f", "#c79a00", "#3a3f45", "#6cc4f0", "#a3123a")


def save_picture(draw: Callable[[], Figure], path: Path) -> Path:
    """Write a PNG or an SVG, by the file's suffix, and return its path. Equal data give equal bytes."""
    import matplotlib as mpl

    with mpl.rc_context():
        mpl.rcdefaults()  # ignore the user's matplotlibrc
        mpl.rcParams["font.family"] = [FONT]
        mpl.rcParams["font.size"] = 11
        mpl.rcParams["svg.hashsalt"] = "ndld-flow"
        nothing = {"Date": None, "Creator": None} if path.suffix.lower() == ".svg" else {"Software": None}
        draw().savefig(path, dpi=DPI, facecolor=PAPER, metadata=nothing)
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
