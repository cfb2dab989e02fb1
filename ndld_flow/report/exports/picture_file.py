"""How every picture that leaves a report is made: on paper of its own, so that it reads the same on any page.

Colours are Okabe and Ito's. Everything is drawn by the Agg or SVG backend directly: no display, no state that other
users of matplotlib would see.
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
"""2,000 pixels, shown 1,000 wide: sharp on every screen."""
PAPER, INK, QUIET, LINE = "#ffffff", "#1a1c1f", "#5c636b", "#d5d7d4"
BLUE, ORANGE, CRIMSON = "#0072b2", "#d55e00", "#a3123a"
SERIES = ("#0072b2", "#d55e00", "#009e73", "#b6588f", "#c79a00", "#3a3f45", "#6cc4f0", "#a3123a")


def save_picture(draw: Callable[[], Figure], path: Path) -> Path:
    """Write a PNG, or an SVG where the name ends so, and return its path. Equal data give equal bytes."""
    import matplotlib as mpl

    with mpl.rc_context():
        mpl.rcdefaults()  # not what a person may have in their matplotlibrc
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
    """Quiet numbers, a quiet grid, no box."""
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.spines["bottom"].set_color(LINE)
    axes.tick_params(color=LINE, labelcolor=QUIET, labelsize=9.5, length=0, pad=6)
    axes.grid(color=LINE, lw=0.6, alpha=0.7)
    axes.set_axisbelow(True)
