"""Texts that a picture's font can draw."""

from __future__ import annotations

from collections.abc import Container
from functools import cache

from ndld_flow.report.plain_text import short_name

_MISSING = "\N{WHITE SQUARE}"


def picture_text(text: str, limit: int = 60) -> str:
    """One line of at most `limit` characters; a square stands for what the font lacks, such as emoji."""
    drawable = _drawable()
    return "".join(letter if ord(letter) in drawable else _MISSING for letter in short_name(text, limit))


@cache
def _drawable() -> Container[int]:
    """Characters of matplotlib's own font, which is the same everywhere."""
    from matplotlib.font_manager import FontProperties, findfont, get_font

    return frozenset(get_font(findfont(FontProperties(family=[FONT]))).get_charmap())


FONT = "DejaVu Sans"
