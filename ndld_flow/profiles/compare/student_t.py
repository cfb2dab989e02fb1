"""Student's t distribution, for whole degrees of freedom."""

from __future__ import annotations

import math


def two_sided_p(t: float, freedom: int) -> float:
    """Return the chance that |T| is at least |t| with so many (1 or more) degrees of freedom.

    It uses the finite series of Abramowitz and Stegun, Handbook of Mathematical Functions, 26.7.3 and 26.7.4.
    """
    angle = math.atan2(abs(t), math.sqrt(freedom))
    sine, cosine = math.sin(angle), math.cos(angle)
    odd = freedom % 2
    term, total = (cosine if odd else 1.0), 0.0
    for step in range(1 + odd, freedom, 2):
        total += term
        term *= step / (step + 1) * cosine**2
    inside = 2 / math.pi * (angle + sine * total) if odd else sine * total
    return min(1.0, max(0.0, 1 - inside))
