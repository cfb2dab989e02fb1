"""Rules on samples that do not agree with each other. They save nothing: they say how far to trust the numbers."""

from __future__ import annotations

import statistics
from collections.abc import Iterator

from ndld_flow.base.quantities import MINUS, count, milliseconds, share
from ndld_flow.profiles.diagnose.insight import Insight
from ndld_flow.profiles.diagnose.subject import Subject
from ndld_flow.records.latency import LatencySummary

_VARIES = 0.1
_RUNS_VARY = 0.05
_OUTLIER = 1.5
"""Times the median: what a person would call a hiccup."""
_MANY_OUTLIERS = 0.02
_DRIFT = 0.05
_FEWEST = 20
_WARM = 1.2


def variation(subject: Subject) -> Iterator[Insight]:
    """Passes vary by 10 % or more (coefficient of variation). trtexec calls 1 % unstable; machines without locked
    clocks are never that steady.
    """
    samples = subject.profile.latency_ms
    if len(samples) < _FEWEST:
        return
    latency = subject.profile.latency
    if latency.cov < _VARIES:
        return
    yield Insight(
        score=0.0,
        title=f"Passes vary by {share(latency.cov)}",
        evidence=f"Over {count(latency.sample_count)} passes the mean is {milliseconds(latency.mean_ms)}, the standard "
        f"deviation {milliseconds(latency.std_ms)}, the shortest {milliseconds(latency.min_ms)}, the longest "
        f"{milliseconds(latency.max_ms)}.",
        next_step=(
            "Close what else runs, lock the clocks, and measure in more process runs. Compare medians of runs or "
            "minima, not single passes."
        ),
    )


def runs_disagree(subject: Subject) -> Iterator[Insight]:
    """Medians of process runs differ by 5 % or more (coefficient of variation): one run tells little."""
    medians = [run.median_ms for run in subject.profile.runs if run.latency_ms]
    if len(medians) < 3:
        return
    runs = LatencySummary.of(medians)
    if runs.cov < _RUNS_VARY:
        return
    yield Insight(
        score=0.0,
        title=f"Process runs vary by {share(runs.cov)}",
        evidence=f"Medians of {len(medians)} runs lie between {milliseconds(runs.min_ms)} and "
        f"{milliseconds(runs.max_ms)}.",
        next_step=(
            "Differences below this need more runs (raise `runs` or the budget) and runs in turns with what they are "
            "compared to. `ndld-flow noise` learns what this machine can tell apart."
        ),
    )


def drift(subject: Subject) -> Iterator[Insight]:
    """The last third of the passes of each run is 5 % slower or quicker than the first third, in the same direction in
    every run: heat, clocks or a neighbour.
    """
    changes = [
        statistics.median(run.latency_ms[-third:]) / statistics.median(run.latency_ms[:third]) - 1
        for run in subject.profile.runs
        if (third := len(run.latency_ms) // 3) >= _FEWEST // 3 and min(run.latency_ms) > 0
    ]
    if not changes or min(map(abs, changes)) < _DRIFT or len({change > 0 for change in changes}) > 1:
        return
    change = statistics.median(changes)
    slower = change > 0
    yield Insight(
        score=0.0,
        title=f"Passes get {'slower' if slower else 'quicker'} within a run",
        evidence=f"The last third of the passes of a run against its first: {'+' if slower else MINUS}"
        f"{share(abs(change))} (median of {len(changes)} {'run' if len(changes) == 1 else 'runs'}).",
        next_step=(
            "Watch clocks and temperature: lock the clocks, or rest between passes (`sleep`)."
            if slower
            else "Warm up for longer (`warmup`): the first passes are still counted."
        ),
    )


def outliers(subject: Subject) -> Iterator[Insight]:
    """2 % of the passes or more take half as long again as the median: a tail that users feel."""
    samples = subject.profile.latency_ms
    if len(samples) < _FEWEST:
        return
    latency = subject.profile.latency
    over = sum(sample > _OUTLIER * latency.median_ms for sample in samples)
    if over < max(2, _MANY_OUTLIERS * len(samples)):
        return
    yield Insight(
        score=0.0,
        title=f"{count(over)} of {count(len(samples))} passes are outliers",
        evidence=f"They take more than {_OUTLIER} times the median of {milliseconds(latency.median_ms)}; p99 is "
        f"{milliseconds(latency.p99_ms)}.",
        next_step=(
            "Look at when they came: evenly spaced ones are a timer or another process, those at the beginning a "
            "warm-up that was too short. Fewer threads than CPUs leave room for the rest of the system."
        ),
    )


def cold_start(subject: Subject) -> Iterator[Insight]:
    """The first measured pass of most runs takes a fifth more than their median: the warm-up was not over."""
    runs = [run for run in subject.profile.runs if len(run.latency_ms) >= 5]
    cold = [run for run in runs if run.latency_ms[0] > _WARM * run.median_ms]
    if not cold or len(cold) * 2 <= len(runs):
        return
    excess = statistics.median(run.latency_ms[0] / run.median_ms for run in cold)
    yield Insight(
        score=0.0,
        title="The warm-up was too short",
        evidence=f"In {len(cold)} of {len(runs)} runs the first measured pass took {excess:.2g} times the median, "
        f"after {subject.profile.warmup_passes} warm-up passes.",
        next_step="Raise `warmup` or `warmup_passes`. Means and high percentiles are not to be trusted here.",
    )
