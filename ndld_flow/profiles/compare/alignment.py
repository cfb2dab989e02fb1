"""Align two sequences of layers: the probability of each pair in a global alignment that keeps the order."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
_IMPOSSIBLE = -1e9


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
    weights = np.full((directions, n + 1, m + 1), _IMPOSSIBLE)
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
