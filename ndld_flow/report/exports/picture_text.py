"""Fit texts into pictures: only drawable characters, within a width."""

from __future__ import annotations

import unicodedata
from functools import cache
from typing import TYPE_CHECKING

from ndld_flow.base.text import short_name, shortened

if TYPE_CHECKING:
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
