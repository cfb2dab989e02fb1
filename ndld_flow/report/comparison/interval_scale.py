"""Place ratios and their intervals on a logarithmic axis, on which 2 and 1/2 are equally far from 1."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from ndld_flow.base.quantities import change
from ndld_flow.records.comparison import MetricVerdict

_LEAST, _MOST = 1e-3, 1e3
_APART = 13.0
"""Minimum distance between two ticks, in percent of the axis."""
_TICKS = (0.001, 0.01, 0.1, 0.2, 0.25, 1 / 3, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.98, 0.99, 1)


@dataclass(frozen=True)
class IntervalPlot:
    """An interval of a ratio against its threshold, in percent of the axis' width."""

    low: float
    point: float
    high: float
    band_low: float
    band_high: float


@dataclass(frozen=True)
class IntervalScale:
    """An axis of ratios that several intervals share."""

    low: float
    high: float

    @classmethod
    def around(cls, verdicts: Iterable[MetricVerdict]) -> IntervalScale:
        """Return a scale that covers the intervals, the threshold bands and a margin."""
        ends = [1.0]
        for verdict in verdicts:
            ends += [1 + 2 * verdict.threshold, 1 / (1 + 2 * verdict.threshold)]
            ends += [one for one in (verdict.low, verdict.high, verdict.ratio) if math.isfinite(one) and one > 0]
        held = [min(max(one, _LEAST), _MOST) for one in ends if math.isfinite(one)]
        margin = (max(held) / min(held)) ** 0.06
        return cls(min(held) / margin, max(held) * margin)

    def place(self, ratio: float) -> float:
        """Return a position from 0 to 100; values outside the axis are at the nearer end."""
        if math.isnan(ratio):
            ratio = 1.0
        held = min(max(ratio, self.low), self.high)
        return 100 * math.log(held / self.low) / math.log(self.high / self.low) if self.high > self.low else 50.0

    def plot(self, verdict: MetricVerdict) -> IntervalPlot | None:
        """Return the plot of a verdict; None without a ratio."""
        if not math.isfinite(verdict.ratio) or verdict.ratio <= 0:
            return None
        ends = (verdict.low, verdict.ratio, verdict.high, 1 / (1 + verdict.threshold), 1 + verdict.threshold)
        return IntervalPlot(*(round(self.place(one), 2) for one in ends))

    def ticks(self) -> tuple[tuple[float, str], ...]:
        """Return (position, text) of the ticks: 1, then outwards those with enough distance."""
        kept = [1.0]
        for tick in sorted({*_TICKS, *(1 / tick for tick in _TICKS)}, key=lambda tick: abs(math.log(tick))):
            inside = self.low < tick < self.high and 3 < self.place(tick) < 96
            if inside and all(abs(self.place(tick) - self.place(other)) >= _APART for other in kept):
                kept.append(tick)
        return tuple((round(self.place(tick), 2), "same" if tick == 1 else change(1, tick)) for tick in sorted(kept))
