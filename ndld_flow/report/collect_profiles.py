"""Collect the latency of every profiled artifact, with the conditions of its measurement and its timeline."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from typing import TypeVar

from ndld_flow.base.quantities import size
from ndld_flow.base.text import short_name
from ndld_flow.records.measurement import LatencySummary, Machine, percentile
from ndld_flow.records.profile import BatchPoint, Profile, ProfileRun, Span, TensorInfo
from ndld_flow.report.encoding import rounded
from ndld_flow.report.value_text import Fact, facts_of, settings_of, shape_text

View = TypeVar("View")


def profile_titles(profiles: Mapping[str, Profile]) -> dict[str, str]:
    """Return step -> the label of what it profiled; with the step's name where several profiled the same."""
    times = Counter(profile.label for profile in profiles.values())
    return {
        step: short_name(profile.label if times[profile.label] == 1 else f"{profile.label} ({step})")
        for step, profile in profiles.items()
    }


def views_by_profile(profiles: Mapping[str, Profile], view: Callable[[str, Profile], View | None]) -> tuple[View, ...]:
    """Return the views of profiles with layers, by title and profile; those that are None are left out."""
    titles = profile_titles(profiles)
    views = (view(titles[step], profile) for step, profile in profiles.items() if profile.layers)
    return tuple(each for each in views if each is not None)


_SERIES = 10  # colours in tokens.css
_MOST_SAMPLES = 4_000
"""Maximum number of samples of a distribution, evenly spread over the sorted ones: enough to show it."""


@dataclass(frozen=True)
class TensorView:
    """One input or output of a measured model."""

    name: str
    tensor: str
    data: str


@dataclass(frozen=True)
class RunView:
    """One process run of the timing pass."""

    number: int
    """Number, from 1."""
    latency: LatencySummary
    off: float
    """Its median relative to the profile's: 0.01 is 1 % slower."""
    started_s: float
    load_ms: float
    first_pass_ms: float
    peak_memory_bytes: int
    gaps_ms: tuple[float, ...]
    """Gap between the end of each pass and the start of the next; empty if starts are not recorded."""


@dataclass(frozen=True)
class StageView:
    """One recorded stage of a pass: enqueue, copies, device."""

    name: str
    latency: LatencySummary
    share: float
    """Share of the median pass; enqueueing overlaps with the others."""


@dataclass(frozen=True)
class StepsView:
    """Latency of a part of a sequence's steps."""

    name: str
    latency: LatencySummary
    share: float
    """Share of the time of all steps, by their medians."""


@dataclass(frozen=True)
class ProfileView:
    """One profiled artifact."""

    step: str
    label: str
    backend: str
    providers: tuple[str, ...]
    latency: LatencySummary | None
    """Latency of the timing pass; None without samples."""
    profiler: str
    """`on` or `off` in the timing pass; empty if unknown."""
    quartiles_ms: tuple[float, float]
    """First and third quartile of the samples."""
    runs: tuple[tuple[float, ...], ...]
    """Samples in ms, in order, one tuple per process."""
    process_runs: tuple[RunView, ...]
    """Process runs with samples."""
    in_turns_with: tuple[str, ...]
    """Labels of the other profiles in the same measurement session."""
    stages: tuple[StageView, ...]
    steps: tuple[StepsView, ...]
    """The first step of a sequence and the later ones; empty without a sequence."""
    series: int
    """Number of its colour, its position among profiles with samples."""
    load_ms: float
    """Median over process runs."""
    peak_memory_bytes: int
    overhead: float
    """Latency with the profiler over latency without it; 0 if layers were not profiled."""
    batches: tuple[BatchPoint, ...]
    warmup_passes: int
    warmup_ms: float
    stopped_because: str
    inputs: tuple[TensorView, ...]
    outputs: tuple[TensorView, ...]
    options: tuple[Fact, ...]
    conditions: tuple[Fact, ...]
    machine: tuple[Fact, ...]
    versions: tuple[Fact, ...]
    model_digest: str
    notes: tuple[str, ...]

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


def profiler_words(views: Sequence[ProfileView]) -> str:
    """Return a note on whether latencies were measured with a profiler attached."""
    states = {view.profiler for view in views if view.latency}
    if len(states) > 1:
        return "some with a profiler attached or not recorded; see how each was measured"
    return {
        "off": "timing pass, no profiler attached",
        "on": "measured with the profiler attached, which slows passes down",
    }.get("".join(states), "not recorded whether a profiler was attached")


def machine_settings(machine: Machine) -> tuple[Fact, ...]:
    """Return a machine's description without empty fields."""
    named = {
        "system": machine.system,
        "architecture": machine.architecture,
        "cpu": machine.cpu,
        "cpu count": str(machine.cpu_count or ""),
        "memory": size(machine.memory_bytes) if machine.memory_bytes else "",
        "gpu": ", ".join(machine.gpus),
        "driver": machine.driver,
        "python": machine.python,
    }
    return tuple(Fact(name, short_name(value)) for name, value in named.items() if value)


def _view(title: str, profile: Profile, *, step: str, in_turns_with: tuple[str, ...], series: int) -> ProfileView:
    samples = profile.latency_ms
    latency = profile.latency if samples else None
    return ProfileView(
        step=short_name(step),
        label=title,
        backend=short_name(profile.backend),
        providers=tuple(map(short_provider, profile.providers)),
        latency=latency,
        profiler=profile.profiler,
        quartiles_ms=(percentile(samples, 25), percentile(samples, 75)) if samples else (0.0, 0.0),
        runs=tuple(run.latency_ms for run in profile.runs),
        process_runs=tuple(
            _process_run(number, run, latency)
            for number, run in enumerate(profile.runs, start=1)
            if latency and run.latency_ms
        ),
        in_turns_with=in_turns_with,
        series=series,
        stages=_stages(profile, latency) if latency else (),
        steps=_steps(profile),
        load_ms=statistics.median(run.load_ms for run in profile.runs) if profile.runs else 0.0,
        peak_memory_bytes=profile.peak_memory_bytes,
        overhead=profile.profiler_overhead,
        batches=profile.batches,
        warmup_passes=profile.warmup_passes,
        warmup_ms=profile.warmup_ms,
        stopped_because=short_name(profile.stopped_because),
        inputs=tuple(map(_tensor, profile.inputs)),
        outputs=tuple(map(_tensor, profile.outputs)),
        options=settings_of(profile.options),
        conditions=settings_of(profile.conditions),
        machine=machine_settings(profile.machine),
        versions=facts_of(profile.versions),
        model_digest=short_name(profile.model_digest),
        notes=tuple(short_name(note, 1000) for note in profile.notes),
    )


def evenly_sorted(samples: Sequence[float]) -> list[float]:
    """Return at most `_MOST_SAMPLES` of the sorted samples, the least and the largest among them."""
    ordered = sorted(samples)
    count = min(len(ordered), _MOST_SAMPLES)
    step = (len(ordered) - 1) / max(count - 1, 1)
    return [rounded(ordered[round(index * step)]) for index in range(count)]


def _process_run(number: int, run: ProfileRun, whole: LatencySummary) -> RunView:
    latency = LatencySummary.of(run.latency_ms)
    has_starts = len(run.starts_ms) == len(run.latency_ms)
    ends = [0.0] + [start + took for start, took in zip(run.starts_ms, run.latency_ms, strict=False)]
    return RunView(
        number=number,
        latency=latency,
        off=latency.median_ms / whole.median_ms - 1 if whole.median_ms else 0.0,
        started_s=run.started_s,
        load_ms=run.load_ms,
        first_pass_ms=run.first_pass_ms,
        peak_memory_bytes=run.peak_memory_bytes,
        gaps_ms=tuple(start - end for start, end in zip(run.starts_ms, ends, strict=False)) if has_starts else (),
    )


_STAGES = {"enqueue_ms": "enqueue", "h2d_ms": "copy to device", "compute_ms": "device", "d2h_ms": "copy from device"}


def _stages(profile: Profile, whole: LatencySummary) -> tuple[StageView, ...]:
    """Return the recorded stages over all process runs."""
    stages = []
    for field, name in _STAGES.items():
        runs = [getattr(run, field) for run in profile.runs]
        if any(runs):
            latency = LatencySummary.of_runs(runs)
            stages.append(StageView(name, latency, latency.median_ms / whole.median_ms if whole.median_ms else 0.0))
    return tuple(stages)


_PARTS = 4
"""Number of parts of the later steps, if these are at least twice as many: a growing cache makes them slower."""


def _steps(profile: Profile) -> tuple[StepsView, ...]:
    """Return the first step of a sequence, all later ones, and the parts of these."""
    later = range(1, profile.sequence_steps)
    named = {"first step": range(1), "later steps": later}
    if len(later) >= 2 * _PARTS:
        ends = [1 + len(later) * part // _PARTS for part in range(_PARTS + 1)]
        named |= {f"steps {start + 1} to {end}": range(start, end) for start, end in pairwise(ends)}
    known = {name: (steps, latency) for name, steps in named.items() if (latency := profile.steps_latency(steps))}
    times = {name: len(steps) * latency.median_ms for name, (steps, latency) in known.items()}
    whole = times.get("first step", 0.0) + times.get("later steps", 0.0)
    return tuple(
        StepsView(name, latency, times[name] / whole if whole else 0.0) for name, (_, latency) in known.items()
    )


@lru_cache(maxsize=256)
def short_provider(provider: str) -> str:
    """Shorten `CPUExecutionProvider` to `CPU`."""
    return short_name(provider.removesuffix("ExecutionProvider") or provider, 40)


def _tensor(info: TensorInfo) -> TensorView:
    return TensorView(
        name=short_name(info.name),
        tensor=f"{short_name(info.dtype)} {shape_text(info.shape)}",
        data=short_name(info.data),
    )


@dataclass(frozen=True)
class LaneView:
    """Description of one lane."""

    name: str
    spans: int
    busy_ms: float
    """Total time of its outermost spans."""
    overhead_ms: float
    longest: str
    longest_ms: float


@dataclass(frozen=True)
class TimelineView:
    """One pass of one profile."""

    basis: str
    length_ms: float
    lanes: tuple[LaneView, ...]
    """In order of their first span."""
    rows: int
    """Number of rows of the picture: one per depth of each lane."""


def collect_timeline(profile: Profile) -> TimelineView | None:
    """Return the timeline; None if the profile has none."""
    if not profile.timeline:
        return None
    lanes: dict[str, list[Span]] = {}
    for span in profile.timeline:
        lanes.setdefault(span.lane, []).append(span)
    return TimelineView(
        basis=short_name(profile.timeline_basis, 400),
        length_ms=max(span.start_ms + span.duration_ms for span in profile.timeline),
        rows=len({(span.lane, span.depth) for span in profile.timeline}),
        lanes=tuple(_lane(name, spans) for name, spans in lanes.items()),
    )


def _lane(name: str, spans: Sequence[Span]) -> LaneView:
    work = [span for span in spans if span.kind != "pass"] or spans
    longest = max(work, key=lambda span: span.duration_ms)
    top = min(span.depth for span in work)
    return LaneView(
        name=short_name(name),
        spans=len(spans),
        busy_ms=sum(span.duration_ms for span in work if span.depth == top),
        overhead_ms=sum(span.duration_ms for span in work if span.kind == "overhead"),
        longest=short_name(longest.name, 80),
        longest_ms=longest.duration_ms,
    )
