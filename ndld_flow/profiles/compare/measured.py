"""The input of a comparison: measured profiles, their metrics, and the rules for judging differences."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from ndld_flow.base.declared_metrics import which_is_better
from ndld_flow.profiles.compare.written_gates import COMPARED, PHASES, unit_of_runs
from ndld_flow.records.comparison import ComparedMetric
from ndld_flow.records.measurement import Allowance, Metric
from ndld_flow.records.noise import Noise
from ndld_flow.records.profile import Profile

FEW_RUNS = 5
"""Minimum process runs per side; with fewer, an assumed spread is used."""

SMALLEST, LARGEST = 1e-12, 1e15
"""Range of plausible times in ms, sizes and rates; damaged exports may contain others."""


@dataclass(frozen=True)
class Measured:
    """One profile of one subject."""

    subject: int
    """Position among the subjects of the comparison."""
    step: str
    """The step that produced it; empty for a file."""
    profile: Profile
    metrics: Mapping[str, Metric] = field(default_factory=dict)
    """Exact metrics of the same run: `model.bytes`, `model.nodes`, `accuracy.cosine`."""


@dataclass(frozen=True)
class Rules:
    """Rules for judging differences."""

    threshold: float = 0.03
    """Minimum relevant relative difference; learned noise can only raise it."""
    floor_ms: float = 0.002
    """Minimum relevant absolute difference of a latency; smaller ones are due to the clock and call overhead."""
    metric: str = "latency.min"
    """The metric that decides."""
    noise: Noise | None = None
    """Noise learned by `ndld-flow noise`, used for the same machine, backend and provider."""
    allow: frozenset[Allowance] = frozenset()
    """Conditions that may differ or be unknown although they would forbid a verdict."""


Samples = Sequence[float]


def compare_metrics(measured: Sequence[Measured]) -> tuple[ComparedMetric, ...]:
    """Return every metric that at least one profile has, the measured ones before the exact ones."""
    per_profile = [_run_metrics(each.profile) for each in measured]
    names = list(dict.fromkeys(name for metrics in per_profile for name in metrics))
    taken = set(names)
    shares = [each.profile.tensor_cores for each in measured]
    known = [
        {**each.metrics, **(share.metrics if share is not None else {})}
        for each, share in zip(measured, shares, strict=True)
    ]
    exact = dict.fromkeys(name for metrics in known for name in metrics if name not in taken)
    return (
        *(
            _of_runs(name, [each.profile for each in measured], [runs.get(name, ()) for runs in per_profile])
            for name in names
        ),
        *(_exact(name, [metrics.get(name) for metrics in known]) for name in exact),
    )


def run_values(profile: Profile, metric: str) -> tuple[float, ...]:
    """Return a metric's value in each process run; empty if the profile does not record it."""
    return _run_metrics(profile).get(metric, ())


def _of_runs(name: str, profiles: Sequence[Profile], runs: Sequence[tuple[float, ...]]) -> ComparedMetric:
    return ComparedMetric(
        metric=name,
        unit=unit_of_runs(name),
        better="higher" if name == "throughput" else "lower",
        values=tuple(_value(name, *each) if each[1] else None for each in zip(profiles, runs, strict=True)),
        runs=tuple(runs),
    )


def _value(name: str, profile: Profile, runs: Sequence[float]) -> float:
    """Return the profile's own value of a metric, from the values of its process runs."""
    if name == "layers.sum":  # layers add up to it, which medians of their sums in each run would not
        return profile.layers_sum_ms
    if name == "throughput":  # at the median latency: with an even number of runs, medians of rates differ from it
        return 1 / statistics.median([1 / rate for rate in runs])
    return statistics.median(runs)


def _exact(name: str, metrics: Sequence[Metric | None]) -> ComparedMetric:
    unit = next((metric.unit for metric in metrics if metric is not None), "")
    values = tuple(metric.value if metric is not None and math.isfinite(metric.value) else None for metric in metrics)
    return ComparedMetric(metric=name, unit=unit, better=which_is_better(name, unit), values=values)


def _run_metrics(profile: Profile) -> dict[str, tuple[float, ...]]:
    """Return metric -> its value in each process run, for those that the profile records."""
    latencies = [_usable(run.latency_ms) for run in profile.runs]
    metrics = {f"latency.{word}": _each(latencies, reduce) for word, reduce in COMPARED.items()}
    metrics["throughput"] = tuple(1e3 / median * profile.concurrent_inferences for median in metrics["latency.median"])
    for phase in PHASES:
        metrics[f"{phase}.median"] = _each(
            [_usable(getattr(run, f"{phase}_ms")) for run in profile.runs], statistics.median
        )
    metrics["load"] = _usable(run.load_ms for run in profile.runs)
    metrics["memory.peak"] = _usable(run.peak_memory_bytes for run in profile.runs) or _usable(
        [profile.peak_memory_bytes]
    )
    times = profile.layer_times
    measured = [index for index, runs in enumerate(times.in_runs) if runs]
    metrics["layers.sum"] = _usable(times.sums_in_runs(measured))
    return {name: values for name, values in metrics.items() if values}


def _each(runs: Iterable[Samples], reduce: Callable[[Samples], float]) -> tuple[float, ...]:
    return tuple(reduce(samples) for samples in runs if samples)


def _usable(values: Iterable[float]) -> tuple[float, ...]:
    """Return plausible values only; a damaged export may contain zeros, NaN or negative times."""
    return tuple(value for value in values if SMALLEST < value < LARGEST)
