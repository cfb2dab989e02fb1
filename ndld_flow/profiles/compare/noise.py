"""Learn from A/A runs the difference between two measurements of the same model."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations

from ndld_flow.profiles.compare.intervals import RatioInterval, paired_ratio, unpaired_ratio
from ndld_flow.profiles.compare.measured import Rules, run_values
from ndld_flow.records.noise import Noise, NoiseSample
from ndld_flow.records.profile import Profile

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
