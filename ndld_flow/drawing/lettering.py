"""The width of text in a picture, and the part of it that can be shown."""

from __future__ import annotations

import unicodedata
from functools import lru_cache

from ndld_flow.base.text import shortened

_NARROW = frozenset("iljtfrI.,:;|!'`()[]{}/\\ 1-")
_WIDE = frozenset("mwMW@%&")


@lru_cache(maxsize=65536)
def text_width(text: str, size: float) -> float:
    """Return the approximate width in pixels, based on the wider common sans-serif fonts; the viewer's font is
    unknown."""
    return size * sum(map(_em, text))


def _em(letter: str) -> float:
    if letter in _NARROW:
        return 0.37
    if letter in _WIDE:
        return 0.92
    if letter.isascii():
        return 0.68 if letter.isupper() else 0.59
    return 1.05 if unicodedata.east_asian_width(letter) in "WF" else 0.66


def shown(text: str, limit: int) -> str:
    """Return at most `limit` characters on one line, with the middle left out; unprintable ones become a replacement
    mark.

    Marks that change the writing direction count as unprintable, so that a name cannot reorder the text next to it.
    """
    text = shortened(text, limit)
    return text if text.isprintable() else "".join(one if one.isprintable() else "\ufffd" for one in text)
