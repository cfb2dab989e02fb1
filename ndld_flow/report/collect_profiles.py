"""Latency of every profiled artifact, with all that it was measured under."""

from __future__ import annotations

from dataclasses import dataclass

from ndld_flow.records.machine import Machine
from ndld_flow.records.profile import Profile, TensorInfo
from ndld_flow.report.collect_accuracy import shape_text
from ndld_flow.report.latency_numbers import Latency, describe, median
from ndld_flow.report.plain_text import short_name
from ndld_flow.report.quantities import size
from ndld_flow.report.settings_text import Setting, settings_of


@dataclass(frozen=True)
class TensorView:
    """One input or output as it was measured."""

    name: str
    tensor: str
    data: str


@dataclass(frozen=True)
class ProfileView:
    """One profiled artifact."""

    step: str
    label: str
    backend: str
    providers: tuple[str, ...]
    latency: Latency | None
    """ms, of the timing pass; None when it holds no sample."""
    runs: tuple[tuple[float, ...], ...]
    """Samples in ms, in order, one tuple for each process."""
    throughput: float
    """Passes per second at the median latency; 0 when unknown."""
    load_ms: float
    """Median over processes."""
    peak_memory_bytes: int
    overhead: float | None
    """Latency with the profiler on over latency without; None when layers were not profiled."""
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
    return tuple(_view(step, profile) for step, profile in profiles.items())


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


def _view(step: str, profile: Profile) -> ProfileView:
    latency = describe(profile.latency_ms) if profile.latency_ms else None
    return ProfileView(
        step=short_name(step),
        label=short_name(profile.label),
        backend=short_name(profile.backend),
        providers=tuple(map(short_provider, profile.providers)),
        latency=latency,
        runs=tuple(run.latency_ms for run in profile.runs),
        throughput=1000 / latency.median if latency and latency.median else 0.0,
        load_ms=median([run.load_ms for run in profile.runs]),
        peak_memory_bytes=profile.peak_memory_bytes,
        overhead=_overhead(profile, latency),
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


def _overhead(profile: Profile, latency: Latency | None) -> float | None:
    if not profile.layer_pass_ms or latency is None or latency.median == 0:
        return None
    return median(profile.layer_pass_ms) / latency.median


def _tensor(info: TensorInfo) -> TensorView:
    return TensorView(
        name=short_name(info.name),
        tensor=f"{short_name(info.dtype)} {shape_text(info.shape)}",
        data=short_name(info.data),
    )
