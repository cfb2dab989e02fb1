"""The largest error that samples may have which nobody has seen, from the errors of those that were measured.

The worst of 24 new samples is worse than the worst of 36 in 40 % of cases, by chance alone: a bound that just holds on
the samples at hand does not hold on others. Errors of numeric formats spread over orders of magnitude, so that their
logarithms are modelled. Their distribution is taken to be Student's t with 4 degrees of freedom, because some inputs
are far worse than all others: of a text detector, 0.0177 was the worst of 24 new images, where normal logarithms
foresee 0.0074. The result is a prediction bound for several future observations by Bonferroni's inequality (Hahn and
Meeker, "Statistical Intervals", section 4.8).
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

FEWEST = 8
"""Number of samples from which their spread is estimated."""
_RISK = 0.05
"""Probability that any of the new samples exceeds the bound."""
_SPREAD = 1e-3
"""Smaller errors than this share of the largest count as this: zeros have no logarithm."""


def largest_expected(errors: Sequence[float]) -> float | None:
    """Return the error that as many new samples exceed in 5 % of cases; at least the largest of those at hand.

    `errors` are those of whole samples, from 0 on. None if there are too few, or one is not finite.
    """
    if len(errors) < FEWEST or not all(map(math.isfinite, errors)):
        return None
    largest = max(errors)
    if largest <= 0:
        return 0.0
    logarithms = [math.log(max(error, _SPREAD * largest)) for error in errors]
    count = len(logarithms)
    scale = statistics.stdev(logarithms) / math.sqrt(2)  # the standard deviation of this distribution is sqrt(2)
    reach = _quantile(1 - _RISK / count) * scale * math.sqrt(1 + 1 / count)
    return max(largest, math.exp(statistics.fmean(logarithms) + reach))


def _quantile(probability: float) -> float:
    """Return a quantile above the median of Student's t with 4 degrees of freedom, in closed form (Shaw, 2006)."""
    root = math.sqrt(4 * probability * (1 - probability))
    return 2 * math.sqrt(math.cos(math.acos(root) / 3) / root - 1)
