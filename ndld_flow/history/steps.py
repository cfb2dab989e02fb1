"""Find the steps of a series, and its levels and trend between them.

A series is read from its first point to its last, as if every point had just been measured. At each point, the last
`WINDOW` points of the current level are split in two where their means differ most, and the difference is tested. A
step that was found is therefore never withdrawn when later points come; only its position becomes more precise.

The statistic is the maximum of the standardized cumulative sum (Page, 1954, Continuous inspection schemes; Csörgő and
Horváth, 1997, Limit theorems in change-point analysis), and the test a permutation test, as that of E-divisive means
(Matteson and James, 2014, A nonparametric approach for multiple change point analysis of multivariate data): it holds
for any distribution of the noise, such as one with two modes. What differs from it is what measurements of performance
need (Daly et al., 2020, The use of change point detection to identify software performance regressions in a continuous
integration system; Fleming et al., 2023, Hunter: using change point detection to hunt for performance regressions):

- only a window is tested, so that recent steps are found after few points, in time proportional to the points;
- values are limited to `_LIMIT` deviations from the median, so that an outlier is not a step and hides none;
- the statistic is divided by the inflation that autocorrelated noise causes, sqrt((1 + r) / (1 - r)) for an AR(1)
  process (Bartlett, 1946);
- where a broken line fits the points better than a step, the values drift, and there is no step;
- a difference below the noise that A/A measurements showed on the machine is not a step, however many points show it.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from typing import TYPE_CHECKING, Literal, TypeAlias

from ndld_flow.base.declared_metrics import Better

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Values: TypeAlias = NDArray[np.float64]


WINDOW = 100
"""Maximum number of points that a test reads."""
LEAST_BEFORE = 8
LEAST_AFTER = 4
"""Minimum numbers of points before and after a step."""
CONFIDENCE = 0.9995
"""Minimum confidence of the test at one point. A series has a test for each point, most on nearly the same points."""
LEAST_CHANGE = 0.01
"""Smallest relative change that is a step if no noise was learned for the machine."""
_LIMIT = 4.0
_SUSPICIOUS = 3.6
"""Statistic below which no test is needed: independent normal noise exceeds it at 1 point of 100."""
_RECENT = 9
"""Number of values whose median is the usual value for the next: bursts of half as many are outliers."""
_NEAR = 25
"""Number of points on each side that show a jump, where the whole window may show a slow change."""
_SETTLED = 10
_MARGIN = 6.0
"""Difference of the criterion that is strong evidence (Kass and Raftery, 1995, Bayes factors)."""
_AGREEING = 0.8
"""Part of the points after a step that are nearer to the new level: a burst of few outliers ends before."""
_BLOCK = 512
"""Number of windows that are screened at once."""
_PERMUTATIONS = 2000
_FIRST = 200
_LARGEST_CORRELATION = 0.95
_CERTAIN = 1.3
_CERTAIN_OF_FEW = 0.5
_FEW = 60
"""Number of standard errors by which a correlation must exceed 0; less for few points, which show it poorly."""
_PART = 0.8
"""Part of the differences that defines the deviation: a rarer mode of the values is outliers, another one noise."""
_NORMAL = 1.2816
"""That quantile of |x|'s differences, over their standard deviation, of normal values."""


@dataclass(frozen=True)
class Step:
    """A change of level between two points of a series."""

    place: int
    """Position of the first point at the new level."""
    found_at: int
    """Position of the point with which it was found."""
    earliest: int
    """First of the places where the step may be, at about 95 % confidence."""
    latest: int
    before: float
    """Median of the level before."""
    after: float
    low: float
    """With `high` the 95 % interval of after / before; of after - before if values may be zero or negative."""
    high: float

    @property
    def ratio(self) -> float | None:
        """After over before; None if that has no meaning."""
        return self.after / self.before if self.before > 0 and self.after > 0 else None


@dataclass(frozen=True)
class StepRules:
    """Criteria of steps."""

    least_change: float = LEAST_CHANGE
    """Smallest relative change that is a step: 0.01 is 1 %."""
    exact: bool = False
    """The values have no noise: every change is a step."""


def find_steps(values: Sequence[float], rules: StepRules | None = None) -> list[Step]:
    """Return the steps of a series, in order."""
    rules = rules or StepRules()
    if rules.exact:
        relative = all(value > 0 for value in values)
        steps = []
        for index, (before, after) in enumerate(pairwise(values), 1):
            if not math.isclose(before, after, rel_tol=1e-9):
                change = after / before if relative else after - before
                steps.append(Step(index, index, index, index, before, after, change, change))
        return steps
    if len(values) < LEAST_BEFORE + LEAST_AFTER:
        return []
    import numpy as np

    raw = np.asarray(values, dtype=float)
    logs = bool(np.all(raw > 0))
    series = np.log(raw) if logs else raw
    limited = _limited(series)
    found, last = list[tuple[int, int]](), 0
    while (last := _next_suspicious(limited, found[-1][0] if found else 0, last)) < len(series):
        first = max(found[-1][0] if found else 0, last - WINDOW + 1)
        window = slice(first, last + 1)
        index = _test(series[window], limited[window], rules.least_change, logs)
        if index:
            found.append((first + index, last))
        last += 1
    return _describe(raw, series, _limited(series, _RECENT // 2), found, logs)


def _next_suspicious(limited: Values, level: int, start: int) -> int:
    """Return the first position from `start` on at which a test of the level since `level` is needed."""
    import numpy as np

    total = len(limited)
    last = max(start, level + LEAST_BEFORE + LEAST_AFTER - 1)
    while last < min(level + WINDOW - 1, total):
        window = limited[level : last + 1]
        if _suspicious(window[np.newaxis])[0]:
            return last
        last += 1
    while last < total:
        block = limited[last - WINDOW + 1 : last + _BLOCK]
        flags = np.flatnonzero(_suspicious(np.lib.stride_tricks.sliding_window_view(block, WINDOW)))
        if len(flags):
            return last + int(flags[0])
        last += len(block) - WINDOW + 1
    return total


def _suspicious(windows: Values) -> NDArray[np.bool_]:
    """Return which windows, one in each row, may have a step."""
    import numpy as np

    count = windows.shape[1]
    centred = windows - windows.mean(axis=1, keepdims=True)
    sums = np.cumsum(centred, axis=1)[:, LEAST_BEFORE - 1 : count - LEAST_AFTER]
    highest = np.square(sums * _weights(count)).max(axis=1)
    rest = np.square(centred).sum(axis=1) - highest
    flags: NDArray[np.bool_] = highest * (count - 2) > _SUSPICIOUS**2 * np.maximum(rest, 0.0)
    return flags


def _test(window: Values, limited: Values, least: float, logs: bool) -> int:
    """Return the position of a step inside a window; 0 if none is significant."""
    import numpy as np

    count = len(window)
    sums = np.cumsum(limited - limited.mean())[LEAST_BEFORE - 1 : count - LEAST_AFTER]
    scaled = np.abs(sums) * _weights(count)
    best = int(scaled.argmax())
    index = best + LEAST_BEFORE
    residuals = np.concatenate((limited[:index] - limited[:index].mean(), limited[index:] - limited[index:].mean()))
    deviation = math.sqrt(float(residuals @ residuals) / (count - 2))
    inflation = math.sqrt((1 + (r := _correlation(residuals))) / (1 - r))
    near = max(index - _NEAR, 0)
    before, after = float(np.median(window[near:index])), float(np.median(window[index : index + _NEAR]))
    if abs(after - before) < (math.log1p(least) if logs else least * abs(before)):
        return 0
    beyond = (window[index : index + _NEAR] - (before + after) / 2) * (after - before) > 0
    if float(beyond.mean()) < _AGREEING:
        return 0
    local = abs(float(limited[near:index].mean() - limited[index : index + _NEAR].mean())) / math.sqrt(
        1 / (index - near) + 1 / min(count - index, _NEAR)
    )
    if (
        local <= _SUSPICIOUS * deviation * inflation
        or _drifts(limited, index)
        or _drifts(limited[near : index + _NEAR], index - near)
    ):
        return 0
    observed = float(scaled[best]) / inflation / max(deviation, 1e-300)
    return index if _is_rare(observed, residuals) else 0


def _limited(series: Values, lag: int = 0) -> Values:
    """Return the values, at most `_LIMIT` deviations from the median of the last `_RECENT` values.

    With `lag`, of as many later values too, which place a large step more exactly. The deviation is that of the
    differences between successive values, which steps hardly change.
    """
    import numpy as np

    def rolling(values: Values, size: int, part: float) -> Values:
        size = min(size, len(values))
        begin = [np.quantile(values[: index + 1], part) for index in range(size - 1)]
        windows = np.lib.stride_tricks.sliding_window_view(values, size)
        return np.concatenate((begin, np.quantile(windows, part, axis=1)))

    middle = rolling(series, _RECENT, 0.5)
    middle = middle[np.minimum(np.arange(len(series)) + lag, len(series) - 1)]
    differences = np.abs(np.diff(series))
    deviations = rolling(differences, WINDOW, _PART)[np.r_[0, : len(differences)]] / (_NORMAL * math.sqrt(2))
    room = np.where(deviations > 0, _LIMIT * deviations, np.inf)
    room[:LEAST_BEFORE] = np.inf
    limited: Values = np.clip(series, middle - room, middle + room)
    return limited


@lru_cache(maxsize=256)
def _weights(count: int) -> Values:
    """Return 1 / standard deviation of each cumulative sum, for values with a standard deviation of 1."""
    import numpy as np

    sizes = np.arange(LEAST_BEFORE, count - LEAST_AFTER + 1)
    weights: Values = np.sqrt(count / (sizes * (count - sizes)))
    return weights


def _correlation(residuals: Values) -> float:
    """Return the correlation of successive values, corrected for the bias of short series (Kendall, 1954)."""
    total = float(residuals @ residuals)
    if total <= 0:
        return 0.0
    count = len(residuals)
    correlation = (count * float(residuals[1:] @ residuals[:-1]) / total + 1) / max(count - 3, 1)
    error, certain = 1 / math.sqrt(count), _CERTAIN if count >= _FEW else _CERTAIN_OF_FEW
    # The upper end of its interval if it is certain, so that the noise of the estimate causes no steps.
    return min(correlation + error, _LARGEST_CORRELATION) if correlation > certain * error else 0.0


def _is_rare(observed: float, residuals: Values) -> bool:
    """Return whether the residuals in random order reach the statistic with a probability of 1 - CONFIDENCE at most."""
    import numpy as np

    generator = np.random.default_rng(7)
    count, allowed = len(residuals), int((1 - CONFIDENCE) * _PERMUTATIONS)
    exceeded = 0
    for tries in (_FIRST, _PERMUTATIONS - _FIRST):
        shuffled = generator.permuted(np.broadcast_to(residuals, (tries, count)), axis=1)
        sums = np.cumsum(shuffled, axis=1)[:, LEAST_BEFORE - 1 : count - LEAST_AFTER]
        squares = (sums * _weights(count)) ** 2
        highest = squares.max(axis=1)
        total = float(residuals @ residuals)
        rest = np.maximum(total - highest, 1e-6 * total) / (count - 2)  # rounding must not divide by nearly nothing
        exceeded += int(np.count_nonzero(highest / rest >= observed**2))
        if exceeded > allowed:
            return False
    return True


def _drifts(window: Values, index: int) -> bool:
    """Return whether two joined lines fit the points better than two levels, by the criterion of Schwarz (1978).

    A step must fit much better than a single line. While few points follow it, they are evidence of a new slope only if
    they fit it much better.
    """
    import numpy as np

    count = len(window)
    levels = _criterion(count, _squares(window[:index]) + _squares(window[index:]), 3)
    time = np.arange(count, dtype=float)
    near = range(max(index - 3, 2), min(index + 4, count - 2))
    for knot in (0, *range(LEAST_AFTER, count - 2, max(1, count // 25)), *near):
        columns = [np.ones(count), time] + ([np.maximum(time - knot, 0.0)] if knot else [])
        basis, _ = np.linalg.qr(np.column_stack(columns))
        coefficients = basis.T @ window
        rest = float(window @ window) - float(coefficients @ coefficients)
        margin = 0.0 if count - knot >= _SETTLED else _MARGIN
        margin = margin if knot else -_MARGIN
        if _criterion(count, rest, len(columns) + bool(knot)) + margin < levels:
            return True
    return False


def _criterion(count: int, squares: float, parameters: int) -> float:
    return count * math.log(max(squares, 1e-300)) + parameters * math.log(count)


def _squares(part: Values) -> float:
    centred = part - part.mean()
    return float(centred @ centred)


def _describe(raw: Values, series: Values, limited: Values, found: Sequence[tuple[int, int]], logs: bool) -> list[Step]:
    import numpy as np

    indices = [index for index, _ in found]
    steps = []
    for number, (index, found_at) in enumerate(found):
        start = indices[number - 1] if number else 0
        end = indices[number + 1] if number + 1 < len(indices) else len(series)
        start, end = max(start, index - WINDOW), min(end, index + WINDOW)
        part = limited[start:end]
        sums = np.abs(np.cumsum(part - part.mean())[:-1])
        sizes = np.arange(1, len(part))
        fits = sums**2 * len(part) / (sizes * (len(part) - sizes))
        best = int(fits.argmax())
        spread = (_squares(part[: best + 1]) + _squares(part[best + 1 :])) / max(len(part) - 2, 1)
        # Places that fit nearly as well: twice the difference of log likelihoods is below the 95 % point of chi-square.
        likely = np.flatnonzero(fits >= fits[best] - 3.84 * max(spread, 1e-300)) + 1
        refined = start + best + 1
        before, after = series[start:refined], series[refined:end]
        indices[number] = refined
        change = float(np.median(after) - np.median(before))
        error = 1.2533 * math.sqrt(spread * (1 / len(before) + 1 / len(after)))
        low, high = change - 1.96 * error, change + 1.96 * error
        steps.append(
            Step(
                refined,
                found_at,
                start + int(likely[0]),
                start + int(likely[-1]),
                float(np.median(raw[start:refined])),
                float(np.median(raw[refined:end])),
                math.exp(low) if logs else low,
                math.exp(high) if logs else high,
            )
        )
    return steps


_LEAST = 12
"""Minimum number of points that show a trend."""
_BINS = 60
_CONFIDENT = 3.29
"""Standard deviations of a test at 99.9 % confidence."""


@dataclass(frozen=True)
class Drift:
    """A slow change within the present level."""

    change: float
    """Relative to the start of the level, from its first point to its last; a difference if values may be 0."""
    points: int


def find_drift(values: Sequence[float], least_change: float) -> Drift | None:
    """Return the trend of a level's values; None if it is not significant, or smaller than `least_change`.

    The slope is the median of those between all pairs of points (Sen, 1968, Estimates of the regression coefficient
    based on Kendall's tau), and its test is that of Mann and Kendall. Long levels are reduced to medians of parts
    first, which have less noise and less autocorrelation.
    """
    if len(values) < _LEAST:
        return None
    size = math.ceil(len(values) / _BINS)
    bins = [statistics.median(values[start : start + size]) for start in range(0, len(values) - size + 1, size)]
    count = len(bins)
    if count < _LEAST:
        return None
    relative = min(bins) > 0
    points = [math.log(value) for value in bins] if relative else bins
    pairs = [
        (later - first, there - here)
        for first, here in enumerate(points)
        for later, there in enumerate(points[first + 1 :], first + 1)
    ]
    score = sum((rise > 0) - (rise < 0) for _, rise in pairs)
    slope = statistics.median(rise / distance for distance, rise in pairs)
    residuals = [value - slope * index for index, value in enumerate(points)]
    deviation = math.sqrt(count * (count - 1) * (2 * count + 5) / 18 * _inflation(residuals))
    whole = slope * (count - 1)
    change = math.expm1(whole) if relative else whole
    least = least_change if relative else least_change * abs(statistics.median(points))
    if abs(score) - 1 < _CONFIDENT * deviation or abs(change) < max(least, 1e-12):
        return None
    return Drift(change, len(values))


def _inflation(residuals: Sequence[float]) -> float:
    """Return the factor by which autocorrelation increases the variance of a mean, for an AR(1) process."""
    middle = statistics.fmean(residuals)
    total = math.fsum((value - middle) ** 2 for value in residuals)
    if total <= 0:
        return 1.0
    correlation = math.fsum((a - middle) * (b - middle) for a, b in pairwise(residuals)) / total
    correlation = min(max(correlation + 1 / math.sqrt(len(residuals)), 0.0), 0.95)
    return (1 + correlation) / (1 - correlation)


@dataclass(frozen=True)
class Level:
    """The points from one step to the next."""

    start: int
    end: int
    """Position after its last point."""
    median: float
    """Median of its good measurements."""
    count: int
    """Number of its good measurements."""


def split_levels(values: Sequence[float], good: Sequence[bool], steps: Sequence[int]) -> list[Level]:
    """Return the levels between steps that have good measurements, in order."""
    levels = []
    for start, end in pairwise([0, *steps, len(values)]):
        kept = [value for value, is_good in zip(values[start:end], good[start:end], strict=True) if is_good]
        if kept:
            levels.append(Level(start, end, statistics.median(kept), len(kept)))
    return levels


def best_level(levels: Sequence[Level], better: Literal["lower", "higher"] | Better) -> Level | None:
    """Return the best level; None without one. Levels, and not points: the best of many points is the luckiest."""
    choose = max if better == "higher" else min
    return choose(levels, key=lambda level: level.median, default=None)
