"""Search for the first bad value in an ordered list where some values cannot be judged."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

Judgement = Literal["good", "bad"] | None
"""None: the value cannot be judged."""
Judge = Callable[[int], Judgement]


@dataclass(frozen=True)
class Change:
    """Two positions with different judgements; those between them have none."""

    before: int
    after: int
    undecided: tuple[int, ...]


def find_first_bad(count: int, judge: Judge) -> dict[int, Judgement]:
    """Judge positions 1 to `count - 2` until the first bad one is known, or only those that cannot be judged are left.

    Position 0 is known to be good, and the last one to be bad. The middle of the remaining ones is judged next; if it
    cannot be, its nearest neighbour is.
    """
    known: dict[int, Judgement] = {0: "good", count - 1: "bad"}
    low, high = 0, count - 1
    while left := [place for place in range(low + 1, high) if place not in known]:
        middle = (low + high) / 2
        place = min(left, key=lambda each: (abs(each - middle), each))
        known[place] = judge(place)
        if known[place] == "good":
            low = place
        elif known[place] == "bad":
            high = place
    return known


def judge_all(count: int, judge: Judge) -> dict[int, Judgement]:
    """Judge all positions between the ends, in order, so that several changes are found."""
    return {0: "good", **{place: judge(place) for place in range(1, count - 1)}, count - 1: "bad"}


def runs_left(count: int) -> int:
    """Return the number of judgements that `find_first_bad` needs at most for values that can all be judged."""
    return max(count - 2, 0).bit_length()


def find_changes(known: Mapping[int, Judgement]) -> Iterator[Change]:
    """Yield each pair of neighbouring judged positions whose judgements differ."""
    judged = sorted(place for place, judgement in known.items() if judgement is not None)
    for before, after in pairwise(judged):
        if known[before] != known[after]:
            yield Change(before, after, tuple(range(before + 1, after)))
