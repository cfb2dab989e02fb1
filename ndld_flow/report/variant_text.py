"""Texts on the variants of `optimize`, for terminals and pages."""

from __future__ import annotations

import math
from collections.abc import Sequence

from ndld_flow.base.declared_metrics import metric_text
from ndld_flow.base.quantities import speedup_interval, times_as_fast
from ndld_flow.base.text import short_name
from ndld_flow.records.optimization import Optimization, Speed, TriedVariant

_USUAL = ("cosine", "slice_rms", "relative_rms", "max_abs")
"""Metrics that describe an accuracy where no condition names any."""
_LONGEST = 40


def split_conclusion(found: Optimization, longest: int) -> tuple[str, tuple[str, ...]]:
    """Return the headline, and the lines below it: cost, what to ship and how many were tried; first the reason if it
    is that nothing pays, or that nothing is decided, which begins with the name of a variant.
    """
    headline, reason = found.headline
    ship, _, cost, *_ = found.conclude()
    reason = reason if found.ending == "not decided" else reason[:1].upper() + reason[1:]
    hint = found.right_by_cosine
    opening = f"Open it: {found.opening}" if found.opening else ""
    below = filter(None, (reason, cost, ship, opening, found.describe_search(), hint[:1].upper() + hint[1:]))
    return short_name(headline, longest), tuple(short_name(line, longest) for line in below)


def is_possible(speed: Speed) -> bool:
    """Return whether a speed is the result of a measurement: a record can be edited."""
    return all(0 < ratio < math.inf for ratio in (speed.ratio, speed.low, speed.high))


def describe_times(speed: Speed) -> tuple[str, str]:
    """Return how many times as fast a model is, `2.00x`, and the interval, `1.92x to 2.08x`; only if it is possible."""
    return times_as_fast(speed.ratio), speedup_interval(speed.low, speed.high)


def describe_accuracy(variant: TriedVariant, wanted: Sequence[str] = ()) -> tuple[str, ...]:
    """Return the wanted metrics, else the usual ones, else the first: `cosine 0.9993` and `slice_rms 2.1 %`."""
    metrics = variant.metrics
    known = [[name for name in names if name in metrics] for names in (wanted, _USUAL, metrics)]
    first = next((names[:most] for names, most in zip(known, (5, 2, 2), strict=True) if names), [])
    texts = ((name, metric_text(name, metrics[name].value, metrics[name].unit)) for name in dict.fromkeys(first))
    return tuple(f"{short_name(name, _LONGEST)} {short_name(text, _LONGEST)}" for name, text in texts)
