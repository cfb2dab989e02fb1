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
    forward = _forward(scores, *alone)
    backward = _forward(scores[::-1, ::-1], alone[0][::-1], alone[1][::-1])[::-1, ::-1]
    logs = forward[:-1, :-1] + scores + backward[1:, 1:] - forward[-1, -1]
    result: Floats = np.exp(np.minimum(logs, 0))
    return result


def _forward(scores: Floats, gaps: Floats, their_gaps: Floats) -> Floats:
    """Return the log weight of all alignments of the first i and j items, of shape (n + 1, m + 1).

    Cells of one antidiagonal depend on the two before only, and are computed together.
    """
    n, m = scores.shape
    weights = np.full((n + 1, m + 1), _IMPOSSIBLE)
    weights[0, 0] = 0
    weights[1:, 0], weights[0, 1:] = np.cumsum(gaps), np.cumsum(their_gaps)
    for diagonal in range(2, n + m + 1):
        i = np.arange(max(1, diagonal - m), min(n, diagonal - 1) + 1)
        j = diagonal - i
        paired = weights[i - 1, j - 1] + scores[i - 1, j - 1]
        skipped = np.logaddexp(weights[i - 1, j] + gaps[i - 1], weights[i, j - 1] + their_gaps[j - 1])
        weights[i, j] = np.logaddexp(paired, skipped)
    return weights
