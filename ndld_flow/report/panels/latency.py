"""Latency of each profiled model, with the conditions of its measurement.

The charts get all passes, or a part of very many; what they count is of all.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, chain, pairwise
from statistics import median_low

from ndld_flow.base.text import short_name
from ndld_flow.records.measurement import LatencySummary
from ndld_flow.records.profile import Profile, ProfileRun
from ndld_flow.report.encoding import evenly_sorted, nanoseconds, rounded
from ndld_flow.report.measured import profile_titles, quartiles_ms, short_provider
from ndld_flow.report.panel import Panel

_SERIES = 10  # colours in tokens.css


@dataclass(frozen=True)
class RunView:
    """One process run of the timing pass."""

    run: ProfileRun
    number: int
    """Number, from 1."""
    latency: LatencySummary
    off: float
    """Its median relative to the profile's: 0.01 is 1 % slower."""
    gaps_ms: tuple[float, ...]
    """Gap between the end of each pass and the start of the next; empty if starts are not recorded."""


@dataclass(frozen=True)
class PartView:
    """A recorded stage of a pass (enqueue, copies, device), or a part of a sequence's steps."""

    name: str
    latency: LatencySummary
    share: float
    """Share of the median pass, where enqueueing overlaps with other stages, or of the time of all steps."""


@dataclass(frozen=True)
class ProfileView:
    """One profiled artifact."""

    profile: Profile
    step: str
    label: str
    providers: tuple[str, ...]
    latency: LatencySummary | None
    """Latency of the timing pass; None without samples."""
    quartiles_ms: tuple[float, float]
    """First and third quartile of a typical process run."""
    process_runs: tuple[RunView, ...]
    """Process runs with samples."""
    in_turns_with: tuple[str, ...]
    """Labels of the other profiles in the same measurement session."""
    stages: tuple[PartView, ...]
    steps: tuple[PartView, ...]
    """The first step of a sequence and the later ones; empty without a sequence."""
    series: int
    """Number of its colour, its position among profiles with samples."""
    load_ms: float
    """Median over process runs."""

    @property
    def widest_run(self) -> float:
        """Largest deviation of a process run's median from the overall median."""
        return max((abs(run.off) for run in self.process_runs), default=0.0)


def collect_profiles(profiles: dict[str, Profile]) -> tuple[ProfileView, ...]:
    """Return all profiles of a run, in recipe order."""
    titles = profile_titles(profiles)
    with_samples = [step for step, profile in profiles.items() if profile.latency_ms]
    return tuple(
        _view(
            titles[step],
            profile,
            step=step,
            in_turns_with=tuple(
                titles[other]
                for other, measured in profiles.items()
                if profile.session and measured.session == profile.session and other != step
            ),
            series=with_samples.index(step) % _SERIES if step in with_samples else 0,
        )
        for step, profile in profiles.items()
    )


def _view(title: str, profile: Profile, *, step: str, in_turns_with: tuple[str, ...], series: int) -> ProfileView:
    latency = profile.latency if profile.latency_ms else None
    return ProfileView(
        profile=profile,
        step=short_name(step),
        label=title,
        providers=tuple(map(short_provider, profile.providers)),
        latency=latency,
        quartiles_ms=quartiles_ms(profile),
        process_runs=tuple(
            _process_run(number, run, latency)
            for number, run in enumerate(profile.runs, start=1)
            if latency and run.latency_ms
        ),
        in_turns_with=in_turns_with,
        stages=_stages(profile, latency) if latency else (),
        steps=_steps(profile),
        series=series,
        load_ms=statistics.median(run.load_ms for run in profile.runs) if profile.runs else 0.0,
    )


def _process_run(number: int, run: ProfileRun, whole: LatencySummary) -> RunView:
    latency = LatencySummary.of(run.latency_ms)
    has_starts = len(run.starts_ms) == len(run.latency_ms)
    ends = [0.0] + [start + took for start, took in zip(run.starts_ms, run.latency_ms, strict=False)]
    return RunView(
        run=run,
        number=number,
        latency=latency,
        off=latency.median_ms / whole.median_ms - 1 if whole.median_ms else 0.0,
        gaps_ms=tuple(start - end for start, end in zip(run.starts_ms, ends, strict=False)) if has_starts else (),
    )


_STAGES = {"enqueue_ms": "enqueue", "h2d_ms": "copy to device", "compute_ms": "device", "d2h_ms": "copy from device"}


def _stages(profile: Profile, whole: LatencySummary) -> tuple[PartView, ...]:
    """Return the recorded stages over all process runs."""
    stages = []
    for field, name in _STAGES.items():
        runs = [getattr(run, field) for run in profile.runs]
        if any(runs):
            latency = LatencySummary.of_runs(runs)
            stages.append(PartView(name, latency, latency.median_ms / whole.median_ms if whole.median_ms else 0.0))
    return tuple(stages)


_PARTS = 4
"""Number of parts of the later steps, if these are at least twice as many: a growing cache makes them slower."""


def _steps(profile: Profile) -> tuple[PartView, ...]:
    """Return the first step of a sequence, all later ones, and the parts of these."""
    later = range(1, profile.sequence_steps)
    named = {"first step": range(1), "later steps": later}
    if len(later) >= 2 * _PARTS:
        ends = [1 + len(later) * part // _PARTS for part in range(_PARTS + 1)]
        named |= {f"steps {start + 1} to {end}": range(start, end) for start, end in pairwise(ends)}
    known = {name: (steps, latency) for name, steps in named.items() if (latency := profile.steps_latency(steps))}
    times = {name: len(steps) * latency.median_ms for name, (steps, latency) in known.items()}
    whole = times.get("first step", 0.0) + times.get("later steps", 0.0)
    return tuple(PartView(name, latency, times[name] / whole if whole else 0.0) for name, (_, latency) in known.items())


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
    runs = [view.run.latency_ms for view in profile.process_runs]
    firsts = accumulate((len(run) for run in runs), initial=0)
    fences = [_far_fence(run) for run in runs]
    drifts = []
    for run in runs:
        tenth = len(run) // 10
        if tenth >= 3:
            drifts.append(median_low(run[-tenth:]) / median_low(run[:tenth]) - 1)
    return LatencyCharts(
        step=profile.step,
        label=profile.label,
        latency={name: rounded(value) for name, value in profile.latency.model_dump().items()},
        quartiles_ms=[rounded(value) for value in profile.quartiles_ms],
        samples=evenly_sorted(list(chain.from_iterable(runs))),
        runs=[
            _passes(view, fence, most // len(runs), profile.latency.median_pass - first)
            for view, fence, first in zip(profile.process_runs, fences, firsts, strict=False)
        ],
        outliers=sum(ms > fence for run, fence in zip(runs, fences, strict=True) for ms in run),
        drift=median_low(drifts) if drifts else None,
    )


def _passes(view: RunView, fence: float, most: int, median: int) -> DrawnPasses:
    run, gaps_ms = view.run.latency_ms, view.gaps_ms
    number = list(range(len(run)))
    if len(run) > most:
        slowest = sorted(number, key=lambda index: run[index])[-round(most * _SLOWEST) :]
        every = number[:: -(-len(run) // (most - len(slowest)))]
        # The page marks the median pass.
        number = sorted({*every, *slowest, *([median] if 0 <= median < len(run) else [])})
    # The drift of a run, without its outliers.
    reach = max(6, int(len(run) / 10 + 0.5))
    points = []
    for index in range(0, len(run), max(1, len(run) // _DRIFT_POINTS)):
        window = run[max(0, index - reach) : index + reach + 1]
        points.append((index, rounded(median_low(window[:: -(-len(window) // _MOST_IN_MEDIAN)]))))
    return DrawnPasses(
        count=len(run),
        number=number,
        ms=[rounded(run[index]) for index in number],
        gaps_ns=nanoseconds(_gaps(run, gaps_ms, number)) if len(gaps_ms) == len(run) else [],
        started_s=view.run.started_s,
        fence_ms=fence,
        drift=points,
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


PANEL = Panel(
    "Latency", lambda documents: collect_profiles(documents.of(Profile)), after="engines", data=latency_charts
)
