"""Profile models in ONNX Runtime: process runs that take turns, a batch sweep, and a layer pass of its own."""

from __future__ import annotations

import contextlib
import math
import tempfile
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from pydantic import JsonValue

from ndld_flow.backends.measuring.device_roofs import measure_roofs
from ndld_flow.backends.measuring.layer_pass import LayerPass, count_events, read_layers
from ndld_flow.backends.measuring.layer_recording import OPTIMISED, RecordingPlan
from ndld_flow.backends.measuring.preflight import disturbance, disturbed, doubts, look_around, read_cpu_time
from ndld_flow.backends.measuring.process_runs import ProcessRuns, Progress, time_batches
from ndld_flow.backends.measuring.stopping import MeasuringPlan, Tally, go_on, stopped_because
from ndld_flow.backends.measuring.worker_job import Answer, write_feeds
from ndld_flow.backends.models.declared_inputs import model_inputs
from ndld_flow.backends.models.tensors import Array, TensorSpec, fix_dimensions
from ndld_flow.backends.running.execution_providers import CPU, full_name
from ndld_flow.backends.running.feeds import Feed, make_feeds, note_assumed
from ndld_flow.backends.running.onnxruntime_session import SessionSettings
from ndld_flow.errors import RequestError
from ndld_flow.inputs import InputSpec
from ndld_flow.machine import describe_machine
from ndld_flow.records.profile import BatchPoint, Profile, ProfileRun, Roofs, TensorInfo
from ndld_flow.versions import read_version


@dataclass(frozen=True)
class ProfilingRequest:
    """What to measure, and how."""

    path: Path
    label: str
    """What a person calls it."""
    digest: str
    inputs: Mapping[str, InputSpec]
    session: SessionSettings
    plan: MeasuringPlan
    layer_passes: int
    """0 for no layer pass."""
    batches: tuple[int, ...]
    seed: int
    options: dict[str, JsonValue]
    """Every setting, for the record."""


@dataclass(frozen=True)
class Side:
    """One of those that take turns."""

    request: ProfilingRequest
    scratch: Path
    """An existing folder; nothing is left in it."""
    progress: Progress
    called: str = ""
    """Put before its errors, such as `step speed`."""


@dataclass(frozen=True)
class _Sitting:
    """What all that take turns have in common."""

    id: str
    measured_at: datetime
    began_s: float
    during: dict[str, JsonValue]


@dataclass
class _Measuring:
    """One side while it is measured."""

    side: Side
    specs: tuple[TensorSpec, ...]
    feeds: Mapping[str, Feed]
    runs: ProcessRuns
    before: dict[str, JsonValue]
    after: dict[str, JsonValue]

    @property
    def request(self) -> ProfilingRequest:
        return self.side.request

    @property
    def first(self) -> Answer:
        return self.runs.answers[0]


def measure_in_turns(
    requests: Sequence[ProfilingRequest], scratch: Path, progress: Progress
) -> list[tuple[Profile, str]]:
    """Measure models in turns (A B A B ...): their profiles, each with what ONNX Runtime said while loading it.

    The requests may be equal (that learns a machine's noise) or differ in anything. Each round gives every model one
    process run; rounds go on until all are stable or their budgets are used up. `progress(done, total, what)` tells of
    one model at a time. `scratch` is an existing folder in which nothing is left.
    Raises `BackendError` when a provider does not load or a measuring process dies, `ModelError` when a model is
    refused or fails, `RequestError` when inputs do not fit.
    """

    def labelled(label: str) -> Progress:
        if len(requests) == 1:
            return progress
        return lambda done, total, what: progress(done, total, f"{label}, {what}")

    return measure_sides([Side(request, scratch, labelled(request.label)) for request in requests])


def measure_sides(sides: Sequence[Side]) -> list[tuple[Profile, str]]:
    """`measure_in_turns` where each side has its own scratch folder, progress and name in errors."""
    least = max(side.request.plan.runs for side in sides)
    with contextlib.ExitStack() as folders:
        measuring = [_prepare(side, least, folders) for side in sides]
        sitting = _take_turns(measuring)
        tallies = [one.runs.tally for one in measuring]
        return [_conclude(one, sitting, stopped_because(one.runs.tally, tallies)) for one in measuring]


def _prepare(side: Side, least: int, folders: contextlib.ExitStack) -> _Measuring:
    request = side.request
    folder = Path(folders.enter_context(tempfile.TemporaryDirectory(prefix="measuring-", dir=side.scratch)))
    with _naming(side):
        on_gpu = full_name(request.session.provider) != CPU
        specs = fix_dimensions(model_inputs(request.path), request.session.free_dimensions)
        feeds = make_feeds(specs, request.inputs, request.seed, request.label)
    runs = ProcessRuns(
        model=request.path,
        session=request.session,
        feeds=write_feeds(_arrays(feeds), folder / "inputs"),
        tally=Tally(request.plan, least),
        folder=folder,
        progress=side.progress,
        layers=_recording_plan(request, least),
    )
    return _Measuring(side, specs, feeds, runs, look_around(on_gpu), {})


def _recording_plan(request: ProfilingRequest, runs: int) -> RecordingPlan | None:
    """What each process run records."""
    if not request.layer_passes:
        return None
    return RecordingPlan(math.ceil(request.layer_passes / runs), count_events(request.path))


def _take_turns(measuring: Sequence[_Measuring]) -> _Sitting:
    measured_at, started, cpu_before = datetime.now(UTC), time.perf_counter(), read_cpu_time()
    _go_round(measuring)
    during = disturbance(cpu_before, read_cpu_time(), time.perf_counter() - started)
    for one in measuring:
        one.after = look_around("gpus" in one.before)
    began_s = min(one.first.timings[0].began_s for one in measuring)
    return _Sitting(uuid.uuid4().hex[:12], measured_at, began_s, during)


def _go_round(measuring: Sequence[_Measuring]) -> None:
    """A's first run, B's first run, ...; A's second run, ...: what the machine does meanwhile hits them alike."""
    while True:
        for one in measuring:
            with _naming(one.side):
                one.runs.run_once()
        if not go_on([one.runs.tally for one in measuring]):
            return


def _conclude(one: _Measuring, sitting: _Sitting, reason: str) -> tuple[Profile, str]:
    request, first = one.request, one.first
    with _naming(one.side):
        batches = _batches(one)
        layers = _layers(one)
    profile = Profile(
        label=request.label,
        model_digest=request.digest,
        backend="onnxruntime",
        providers=tuple(first.providers),
        machine=describe_machine(),
        versions=_versions(),
        options=request.options,
        conditions=_conditions(one, sitting),
        inputs=_described(one.feeds),
        outputs=tuple(TensorInfo(name=name, dtype=dtype, shape=tuple(dims)) for name, dtype, dims in first.outputs),
        warmup_passes=first.timings[0].warmup_passes,
        warmup_ms=first.timings[0].warmup_ms,
        runs=tuple(_run(answer, sitting.began_s) for answer in one.runs.answers),
        batches=batches,
        layers=layers.layers,
        layer_runs=layers.layer_runs,
        timeline=layers.timeline,
        timeline_basis=layers.timeline_basis,
        roofs=_roofs(one, layers),
        layer_pass_ms=layers.pass_ms,
        measured_at=sitting.measured_at,
        sitting=sitting.id,
        peak_memory_bytes=max(answer.peak_bytes for answer in one.runs.answers),
        stopped_because=reason,
        notes=(
            *note_assumed(one.feeds),
            *doubts(one.before),
            *disturbed(sitting.during),
            *layers.notes,
            *_about_device(first),
        ),
    )
    return profile, first.log


def _run(answer: Answer, began_s: float) -> ProfileRun:
    timing = answer.timings[0]
    return ProfileRun(
        latency_ms=tuple(timing.latency_ms),
        load_ms=answer.load_ms,
        peak_memory_bytes=answer.peak_bytes,
        started_s=timing.began_s - began_s,
        starts_ms=tuple(timing.starts_ms),
        h2d_ms=tuple(timing.h2d_ms),
        compute_ms=tuple(timing.latency_ms) if timing.h2d_ms else (),
        d2h_ms=tuple(timing.d2h_ms),
    )


def _batches(one: _Measuring) -> tuple[BatchPoint, ...]:
    request = one.request
    if not request.batches:
        return ()
    feeds = {
        batch: make_feeds(one.specs, request.inputs, request.seed, request.label, batch) for batch in request.batches
    }
    answer = time_batches(one.runs, {batch: _arrays(fed) for batch, fed in feeds.items()})
    return tuple(
        BatchPoint(batch=batch, inputs=_described(fed), latency_ms=tuple(timing.latency_ms))
        for (batch, fed), timing in zip(feeds.items(), answer.timings, strict=True)
    )


def _layers(one: _Measuring) -> LayerPass:
    plan, answers = one.runs.layers, one.runs.answers
    if plan is None:
        return LayerPass()
    recordings = [Path(answer.recording) for answer in answers if answer.recording]
    one.side.progress(0, 0, "reading the layers")
    return read_layers(
        one.request.path,
        recordings,
        recordings[0].parent / OPTIMISED,
        plan,
        parallel=one.request.session.execution == "parallel",
    )


def _roofs(one: _Measuring, layers: LayerPass) -> Roofs | None:
    if not layers.layers:
        return None
    one.side.progress(0, 0, "measuring what the device can do")
    return measure_roofs(one.request.session, layers.layers)


def _conditions(one: _Measuring, sitting: _Sitting) -> dict[str, JsonValue]:
    process: dict[str, JsonValue] = {"threads": one.first.threads, "affinity": [*one.first.affinity]}
    return {"before": one.before, "after": one.after, "during": sitting.during, "process": process}


def _about_device(answer: Answer) -> Iterator[str]:
    if not answer.peak_bytes:
        yield "this system does not tell how much memory was used"
    elif answer.providers[0] != CPU:
        yield "peak memory is the host's: what lies on the device is not counted"
    if answer.timings[0].h2d_ms:
        yield "latency is that of the run on the device; copies from and to the host's memory are told beside it"


@contextlib.contextmanager
def _naming(side: Side) -> Iterator[None]:
    """Let errors say which side it was."""
    try:
        yield
    except RequestError as error:
        if not side.called:
            raise
        raise type(error)(f"{side.called}: {error}") from error


def _arrays(feeds: Mapping[str, Feed]) -> dict[str, Array]:
    return {name: feed.values for name, feed in feeds.items()}


def _described(feeds: Mapping[str, Feed]) -> tuple[TensorInfo, ...]:
    return tuple(
        TensorInfo(name=name, dtype=feed.values.dtype.name, shape=feed.values.shape, data=feed.description)
        for name, feed in feeds.items()
    )


def _versions() -> dict[str, str]:
    onnxruntime, _, version = read_version("onnxruntime").partition(" ")
    others = {name: read_version(name) for name in ("ndld-flow", "numpy", "onnx")}
    return {onnxruntime: version} | others
