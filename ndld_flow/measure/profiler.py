"""Profiling of models and engines: process runs that take turns, a batch sweep, and a separate pass for layers.

Their measurements make a profile, with its summary and metrics.
"""

from __future__ import annotations

import contextlib
import math
import shutil
import statistics
import tempfile
import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
from blake3 import blake3
from pydantic import JsonValue

from ndld_flow.accuracy.sequence_runs import refuse_mistakes
from ndld_flow.base.errors import RequestError, naming_step
from ndld_flow.base.quantities import counted, milliseconds, seconds
from ndld_flow.machine.host import describe_machine
from ndld_flow.machine.versions import read_version
from ndld_flow.measure.gpu_watch import GpuWatch, watched_gpus
from ndld_flow.measure.preflight import disturbance, disturbed, doubts, look_around, read_cpu_time
from ndld_flow.measure.process_runs import (
    ProcessRuns,
    ProfilingRequest,
    Side,
    Tally,
    go_on,
    spread,
    spread_text,
    stopped_because,
    time_batches,
)
from ndld_flow.measure.worker import Answer, write_feeds, write_steps
from ndld_flow.models.files import model_outputs
from ndld_flow.models.tensors import Array, TensorSpec
from ndld_flow.records.measurement import STATISTICS, Metric
from ndld_flow.records.profile import BatchPoint, Profile, ProfileRun, Roofs, TensorInfo
from ndld_flow.runtimes.protocol import LayerPass, SessionFacts
from ndld_flow.runtimes.registry import find_settings, settings_of
from ndld_flow.samples.feedback import check_feedback, find_feedback
from ndld_flow.samples.feeds import Feed, make_feeds, note_assumed
from ndld_flow.samples.sample_settings import SampleSettings
from ndld_flow.samples.sequences import Sequences, make_sequences
from ndld_flow.store.digest import digest_file

_LARGEST_GRAPH = 64 << 20
"""Bytes of a graph that is kept: a release that cannot write weights to another file writes them into the graph."""


def measure_sides(sides: Sequence[Side]) -> list[tuple[Profile, str]]:
    """Measure models in turns (A B A B ...) and return each profile with the log of its runtime.

    The requests may be equal, to determine a machine's noise, or different in any way. Each round gives every model one
    process run; rounds continue until all are stable or their budgets are used up. The scratch folders exist, and are
    left empty. Raises `BackendError` when a provider does not load or a measuring process dies, `ModelError` when a
    model is refused or fails, `RequestError` when inputs do not fit.
    """
    least = max(side.request.plan.runs for side in sides)
    with contextlib.ExitStack() as folders:
        measuring = [_prepare(side, least, folders) for side in sides]
        with watched_gpus(sides) as watch:
            session = _take_turns(measuring)
            tallies = [model.runs.tally for model in measuring]
            return [_conclude(model, session, stopped_because(model.runs.tally, tallies), watch) for model in measuring]


def _prepare(side: Side, least: int, folders: contextlib.ExitStack) -> Measured:
    request = side.request
    folder = Path(folders.enter_context(tempfile.TemporaryDirectory(prefix="measuring-", dir=side.scratch)))
    with naming_step(side.step):
        on_gpu = request.session.measured_gpu() is not None
        specs = request.session.declared_inputs(request.path)
        sequences = _sequences(request, specs)
        steps = [] if sequences is None else [step.feeds for step in sequences]
        samples = steps or request.make_feeds()
        # Created before measuring, although used after it: a mistake should show at once.
        batches = {
            batch: make_feeds(specs, request.inputs, request.seed, request.label, batch) for batch in request.batches
        }
    recording = None
    if request.layer_passes:
        recording = request.session.plan_recording(request.path, math.ceil(request.layer_passes / least))
    runs = ProcessRuns(
        model=request.path,
        session=request.session,
        feeds=write_feeds(_arrays(samples[0]), folder / "inputs"),
        steps=write_steps(map(_arrays, samples[1:]), folder / "steps"),
        feedback={} if sequences is None else sequences.feedback,
        tally=Tally(request.plan, least),
        folder=folder,
        progress=side.progress,
        layers=recording,
        environment=request.session.environment(folder),
    )
    return Measured(side, samples[0], batches, runs, look_around(on_gpu))


def _sequences(request: ProfilingRequest, specs: Sequence[TensorSpec]) -> Sequences | None:
    """Return the first sequence of a model with states; None for a model without."""
    if not find_feedback(request.inputs):
        return None
    if request.batches or request.samples > 1:
        setting, what = ("batches", "batch size") if request.batches else ("samples", "sample")
        raise RequestError(
            f"{setting}: a sequence is measured at one {what}. Remove `{setting}`, or the inputs' `from`."
        )
    wanted = SampleSettings(steps=request.steps, samples=1, seed=request.seed)
    sequences = make_sequences(specs, request.inputs, wanted, request.label)
    refuse_mistakes(check_feedback(sequences.feedback, specs, model_outputs(request.path), request.label))
    return sequences


def _take_turns(measuring: Sequence[Measured]) -> MeasurementSession:
    measured_at, started, cpu_before = datetime.now(UTC), time.perf_counter(), read_cpu_time()
    _go_round(measuring)
    during = disturbance(cpu_before, read_cpu_time(), time.perf_counter() - started)
    for model in measuring:
        model.after = look_around("gpus" in model.before)
    began_s = min(model.answers[0].timings[0].began_s for model in measuring)
    return MeasurementSession(uuid.uuid4().hex[:12], measured_at, began_s, during)


def _go_round(measuring: Sequence[Measured]) -> None:
    """Run A, B, ...; A, B, ...: disturbances of the machine affect all models equally."""
    turns = len(measuring) > 1
    while True:
        for model in measuring:
            for other in measuring if turns else ():
                if other is not model:
                    other.runs.report_turn()
            with naming_step(model.side.step):
                model.runs.run_once()
        if not go_on([model.runs.tally for model in measuring]):
            return


def _conclude(model: Measured, session: MeasurementSession, reason: str, watch: GpuWatch) -> tuple[Profile, str]:
    model.stopped_because = reason
    with naming_step(model.side.step):
        model.batches, model.layers = _batches(model), _layers(model)
    timings = [answer.timings[0] for answer in model.answers]
    model.gpu_conditions, model.gpu_notes = watch.describe(model.request, timings)
    if model.layers.layers:
        model.side.progress(0, 0, "measuring the peak performance of the device")
        model.roofs = model.request.session.measure_roofs(model.layers.layers)
    return make_profile(model, session), model.answers[0].log


def _batches(model: Measured) -> tuple[BatchPoint, ...]:
    if not model.batch_feeds:
        return ()
    answer = time_batches(model.runs, {batch: _arrays(feeds) for batch, feeds in model.batch_feeds.items()})
    return tuple(
        BatchPoint(batch=batch, inputs=describe_feeds(feeds), latency_ms=tuple(timing.latency_ms))
        for (batch, feeds), timing in zip(model.batch_feeds.items(), answer.timings, strict=True)
    )


def _layers(model: Measured) -> LayerPass:
    recordings = [Path(answer.recording) for answer in model.answers if answer.recording]
    if model.runs.layers is None or not recordings:
        return LayerPass()
    model.side.progress(0, 0, "reading the layers")
    timings = [answer.timings[0] for answer in model.answers]
    session, target = model.request.session, model.side.graph
    ran = session.executed_graph(recordings) if target is not None else None
    if ran is not None and target is not None and ran.stat().st_size <= _LARGEST_GRAPH:
        shutil.copyfile(ran, target)  # without the file of its weights
    return session.read_layers(model.request.path, recordings, model.runs.layers, timings)


def _arrays(feeds: Mapping[str, Feed]) -> dict[str, Array]:
    return {name: feed.values for name, feed in feeds.items()}


_LONG_FIRST_PASS_MS = 1000.0
_LONG_FIRST_PASS = 20.0
"""Times the median of later passes."""


@dataclass(frozen=True)
class MeasurementSession:
    """Facts shared by all models of a measurement session."""

    id: str
    measured_at: datetime
    began_s: float
    """`time.monotonic` at the first measured pass of all."""
    during: dict[str, JsonValue]
    """Load of other processes during the session."""


@dataclass
class Measured:
    """One model, and all its measurements; what follows its process runs is added at the end."""

    side: Side
    feeds: Mapping[str, Feed]
    batch_feeds: Mapping[int, Mapping[str, Feed]]
    runs: ProcessRuns
    before: dict[str, JsonValue]
    after: dict[str, JsonValue] = field(default_factory=dict)
    stopped_because: str = ""
    batches: tuple[BatchPoint, ...] = ()
    layers: LayerPass = field(default_factory=LayerPass)
    roofs: Roofs | None = None
    gpu_conditions: Mapping[str, JsonValue] = field(default_factory=dict)
    gpu_notes: Sequence[str] = ()

    @property
    def request(self) -> ProfilingRequest:
        return self.side.request

    @property
    def answers(self) -> Sequence[Answer]:
        """One for each process run."""
        return self.runs.answers

    @property
    def steps(self) -> int:
        """Number of steps of the sequence that passes repeat; 0 without one."""
        return len(self.runs.steps) + 1 if self.runs.feedback else 0


def make_profile(measured: Measured, session: MeasurementSession) -> Profile:
    """Return the profile of one model."""
    request, layers, first = measured.request, measured.layers, measured.answers[0]
    built_file = request.session.built_file()
    return Profile(
        label=request.label,
        model_digest=request.digest,
        engine_digest="" if built_file is None else digest_file(built_file),
        backend=request.session.names().backend,
        runtime=request.session.traits(first.devices),
        providers=tuple(first.devices),
        machine=describe_machine(),
        versions=request.session.library_versions(first.versions)
        | {name: read_version(name) for name in ("ndld-flow", "numpy", "onnx")},
        options=request.options,
        conditions=_conditions(measured, session),
        inputs=describe_feeds(measured.feeds),
        outputs=tuple(TensorInfo(name=name, dtype=dtype, shape=tuple(dims)) for name, dtype, dims in first.outputs),
        input_digests=_digests(measured.feeds),
        profiler="off",
        warmup_passes=first.timings[0].warmup_passes,
        warmup_ms=first.timings[0].warmup_ms,
        runs=tuple(_run(answer, session.began_s) for answer in measured.answers),
        sequence_steps=measured.steps,
        batches=measured.batches,
        layers=layers.layers,
        layer_runs=layers.layer_runs,
        timeline=layers.timeline,
        timeline_basis=layers.timeline_basis,
        roofs=measured.roofs,
        layer_pass_ms=layers.pass_ms,
        layers_wait_for_device=layers.waits_for_device,
        measured_at=session.measured_at,
        session=session.id,
        peak_memory_bytes=round(statistics.median(answer.peak_bytes for answer in measured.answers)),
        stopped_because=measured.stopped_because,
        notes=(
            *first.notes,
            *note_assumed(measured.feeds),
            *([f"passes run {request.samples} samples in turn"] if request.samples > 1 else []),
            *_sequence_notes(measured),
            *_first_pass_note(measured),
            *doubts(measured.before),
            *disturbed(session.during),
            *layers.notes,
            *([] if first.peak_bytes else ["this system does not report memory use"]),
            *request.session.notes(
                SessionFacts(tuple(first.devices), (), (), facts=first.facts), copied=bool(first.timings[0].h2d_ms)
            ),
            *measured.gpu_notes,
        ),
    )


def _sequence_notes(measured: Measured) -> list[str]:
    if not measured.steps:
        return []
    fewest = min(len(answer.timings[0].latency_ms) for answer in measured.answers)
    notes = [f"a pass is a step of a sequence of {measured.steps:,} steps, and states are copied between passes"]
    if measured.layers.layers:
        notes.append("layers are those of the first step")
    if fewest < measured.steps:
        notes.append(f"the budget ended a process run after {fewest:,} of the {measured.steps:,} steps")
    return notes


def _first_pass_note(measured: Measured) -> list[str]:
    """Return a note if the first pass of a process takes far longer than later ones."""
    timings = [answer.timings[0] for answer in measured.answers]
    first_ms = statistics.median(timing.first_pass_ms for timing in timings)
    usual_ms = statistics.median(statistics.median(timing.latency_ms) for timing in timings)
    if first_ms < _LONG_FIRST_PASS_MS or first_ms < _LONG_FIRST_PASS * usual_ms:
        return []
    return [
        f"the first pass of a process takes {seconds(first_ms / 1e3)}, a later one {milliseconds(usual_ms)}: the "
        "runtime chooses algorithms and allocates memory in it"
    ]


def describe_feeds(feeds: Mapping[str, Feed]) -> tuple[TensorInfo, ...]:
    return tuple(
        TensorInfo(name=name, dtype=feed.values.dtype.name, shape=feed.values.shape, data=feed.description)
        for name, feed in feeds.items()
    )


def _digests(feeds: Mapping[str, Feed]) -> dict[str, str]:
    """Return digests of values from files, rounded to fp16: two precisions of a model read the same file."""
    read = {name: feed.values for name, feed in feeds.items() if feed.is_from_file}
    with np.errstate(all="ignore"):
        halves = {
            name: values.astype(np.float16) if values.dtype.kind in "fV" else values for name, values in read.items()
        }
    return {name: blake3(values.tobytes()).hexdigest() for name, values in halves.items()}


def _run(answer: Answer, began_s: float) -> ProfileRun:
    timing = answer.timings[0]
    return ProfileRun(
        latency_ms=tuple(timing.latency_ms),
        load_ms=answer.load_ms,
        first_pass_ms=timing.first_pass_ms,
        new_size_ms=tuple(timing.new_size_ms),
        peak_memory_bytes=answer.peak_bytes,
        started_s=timing.began_s - began_s,
        starts_ms=tuple(timing.starts_ms),
        enqueue_ms=tuple(timing.enqueue_ms),
        h2d_ms=tuple(timing.h2d_ms),
        compute_ms=tuple(timing.compute_ms or (timing.latency_ms if timing.h2d_ms else ())),
        d2h_ms=tuple(timing.d2h_ms),
    )


def _conditions(measured: Measured, session: MeasurementSession) -> dict[str, JsonValue]:
    first = measured.answers[0]
    process: dict[str, JsonValue] = {"threads": first.threads, "affinity": [*first.affinity]}
    device: dict[str, JsonValue] = {"device": {**first.facts}} if first.facts else {}
    around: dict[str, JsonValue] = {"before": measured.before, "after": measured.after, "during": session.during}
    return {**around, "process": process, **device, **measured.gpu_conditions}


def _spread(profile: Profile) -> float | None:
    return spread([run.median_ms for run in profile.runs])


def metrics_of(profile: Profile) -> dict[str, Metric]:
    """Return the metrics that gates may name."""
    latency = profile.latency
    metrics = {
        f"latency.{word}": Metric(value=getattr(latency, f"{word}_ms"), unit="ms") for word in (*STATISTICS, "std")
    }
    metrics["latency.cov"] = Metric(value=latency.cov)
    metrics["throughput.median"] = Metric(value=profile.throughput_per_s, unit="1/s")
    firsts = {info.shape[0] for info in profile.inputs if info.shape}
    items = next(iter(firsts)) if len(firsts) == 1 else 1
    metrics["items_per_pass"] = Metric(value=items * profile.concurrent_inferences)
    if len(firsts) == 1:  # the items of one inference
        items_per_s = metrics["throughput.median"].value * items
        metrics["throughput.items"] = Metric(value=items_per_s, unit="1/s")
    for place, summary in (("first_step", profile.first_step), ("later_steps", profile.later_steps)):
        if summary is not None:
            metrics |= {
                f"{place}.latency.{word}": Metric(value=getattr(summary, f"{word}_ms"), unit="ms")
                for word in ("median", "min", "p95")
            }
    metrics["latency.runs"] = Metric(value=len(profile.runs))
    reached = _spread(profile)
    if reached is not None:
        metrics["latency.spread"] = Metric(value=reached)
    new_size_ms = profile.new_size_ms
    metrics |= {} if new_size_ms is None else {"new_size_ms": Metric(value=new_size_ms, unit="ms")}
    metrics["load_ms"] = Metric(value=statistics.median(run.load_ms for run in profile.runs), unit="ms")
    if profile.peak_memory_bytes:
        metrics["memory.peak_bytes"] = Metric(value=profile.peak_memory_bytes, unit="bytes")
    if profile.layers:
        metrics["layers.sum"] = Metric(value=profile.layers_sum_ms, unit="ms")
        metrics["layers.count"] = Metric(value=len(profile.layers))
        metrics["profiler.overhead"] = Metric(value=profile.profiler_overhead)
    metrics |= profile.tensor_cores.metrics if profile.tensor_cores is not None else {}
    metrics |= _device_metrics(profile)
    for point in profile.batches:
        items_per_s = point.items_per_s * profile.concurrent_inferences
        metrics[f"batch_{point.batch}.latency.median"] = Metric(value=point.latency.median_ms, unit="ms")
        metrics[f"batch_{point.batch}.throughput.median"] = Metric(value=items_per_s, unit="1/s")
    return metrics


def _device_metrics(profile: Profile) -> dict[str, Metric]:
    """Return times by the device's clock, and the device memory of the engine."""
    metrics = {}
    for name in ("enqueue", "h2d", "compute", "d2h"):
        medians = [statistics.median(times_ms) for run in profile.runs if (times_ms := getattr(run, f"{name}_ms"))]
        if medians:
            metrics[f"{name}.median"] = Metric(value=statistics.median(medians), unit="ms")
    if isinstance(used := profile.device_fact("device_used_bytes"), int):
        metrics["memory.device_bytes"] = Metric(value=used, unit="bytes")
    return metrics


def summarize(profile: Profile) -> str:
    """Return `median 3.2 ms ±1.2 % over 5 runs (790 passes) on CPU, 86 layers`."""
    latency, runs = profile.latency, len(profile.runs)
    provider = profile.providers[0].removesuffix("ExecutionProvider")
    reached = _spread(profile)
    within = "" if reached is None else f" {spread_text(reached)}"
    summary = f"median {milliseconds(latency.median_ms)}{within} over {runs} run{'' if runs == 1 else 's'}"
    summary += f" ({latency.sample_count} pass{'' if latency.sample_count == 1 else 'es'}) on {provider}"
    runtime = settings_of(profile.backend)
    if runtime is not None and runtime is not find_settings()[0] and runtime.title not in provider:
        summary += f" in {runtime.title}"
        precision = profile.device_fact("inference_precision")
        summary += f", {precision}" if precision else ""
    if profile.stopped_because.startswith("budget"):
        summary += ", budget used"
    if profile.first_step is not None and profile.later_steps is not None:
        first, later = (milliseconds(each.median_ms) for each in (profile.first_step, profile.later_steps))
        summary += f", first step {first}, later steps {later}"
    return f"{summary}, {counted(len(profile.layers), 'layer')}" if profile.layers else summary
