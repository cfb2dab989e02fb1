"""Rules on the variation of samples. They qualify the accuracy of the measurement and have no saving."""

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
"""Multiple of the median above which a pass is an outlier."""
_MANY_OUTLIERS = 0.02
_DRIFT = 0.05
_FEWEST = 20
_WARM = 1.2


def variation(subject: Subject) -> Iterator[Insight]:
    """Report passes that vary by at least 10 % (coefficient of variation). trtexec calls 1 % unstable, but machines
    without locked clocks are never that stable.
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
            "Stop other programs, lock the clocks, and use more process runs. Compare medians of runs or "
            "minima, not single passes."
        ),
    )


def runs_disagree(subject: Subject) -> Iterator[Insight]:
    """Report process runs whose medians vary by at least 5 % (coefficient of variation)."""
    medians = [run.median_ms for run in subject.profile.runs if run.latency_ms]
    if len(medians) < 3:
        return
    runs = LatencySummary.of(medians)
    if runs.cov < _RUNS_VARY:
        return
    yield Insight(
        score=0.0,
        title=f"Process runs vary by {share(runs.cov)}",
        evidence=f"Medians of {len(medians)} runs are between {milliseconds(runs.min_ms)} and "
        f"{milliseconds(runs.max_ms)}.",
        next_step=(
            "Smaller differences need more runs (raise `runs` or the budget), in turns with the profile they are "
            "compared with. `ndld-flow noise` measures which differences this machine can resolve."
        ),
    )


def drift(subject: Subject) -> Iterator[Insight]:
    """Report runs whose last third is at least 5 % slower or faster than the first third, in the same direction in
    every run: heat, clocks or another process.
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
        title=f"Passes get {'slower' if slower else 'faster'} within a run",
        evidence=f"The last third of the passes of a run relative to the first: {'+' if slower else MINUS}"
        f"{share(abs(change))} (median of {len(changes)} {'run' if len(changes) == 1 else 'runs'}).",
        next_step=(
            "Watch clocks and temperature: lock the clocks, or pause between passes (`sleep`)."
            if slower
            else "Use a longer warm-up (`warmup`)."
        ),
    )


def outliers(subject: Subject) -> Iterator[Insight]:
    """Report at least 2 % of passes that take more than 1.5 times the median."""
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
            "Look at their times: evenly spaced ones come from a timer or another process, those at the beginning from "
            "a warm-up that was too short. Fewer threads than CPUs leave capacity for the rest of the system."
        ),
    )


def cold_start(subject: Subject) -> Iterator[Insight]:
    """Report runs whose first measured pass mostly takes 20 % more than the median: the warm-up was too short."""
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
        next_step="Raise `warmup` or `warmup_passes`. Means and high percentiles are unreliable here.",
    )
