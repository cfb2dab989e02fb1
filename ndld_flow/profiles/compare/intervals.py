"""Exact confidence intervals of medians and of their ratio, and the noise that measurements of one model show."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate, combinations, pairwise

from ndld_flow.profiles.compare.measured import Rules, run_values
from ndld_flow.records.noise import Noise, NoiseSample
from ndld_flow.records.profile import Profile, median

CONFIDENCE = 0.95
_NEGLIGIBLE = 1e-7
"""Probability below which a value is left out of the distribution: far below 2.5 %, and fast for hundreds of runs."""


@dataclass(frozen=True)
class RatioInterval:
    """A ratio with its confidence interval."""

    ratio: float
    low: float
    high: float

    def around(self, ratio: float) -> RatioInterval:
        """Return the interval of another estimate, widened where that is outside."""
        return RatioInterval(ratio, min(self.low, ratio), max(self.high, ratio))

    def inverted(self) -> RatioInterval:
        """Return the interval with the two sides swapped."""
        return RatioInterval(1 / self.ratio, 1 / self.high, 1 / self.low if self.low else math.inf)


def median_interval(values: Sequence[float], confidence: float = CONFIDENCE) -> tuple[float, float]:
    """Return the confidence interval of the median for any distribution of the values.

    The median is between the d-th smallest and the d-th largest of n values unless fewer than d of n coin tosses agree.
    Between two such d, the ends are interpolated to meet the confidence (Hettmansperger and Sheather, 1986, Confidence
    intervals based on interpolated order statistics). The bootstrap's percentiles jump from value to value: a nominal
    95 % is 88 % for 7 values and 96 % for 9. The range of n values covers 1 - 2^(1 - n): 94 % for 5 values, 75 % for 3.
    Fewer than 5 are unreliable. Raises ValueError for no values.
    """
    if not values:
        raise ValueError("no values to take the median of")
    ordered = sorted(values)
    inner, share = _order_statistics(len(values), confidence)
    low, high = ordered[inner - 1], ordered[-inner]
    if share:
        low += share * (ordered[inner] - low)
        high += share * (ordered[-inner - 1] - high)
    return low, high


@lru_cache(maxsize=64)
def _order_statistics(n: int, confidence: float) -> tuple[int, float]:
    """Return the order statistic (counted from either end) and the fraction of the way to the next one."""
    # Of 2^n outcomes, twice this number have fewer than `depth` heads or tails.
    outcomes, outside, depth = 2**n, 2, 1
    while True:
        inside = 1 - outside / outcomes
        if inside <= confidence:
            return depth, 0.0
        outside += 2 * math.comb(n, depth)
        further = 1 - outside / outcomes
        if further <= confidence:
            part = (inside - confidence) / (inside - further)
            return depth, (n - depth) * part / (depth + (n - 2 * depth) * part)
        depth += 1


def paired_ratio(base: Sequence[float], candidate: Sequence[float], confidence: float = CONFIDENCE) -> RatioInterval:
    """Return candidate over base for runs measured in turns: the median of the ratios of run i of both.

    Slowdowns of the machine affect both runs of a pair and cancel out. Values are positive and equal in number.
    """
    logs = [math.log(ours / theirs) for theirs, ours in zip(base, candidate, strict=True)]
    low, high = median_interval(logs, confidence)
    return RatioInterval(math.exp(median(logs)), math.exp(low), math.exp(high))


def unpaired_ratio(base: Sequence[float], candidate: Sequence[float], confidence: float = CONFIDENCE) -> RatioInterval:
    """Return the median of the candidate over that of the base, measured independently. Values are positive.

    The interval holds the percentiles of the exact bootstrap distribution. When n of n sorted values are drawn with
    replacement, the k-th smallest drawn value is at most the i-th value if at least k draws are among the first i; the
    probability is that of a binomial variable (n trials, probability i / n) of at least k (Maritz and Jarrett, 1978, A
    note on estimating the variance of the sample median; Efron, 1979, section 3). Resampling would approximate this.
    """
    theirs = _distribution([math.log(value) for value in base])
    ours = _distribution([math.log(value) for value in candidate])
    differences = sorted((b - a, p * q) for a, p in theirs for b, q in ours)
    tail = (1 - confidence) / 2
    low, high = _first_beyond(differences, tail), _first_beyond(reversed(differences), tail)
    ratio = math.exp(median([math.log(value) for value in candidate]) - median([math.log(value) for value in base]))
    return RatioInterval(ratio, math.exp(low), math.exp(high))


def _distribution(values: Sequence[float]) -> list[tuple[float, float]]:
    """Return sorted (value, probability that it is the median of a draw)."""
    chances = _median_chances(len(values))
    return [(value, chance) for value, chance in zip(sorted(values), chances, strict=True) if chance > _NEGLIGIBLE]


@lru_cache(maxsize=64)
def _median_chances(n: int) -> tuple[float, ...]:
    """Return, for each of n sorted values, the probability that it is the median of a draw.

    For even n, either of the middle two is the median with equal probability.
    """
    middle = ((n + 1) // 2, n // 2 + 1)
    at_most = [sum(_chance_of_at_least(k, n, i / n) for k in middle) / 2 for i in range(n + 1)]
    return tuple(later - earlier for earlier, later in pairwise(at_most))


def _chance_of_at_least(successes: int, trials: int, chance: float) -> float:
    """Return the upper tail of the binomial distribution; uses logarithms because factorials of hundreds overflow."""
    if chance in (0.0, 1.0):
        return chance
    hit, miss = math.log(chance), math.log1p(-chance)
    total = math.lgamma(trials + 1)
    return math.fsum(
        math.exp(total - math.lgamma(k + 1) - math.lgamma(trials - k + 1) + k * hit + (trials - k) * miss)
        for k in range(successes, trials + 1)
    )


def _first_beyond(distribution: Iterable[tuple[float, float]], tail: float) -> float:
    values, chances = zip(*distribution, strict=True)
    # The tolerance keeps the two ends symmetric despite rounding.
    return float(next(value for value, sum_ in zip(values, accumulate(chances), strict=True) if sum_ > tail - 1e-9))


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
    return max(0.0, 1 - inside)


_NINETEEN_OF_TWENTY = 0.95


@dataclass(frozen=True)
class LearnedThresholds:
    """Thresholds for a `records.noise.Noise`."""

    threshold: float
    run_cov: float
    single_run_threshold: float


def noise_samples(a: Profile, b: Profile, runs: int) -> list[NoiseSample]:
    """Split two profiles of the same model, measured in turns, into A/A comparisons with `runs` process runs per side.

    They are compared by the deciding metric; incomplete comparisons are left out.
    """
    sides = [run_values(profile, Rules.metric) for profile in (a, b)]
    starts = range(0, min(map(len, sides)) - runs + 1, runs)
    parts = ([side[start : start + runs] for side in sides] for start in starts)
    return [
        NoiseSample(a_runs_ms=ours, b_runs_ms=theirs, ratio=_interval(ours, theirs).ratio) for ours, theirs in parts
    ]


def learn_thresholds(samples: Sequence[NoiseSample]) -> LearnedThresholds:
    """Return the thresholds for comparisons on this machine. Raises ValueError without samples.

    `threshold` is the smallest at which none of these A/A comparisons would have shown a difference: the distance from
    1 of the farthest interval. A comparison's own interval covers the scatter of its runs; this covers other effects,
    such as the placement in memory. The next A/A comparison exceeds the largest of n with a probability of at most 1 /
    (n + 1) for any distribution (Wilks, 1941, Determination of sample sizes for setting tolerance limits). It is at
    least the median difference of the comparisons.

    `single_run_threshold` is the 95th percentile of the differences between single process runs, over all pairs: runs
    that are compared singly are rarely consecutive, so drift is included.
    """
    if not samples:
        raise ValueError("no A/A samples to learn from")
    runs = [math.log(run) for sample in samples for run in (*sample.a_runs_ms, *sample.b_runs_ms)]
    intervals = [_interval(sample.a_runs_ms, sample.b_runs_ms) for sample in samples]
    usual = statistics.median(max(sample.ratio, 1 / sample.ratio) - 1 for sample in samples)
    apart = sorted(abs(first - second) for first, second in combinations(runs, 2))
    return LearnedThresholds(
        # An interval that contains 1 is at a distance of 0.
        threshold=max(usual, *(max(each.low - 1, 1 / each.high - 1) for each in intervals)),
        run_cov=statistics.stdev(runs) if len(runs) > 1 else 0.0,
        single_run_threshold=math.expm1(apart[math.ceil(_NINETEEN_OF_TWENTY * len(apart)) - 1]) if apart else 0.0,
    )


def applies(noise: Noise, profile: Profile) -> bool:
    """Return whether the noise applies to this profile: same machine, backend and provider."""
    here, there = profile.machine, noise.machine
    same_machine = (here.cpu, here.cpu_count, here.gpus) == (there.cpu, there.cpu_count, there.gpus)
    return same_machine and profile.backend == noise.backend and noise.provider in profile.providers[:1]


def _interval(a_runs_ms: Sequence[float], b_runs_ms: Sequence[float]) -> RatioInterval:
    in_turns = len(a_runs_ms) == len(b_runs_ms)
    return paired_ratio(a_runs_ms, b_runs_ms) if in_turns else unpaired_ratio(a_runs_ms, b_runs_ms)
