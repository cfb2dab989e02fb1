"""Profile a model in ONNX Runtime: a timing pass, a batch sweep, and a layer pass in a session of its own."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from pydantic import JsonValue

from ndld_flow.backends.measuring.layer_pass import LayerPass, measure_layers
from ndld_flow.backends.measuring.process_memory import PeakMemory
from ndld_flow.backends.measuring.timing_pass import Timing, TimingPlan, time_passes
from ndld_flow.backends.models.declared_inputs import model_inputs
from ndld_flow.backends.models.tensors import Array, TensorSpec, fix_dimensions
from ndld_flow.backends.running.execution_providers import CPU
from ndld_flow.backends.running.feeds import Feed, make_feeds, note_assumed
from ndld_flow.backends.running.onnxruntime_session import BoundRun, OpenModel, SessionSettings, open_model
from ndld_flow.inputs import InputSpec
from ndld_flow.machine import describe_machine, read_conditions
from ndld_flow.records.profile import BatchPoint, Profile, ProfileRun, TensorInfo
from ndld_flow.versions import read_version

Progress = Callable[[int, int, str], None]


@dataclass(frozen=True)
class ProfilingRequest:
    """What to measure, and how."""

    path: Path
    label: str
    """What a person calls it."""
    digest: str
    inputs: Mapping[str, InputSpec]
    session: SessionSettings
    timing: TimingPlan
    layer_passes: int
    """0 for no layer pass."""
    batches: tuple[int, ...]
    seed: int
    options: dict[str, JsonValue]
    """Every setting, for the record."""


@dataclass(frozen=True)
class _Timed:
    """What the session without profiler gave."""

    timing: Timing
    load_ms: float
    providers: tuple[str, ...]
    outputs: tuple[TensorInfo, ...]
    batches: tuple[BatchPoint, ...]
    peak_bytes: int
    log: str


def profile_model(request: ProfilingRequest, scratch: Path, progress: Progress) -> tuple[Profile, str]:
    """The profile, and what ONNX Runtime had to say while it loaded the model.

    Raises `BackendError` when the provider does not load, `ModelError` when the model is refused or fails,
    `RequestError` when the inputs do not fit it.
    """
    specs = fix_dimensions(model_inputs(request.path), request.session.free_dimensions)
    feeds = make_feeds(specs, request.inputs, request.seed, request.label)
    before = read_conditions()
    timed = _time(request, specs, feeds, progress)
    layers = LayerPass((), (), ())
    if request.layer_passes:
        layers = measure_layers(
            request.path,
            request.session,
            _arrays(feeds),
            request.layer_passes,
            scratch,
            lambda done, total: progress(done, total, f"layer pass {done} of {total}"),
        )
    profile = Profile(
        label=request.label,
        model_digest=request.digest,
        backend="onnxruntime",
        providers=timed.providers,
        machine=describe_machine(),
        versions=_versions(),
        options=request.options,
        conditions={"before": before, "after": read_conditions()},
        inputs=_described(feeds),
        outputs=timed.outputs,
        warmup_passes=timed.timing.warmup_passes,
        warmup_ms=timed.timing.warmup_ms,
        runs=(ProfileRun(latency_ms=timed.timing.latency_ms, load_ms=timed.load_ms),),
        batches=timed.batches,
        layers=layers.layers,
        layer_pass_ms=layers.pass_ms,
        peak_memory_bytes=timed.peak_bytes,
        stopped_because=timed.timing.stopped_because,
        notes=(*note_assumed(feeds), *layers.notes, *_about_memory(timed)),
    )
    return profile, timed.log


def _time(
    request: ProfilingRequest, specs: tuple[TensorSpec, ...], feeds: Mapping[str, Feed], progress: Progress
) -> _Timed:
    with PeakMemory() as memory:
        progress(0, request.timing.passes, "loading")
        model = open_model(request.path, request.session)
        bound = model.bind(_arrays(feeds), on_device=True)
        progress(0, request.timing.passes, "warming up")
        timing = time_passes(
            bound.once, request.timing, lambda done, total: progress(done, total, f"pass {done} of {total}")
        )
    return _Timed(
        timing=timing,
        load_ms=model.load_ms,
        providers=model.providers,
        outputs=_outputs(bound),
        batches=tuple(_time_batch(request, model, specs, batch, progress) for batch in request.batches),
        peak_bytes=memory.peak_bytes,
        log=model.log,
    )


def _time_batch(
    request: ProfilingRequest, model: OpenModel, specs: tuple[TensorSpec, ...], batch: int, progress: Progress
) -> BatchPoint:
    feeds = make_feeds(specs, request.inputs, request.seed, request.label, batch)
    bound = model.bind(_arrays(feeds), on_device=True)
    timing = time_passes(
        bound.once, request.timing, lambda done, total: progress(done, total, f"batch {batch}: pass {done} of {total}")
    )
    return BatchPoint(batch=batch, inputs=_described(feeds), latency_ms=timing.latency_ms)


def _about_memory(timed: _Timed) -> tuple[str, ...]:
    if not timed.peak_bytes:
        return ("this system does not tell how much memory was used",)
    on_host = timed.providers[0] == CPU
    return () if on_host else ("peak memory is the host's: what lies on the device is not counted",)


def _arrays(feeds: Mapping[str, Feed]) -> dict[str, Array]:
    return {name: feed.values for name, feed in feeds.items()}


def _described(feeds: Mapping[str, Feed]) -> tuple[TensorInfo, ...]:
    return tuple(
        TensorInfo(name=name, dtype=feed.values.dtype.name, shape=feed.values.shape, data=feed.description)
        for name, feed in feeds.items()
    )


def _outputs(bound: BoundRun) -> tuple[TensorInfo, ...]:
    return tuple(
        TensorInfo(name=name, dtype=dtype, shape=shape) for name, (dtype, shape) in bound.output_shapes().items()
    )


def _versions() -> dict[str, str]:
    onnxruntime, _, version = read_version("onnxruntime").partition(" ")
    others = {name: read_version(name) for name in ("ndld-flow", "numpy", "onnx")}
    return {onnxruntime: version} | others
