"""Align two sequences: by their longest common subsequence at bounded cost, or by the probability of each pair."""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Hashable, Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

_NEAREST = 12
"""Number of candidate positions tried per item, the nearest ones. A model of 5,000 layers repeats few kinds, so that
trying all would be millions.
"""
_LONG, _NEAREST_IN_LONG = 1000, 6
"""In sequences of this length, half as many positions are tried."""


def align(first: Sequence[Hashable], second: Sequence[Hashable]) -> list[tuple[int, int]]:
    """Return pairs of positions with equal items, in order in both.

    The number of pairs is maximal if an item has at most 12 equals in the other sequence; otherwise only the 12 nearest
    positions are considered, 6 in long sequences. Hunt and Szymanski, 1977, A fast algorithm for computing longest
    common subsequences.
    """
    shorter = min(len(first), len(second))
    head = next((i for i in range(shorter) if first[i] != second[i]), shorter)
    rest = shorter - head
    tail = next((i for i in range(rest) if first[-1 - i] != second[-1 - i]), rest)
    pairs = [(position, position) for position in range(head)]
    middle = _longest(first[head : len(first) - tail], second[head : len(second) - tail])
    pairs += [(a + head, b + head) for a, b in middle]
    pairs += [(len(first) - back, len(second) - back) for back in range(tail, 0, -1)]
    return pairs


def longest_increasing(values: Sequence[int]) -> list[int]:
    """Return the positions of a longest strictly increasing subsequence."""
    chains = _chains((position, value) for position, value in enumerate(values))
    return [position for position, _ in chains]


def _longest(first: Sequence[Hashable], second: Sequence[Hashable]) -> list[tuple[int, int]]:
    places: dict[Hashable, list[int]] = defaultdict(list)
    for position, item in enumerate(second):
        places[item].append(position)
    slope = len(second) / len(first) if first else 0.0
    nearest = _NEAREST if len(first) < _LONG else _NEAREST_IN_LONG
    return _chains(
        # Later positions first, so that an item is not chained with itself.
        (position, place)
        for position, item in enumerate(first)
        if item in places
        for place in reversed(_near(places[item], int(position * slope), nearest))
    )


def _near(places: list[int], wanted: int, nearest: int) -> list[int]:
    if len(places) <= nearest:
        return places
    start = bisect_left(places, wanted) - nearest // 2
    start = max(0, min(start, len(places) - nearest))
    return places[start : start + nearest]


def _chains(pairs: Iterator[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return the longest chain in which the second numbers increase; the first numbers are non-decreasing.

    It keeps the last pair of the best chain of each length (patience sorting).
    """
    ends: list[int] = []
    links: list[tuple[int, int, int]] = []
    last: list[int] = []
    for position, place in pairs:
        length = bisect_left(ends, place)
        before = last[length - 1] if length else -1
        links.append((position, place, before))
        if length == len(ends):
            ends.append(place)
            last.append(len(links) - 1)
        else:
            ends[length] = place
            last[length] = len(links) - 1
    chain: list[tuple[int, int]] = []
    link = last[-1] if last else -1
    while link >= 0:
        position, place, link = links[link]
        chain.append((position, place))
    return chain[::-1]


def posterior(scores: Floats, alone: tuple[Floats, Floats]) -> Floats:
    """Return P(i and j are aligned), of shape (n, m), by the forward-backward algorithm for pair hidden Markov models.

    `scores` are log odds of each pair, of shape (n, m); `alone` are those of leaving an item of either sequence without
    a partner, of shapes (n,) and (m,). Durbin et al., 1998, Biological Sequence Analysis, section 4.4.
    """
    both = np.stack([scores, scores[::-1, ::-1]])
    gaps, their_gaps = (np.stack([each, each[::-1]]) for each in alone)
    forward, backward = _sum_alignments(both, gaps, their_gaps)
    logs = forward[:-1, :-1] + scores + backward[::-1, ::-1][1:, 1:] - forward[-1, -1]
    result: Floats = np.exp(np.minimum(logs, 0))
    return result


def _sum_alignments(scores: Floats, gaps: Floats, their_gaps: Floats) -> Floats:
    """Return the log weight of all alignments of the first i and j items, of shape (directions, n + 1, m + 1).

    Cells of one antidiagonal depend on the two before only, and are computed together. In the flat array they are `m`
    apart.
    """
    directions, n, m = scores.shape
    weights = np.full((directions, n + 1, m + 1), -1e9)
    weights[:, 0, 0] = 0
    weights[:, 1:, 0], weights[:, 0, 1:] = np.cumsum(gaps, 1), np.cumsum(their_gaps, 1)
    padded = np.zeros_like(weights)
    padded[:, 1:, 1:] = scores
    cells, paired = (each.reshape(directions, -1) for each in (weights, padded))
    for diagonal in range(2, n + m + 1):
        first, last = max(1, diagonal - m), min(n, diagonal - 1)
        here = slice(first * m + diagonal, last * m + diagonal + 1, m)
        above = slice(here.start - m - 1, here.stop - m - 1, m)
        left = slice(here.start - 1, here.stop - 1, m)
        corner = slice(here.start - m - 2, here.stop - m - 2, m)
        ours = cells[:, above] + gaps[:, first - 1 : last]
        theirs = cells[:, left] + their_gaps[:, diagonal - last - 1 : diagonal - first][:, ::-1]
        cells[:, here] = np.logaddexp(cells[:, corner] + paired[:, here], np.logaddexp(ours, theirs))
    return weights
