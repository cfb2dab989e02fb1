"""The name that was probably meant."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches

from ndld_flow.base.plain_text import short_name


def say_nearest(name: str, known: Iterable[str], limit: int = 12) -> str:
    """`did you mean "passes"?`, or what there is when nothing is near; empty when there is nothing.

    Names are on one line and short: a model may have any.
    """
    names = list(dict.fromkeys(known))
    lowered = {candidate.lower(): candidate for candidate in names}
    close = get_close_matches(name.lower(), lowered, n=1, cutoff=0.6)
    if close:
        return f'did you mean "{short_name(lowered[close[0]])}"?'
    if not names:
        return ""
    shown = ", ".join(map(short_name, sorted(names)[:limit]))
    return f"known: {shown}" + (", ..." if len(names) > limit else "")
