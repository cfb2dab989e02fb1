"""Text in a picture: how wide it is, and what of it can be shown."""

from __future__ import annotations

import unicodedata
from functools import lru_cache

from ndld_flow.base.text import shortened

_NARROW = frozenset("iljtfrI.,:;|!'`()[]{}/\\ 1-")
_WIDE = frozenset("mwMW@%&")


@lru_cache(maxsize=65536)
def text_width(text: str, size: float) -> float:
    """About as wide as the wider of the usual sans-serif fonts set it, in pixels: nobody knows the font of a viewer."""
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
    """At most `limit` letters on one line, the middle left out; what cannot be printed becomes a replacement mark.

    Marks that turn the direction of writing are not printable: a name cannot rearrange what stands beside it.
    """
    text = shortened(text, limit)
    return text if text.isprintable() else "".join(one if one.isprintable() else "\ufffd" for one in text)
