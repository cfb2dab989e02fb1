"""Picture files with their own background, so that they look the same on any page, and texts that fit into them.

Colours are Okabe and Ito's. The Agg backend is used directly, without a display or global state of matplotlib.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from ndld_flow.base.text import short_name, shortened

if TYPE_CHECKING:
    from matplotlib.axes import Axes
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


@contextmanager
def own_style() -> Iterator[None]:
    """Ignore the user's matplotlibrc: pictures look the same everywhere."""
    import matplotlib as mpl

    with mpl.rc_context():
        mpl.rcdefaults()
        mpl.rcParams["font.family"] = [FONT]
        mpl.rcParams["font.size"] = 11
        yield


def save_picture(draw: Callable[[], Figure], path: Path) -> Path:
    """Write a PNG and return its path. Equal data give equal bytes."""
    with own_style():
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
