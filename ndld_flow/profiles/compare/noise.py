"""Learn from A/A runs how far two measurements of the very same thing lie apart."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations

from ndld_flow.profiles.compare.intervals import RatioInterval, paired_ratio, unpaired_ratio
from ndld_flow.profiles.compare.measured import Rules
from ndld_flow.profiles.compare.metrics import run_values
from ndld_flow.records.noise import Noise, NoiseSample
from ndld_flow.records.profile import Profile

_NINETEEN_OF_TWENTY = 0.95


@dataclass(frozen=True)
class LearnedThresholds:
    """The numbers of a `records.noise.Noise`."""

    threshold: float
    run_cov: float
    single_run_threshold: float


def noise_samples(a: Profile, b: Profile, runs: int, metric: str = Rules.metric) -> list[NoiseSample]:
    """Two profiles of the same model, measured in turns, cut into A/A comparisons of so many process runs a side.

    They are compared by the metric that decides; what does not fill a comparison is left out.
    """
    sides = [run_values(profile, metric) for profile in (a, b)]
    starts = range(0, min(map(len, sides)) - runs + 1, runs)
    return [_sample(*(side[start : start + runs] for side in sides)) for start in starts]


def learn_thresholds(samples: Sequence[NoiseSample]) -> LearnedThresholds:
    """What comparisons on this machine are held against. Raises ValueError for no samples.

    `threshold` is the least at which none of these A/A comparisons would have been called different: how far the
    interval farthest from 1 keeps away from it. A comparison's own interval tells the scatter of its runs; this tells
    what that interval does not see, such as where in memory things came to lie. The next A/A comparison exceeds the
    largest of n with a chance of at most 1 / (n + 1), whatever their distribution (Wilks, 1941, Determination of sample
    sizes for setting tolerance limits). It is no less than what half of the comparisons were apart.

    `single_run_threshold` is what 19 of 20 pairs of single process runs stay below, of all pairs there are: runs that
    are compared alone were rarely made one after the other, so drift belongs to it.
    """
    if not samples:
        raise ValueError("no A/A samples to learn from")
    runs = [math.log(run) for sample in samples for run in (*sample.a_runs_ms, *sample.b_runs_ms)]
    usual = statistics.median(max(sample.ratio, 1 / sample.ratio) - 1 for sample in samples)
    apart = sorted(abs(one - other) for one, other in combinations(runs, 2))
    return LearnedThresholds(
        threshold=max(usual, *(_sure_difference(sample) for sample in samples)),
        run_cov=statistics.stdev(runs) if len(runs) > 1 else 0.0,
        single_run_threshold=math.expm1(apart[math.ceil(_NINETEEN_OF_TWENTY * len(apart)) - 1]) if apart else 0.0,
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


def _sample(a_runs_ms: tuple[float, ...], b_runs_ms: tuple[float, ...]) -> NoiseSample:
    return NoiseSample(a_runs_ms=a_runs_ms, b_runs_ms=b_runs_ms, ratio=_interval(a_runs_ms, b_runs_ms).ratio)


def _sure_difference(sample: NoiseSample) -> float:
    """How far the whole interval is away from 1, as a relative difference; 0 when it holds 1."""
    interval = _interval(sample.a_runs_ms, sample.b_runs_ms)
    return max(0.0, interval.low - 1, 1 / interval.high - 1)


def _interval(a_runs_ms: Sequence[float], b_runs_ms: Sequence[float]) -> RatioInterval:
    in_turns = len(a_runs_ms) == len(b_runs_ms)
    return paired_ratio(a_runs_ms, b_runs_ms) if in_turns else unpaired_ratio(a_runs_ms, b_runs_ms)
