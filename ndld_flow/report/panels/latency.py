"""Latency of each profiled model, with the conditions of its measurement.

The charts get all passes, or a part of very many; what they count is of all.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, chain, pairwise
from statistics import median_low

from ndld_flow.records.profile import Profile
from ndld_flow.report.collect_profiles import ProfileView, collect_profiles, evenly_sorted
from ndld_flow.report.encoding import nanoseconds, rounded
from ndld_flow.report.panel import Panel

MOST_PASSES = 20_000
"""Maximum number of passes that are drawn in a page; a model of 3 µs has half a million."""
_SLOWEST = 0.02
"""Share of the drawn passes that are the slowest ones: a few of very many passes would miss each outlier."""
_DRIFT_POINTS = 60
_MOST_IN_MEDIAN = 2_000


@dataclass(frozen=True)
class DrawnPasses:
    """Passes of one process run; lists have an item for each pass that is drawn."""

    count: int
    """Number of all passes."""
    number: list[int]
    """Positions among all passes."""
    ms: list[float]
    gaps_ns: list[int]
    """Time since the end of the drawn pass before; empty if starts were not recorded."""
    started_s: float
    fence_ms: float
    """Outliers are slower: Tukey's far fence, three interquartile ranges above the third quartile of all passes."""
    drift: list[tuple[int, float]]
    """Moving median of all passes: position, ms."""


@dataclass(frozen=True)
class LatencyCharts:
    """The timing pass of a profile."""

    step: str
    label: str
    latency: dict[str, float]
    quartiles_ms: list[float]
    samples: list[float]
    """Sorted; every n-th of very many."""
    runs: list[DrawnPasses]
    outliers: int
    """Number among all passes."""
    drift: float | None
    """Median over the process runs of the change from the first to the last tenth; None for short runs."""


def latency_charts(profiles: Sequence[ProfileView]) -> list[LatencyCharts]:
    """Return the timing passes of profiles that have samples."""
    measured = [profile for profile in profiles if profile.latency]
    return [_charts(profile, MOST_PASSES // len(measured)) for profile in measured]


def _charts(profile: ProfileView, most: int) -> LatencyCharts:
    assert profile.latency is not None
    runs = [run for run in profile.runs if run]
    firsts = accumulate((len(run) for run in runs), initial=0)
    fences = [_far_fence(run) for run in runs]
    drifts = [drift for run in runs if (drift := _drift_of(run)) is not None]
    return LatencyCharts(
        step=profile.step,
        label=profile.label,
        latency={name: rounded(value) for name, value in profile.latency.model_dump().items()},
        quartiles_ms=[rounded(value) for value in profile.quartiles_ms],
        samples=evenly_sorted(list(chain.from_iterable(runs))),
        runs=[
            _passes(run, view.gaps_ms, view.started_s, fence, most // len(runs), profile.latency.median_pass - first)
            for run, view, fence, first in zip(runs, profile.process_runs, fences, firsts, strict=False)
        ],
        outliers=sum(ms > fence for run, fence in zip(runs, fences, strict=True) for ms in run),
        drift=median_low(drifts) if drifts else None,
    )


def _passes(
    run: Sequence[float], gaps_ms: Sequence[float], started_s: float, fence: float, most: int, median: int
) -> DrawnPasses:
    number = list(range(len(run)))
    if len(run) > most:
        slowest = sorted(number, key=lambda index: run[index])[-round(most * _SLOWEST) :]
        every = number[:: -(-len(run) // (most - len(slowest)))]
        # The page marks the median pass.
        number = sorted({*every, *slowest, *([median] if 0 <= median < len(run) else [])})
    return DrawnPasses(
        count=len(run),
        number=number,
        ms=[rounded(run[index]) for index in number],
        gaps_ns=nanoseconds(_gaps(run, gaps_ms, number)) if len(gaps_ms) == len(run) else [],
        started_s=started_s,
        fence_ms=fence,
        drift=_moving_median(run),
    )


def _gaps(run: Sequence[float], gaps_ms: Sequence[float], number: Sequence[int]) -> Sequence[float]:
    """Return the time from the end of each drawn pass to the start of the next drawn one."""
    if len(number) == len(run):
        return gaps_ms
    ends = list(accumulate(gap + ms for gap, ms in zip(gaps_ms, run, strict=True)))
    starts = [end - ms for end, ms in zip(ends, run, strict=True)]
    return [starts[index] - (ends[before] if before >= 0 else 0.0) for before, index in pairwise([-1, *number])]


def _far_fence(run: Sequence[float]) -> float:
    ordered = sorted(run)
    first, third = (ordered[int(part * len(ordered))] for part in (0.25, 0.75))
    return third + 3 * (third - first)


def _moving_median(run: Sequence[float]) -> list[tuple[int, float]]:
    """Return the drift of a run without its outliers."""
    reach = max(6, int(len(run) / 10 + 0.5))
    points = []
    for index in range(0, len(run), max(1, len(run) // _DRIFT_POINTS)):
        window = run[max(0, index - reach) : index + reach + 1]
        points.append((index, rounded(median_low(window[:: -(-len(window) // _MOST_IN_MEDIAN)]))))
    return points


def _drift_of(run: Sequence[float]) -> float | None:
    """Return the relative change from the first to the last tenth of a run; None for a run that is too short."""
    tenth = len(run) // 10
    return None if tenth < 3 else median_low(run[-tenth:]) / median_low(run[:tenth]) - 1


PANEL = Panel(
    "Latency", lambda documents: collect_profiles(documents.of(Profile)), after="engines", data=latency_charts
)
