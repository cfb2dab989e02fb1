"""Learn from A/A runs how far two measurements of the very same thing lie apart."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from ndld_flow.compare.student_t import t_quantile
from ndld_flow.records.noise import Noise, NoiseSample
from ndld_flow.records.profile import Profile

_CONFIDENCE = 0.95
_NORMAL = statistics.NormalDist().inv_cdf((1 + _CONFIDENCE) / 2)


@dataclass(frozen=True)
class LearnedThresholds:
    """The numbers of a `records.noise.Noise`."""

    threshold: float
    run_cov: float
    single_run_threshold: float


def learn_thresholds(samples: Sequence[NoiseSample]) -> LearnedThresholds:
    """The thresholds that A/A comparisons stay below.

    `threshold` is a 95 % prediction limit for the next comparison: its logarithm is `t * s * sqrt(1 + 1 / n)` with s
    the root mean square of the logarithms of the n ratios, whose mean is 0 as both sides are the same (Hahn and Meeker,
    1991, Statistical Intervals, section 4.7; t with n degrees of freedom as no mean was estimated, so without the
    1 / n). It is at least the largest ratio seen. Raises ValueError for no samples.
    """
    if not samples:
        raise ValueError("no A/A samples to learn from")
    logs = [abs(math.log(sample.ratio)) for sample in samples]
    spread = math.sqrt(math.fsum(log**2 for log in logs) / len(logs))
    run_spread = _run_spread(samples)
    return LearnedThresholds(
        threshold=math.expm1(max(t_quantile(_CONFIDENCE, len(logs)) * spread, *logs)),
        run_cov=run_spread,
        single_run_threshold=math.expm1(_NORMAL * math.sqrt(2) * run_spread),
    )


def applies(noise: Noise, profile: Profile) -> bool:
    """Whether what was learned holds for this profile: same machine, backend and provider."""
    here, there = profile.machine, noise.machine
    same_machine = (here.cpu, here.cpu_count, here.gpus) == (there.cpu, there.cpu_count, there.gpus)
    return same_machine and profile.backend == noise.backend and noise.provider in profile.providers[:1]


def say_noise(noise: Noise) -> str:
    """What was learned, in words."""
    return (
        f"±{noise.threshold * 100:.2g} % learned from {len(noise.samples)} A/A comparisons of {noise.model} "
        f"on {noise.machine.cpu}, {noise.measured_at:%Y-%m-%d}"
    )


def _run_spread(samples: Sequence[NoiseSample]) -> float:
    """Standard deviation of the logarithm of a process run's value within its side of a comparison, pooled."""
    squares, freedom = 0.0, 0
    for sample in samples:
        for runs in (sample.a_runs_ms, sample.b_runs_ms):
            logs = [math.log(run) for run in runs if run > 0]
            if len(logs) > 1:
                squares += statistics.variance(logs) * (len(logs) - 1)
                freedom += len(logs) - 1
    return math.sqrt(squares / freedom) if freedom else 0.0
