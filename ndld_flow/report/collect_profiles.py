"""Latency of every profiled artifact, with all that it was measured under."""

from __future__ import annotations

import statistics
from dataclasses import dataclass

from ndld_flow.quantities import size
from ndld_flow.records.latency import LatencySummary, percentile
from ndld_flow.records.machine import Machine
from ndld_flow.records.profile import BatchPoint, Profile, TensorInfo
from ndld_flow.report.collect_accuracy import shape_text
from ndld_flow.report.plain_text import short_name
from ndld_flow.report.profile_titles import profile_titles
from ndld_flow.report.settings_text import Setting, settings_of


@dataclass(frozen=True)
class TensorView:
    """One input or output as it was measured."""

    name: str
    tensor: str
    data: str


@dataclass(frozen=True)
class BatchView:
    """One batch size of a sweep."""

    batch: int
    latency: LatencySummary
    """Of the whole batch."""
    items_per_s: float


@dataclass(frozen=True)
class ProfileView:
    """One profiled artifact."""

    step: str
    label: str
    backend: str
    providers: tuple[str, ...]
    latency: LatencySummary | None
    """Of the timing pass; None when it holds no sample."""
    quartiles_ms: tuple[float, float]
    """Where the middle half of the samples lies."""
    runs: tuple[tuple[float, ...], ...]
    """Samples in ms, in order, one tuple for each process."""
    load_ms: float
    """Median over processes."""
    peak_memory_bytes: int
    overhead: float
    """Latency with the profiler on over latency without; 0 when layers were not profiled."""
    batches: tuple[BatchView, ...]
    warmup_passes: int
    warmup_ms: float
    stopped_because: str
    inputs: tuple[TensorView, ...]
    outputs: tuple[TensorView, ...]
    options: tuple[Setting, ...]
    conditions: tuple[Setting, ...]
    machine: tuple[Setting, ...]
    versions: tuple[tuple[str, str], ...]
    model_digest: str
    notes: tuple[str, ...]


def collect_profiles(profiles: dict[str, Profile]) -> tuple[ProfileView, ...]:
    """Every profile of a run, in recipe order."""
    titles = profile_titles(profiles)
    return tuple(_view(step, titles[step], profile) for step, profile in profiles.items())


def machine_settings(machine: Machine) -> tuple[Setting, ...]:
    """A machine's fingerprint, empty fields left out."""
    named = {
        "system": machine.system,
        "architecture": machine.architecture,
        "cpu": machine.cpu,
        "cpu count": str(machine.cpu_count),
        "memory": size(machine.memory_bytes),
        "gpu": ", ".join(machine.gpus),
        "driver": machine.driver,
        "python": machine.python,
    }
    return tuple(Setting(name, short_name(value)) for name, value in named.items() if value)


def _view(step: str, title: str, profile: Profile) -> ProfileView:
    samples = profile.latency_ms
    return ProfileView(
        step=short_name(step),
        label=title,
        backend=short_name(profile.backend),
        providers=tuple(map(short_provider, profile.providers)),
        latency=profile.latency if samples else None,
        quartiles_ms=(percentile(samples, 25), percentile(samples, 75)) if samples else (0.0, 0.0),
        runs=tuple(run.latency_ms for run in profile.runs),
        load_ms=statistics.median(run.load_ms for run in profile.runs) if profile.runs else 0.0,
        peak_memory_bytes=profile.peak_memory_bytes,
        overhead=profile.profiler_overhead if samples else 0.0,
        batches=tuple(map(_batch, profile.batches)),
        warmup_passes=profile.warmup_passes,
        warmup_ms=profile.warmup_ms,
        stopped_because=short_name(profile.stopped_because),
        inputs=tuple(map(_tensor, profile.inputs)),
        outputs=tuple(map(_tensor, profile.outputs)),
        options=settings_of(profile.options),
        conditions=settings_of(profile.conditions),
        machine=machine_settings(profile.machine),
        versions=tuple((short_name(a), short_name(b)) for a, b in profile.versions.items()),
        model_digest=short_name(profile.model_digest),
        notes=tuple(short_name(note, 1000) for note in profile.notes),
    )


def short_provider(provider: str) -> str:
    """`CPUExecutionProvider` -> `CPU`: everybody knows the rest."""
    return short_name(provider.removesuffix("ExecutionProvider") or provider, 40)


def _batch(point: BatchPoint) -> BatchView:
    return BatchView(point.batch, point.latency, point.items_per_s)


def _tensor(info: TensorInfo) -> TensorView:
    return TensorView(
        name=short_name(info.name),
        tensor=f"{short_name(info.dtype)} {shape_text(info.shape)}",
        data=short_name(info.data),
    )
