"""The name that was probably meant."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches


def say_nearest(name: str, known: Iterable[str], limit: int = 12) -> str:
    """`did you mean "passes"?`, or what there is when nothing is near; empty when there is nothing."""
    names = list(dict.fromkeys(known))
    lowered = {candidate.lower(): candidate for candidate in names}
    close = get_close_matches(name.lower(), lowered, n=1, cutoff=0.6)
    if close:
        return f'did you mean "{lowered[close[0]]}"?'
    if not names:
        return ""
    shown = ", ".join(sorted(names)[:limit])
    return f"known: {shown}" + (", ..." if len(names) > limit else "")
