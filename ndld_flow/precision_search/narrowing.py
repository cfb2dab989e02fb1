"""Which of many pieces a set needs, by halving.

The search keeps two facts, both tried and neither assumed: with the first `high` pieces the goal is reached, with the
first `low` it is not. When they meet, the piece between them is needed beside those before it. So what it finds
reaches the goal also where keeping more can be worse; where it cannot, no piece is too many. With k of n pieces needed
it takes at most k (log2 n + 1) + 1 attempts. (Junker's QUICKXPLAIN, AAAI 2004, compares such searches.)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ndld_flow.precision_search.attempts import Kept

Reaches = Callable[[Kept, str], bool]
"""Whether keeping a set reaches the goal; the text says what is tried."""
Piece = tuple[str, Kept]
"""What it is called, and what it holds."""


def needed_pieces(pieces: Sequence[Piece], reaches: Reaches) -> list[Piece]:
    """Pieces that together reach the goal, given that all of them do; pieces to be avoided stand last."""
    needed: list[Piece] = []
    rest = list(pieces)
    while rest and not reaches(together(needed), _named(needed)):
        low, high = 0, len(rest)
        while high - low > 1:
            middle = (low + high) // 2
            tried = [*rest[:middle], *needed]
            if reaches(together(tried), _named(tried)):
                high = middle
            else:
                low = middle
        needed.insert(0, rest[high - 1])
        rest = rest[: high - 1]
    return needed


def together(pieces: Sequence[Piece]) -> Kept:
    """Everything that the pieces hold."""
    return frozenset().union(*(held for _, held in pieces))


_NAMED = 3


def _named(pieces: Sequence[Piece]) -> str:
    names = [name for name, _ in pieces]
    rest = len(names) - _NAMED
    return ", ".join(names[:_NAMED]) + (f" and {rest} more" if rest > 0 else "") or "nothing"
