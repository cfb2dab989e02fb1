"""Profiling of models and engines: process runs that take turns, a batch sweep, and a separate pass for layers."""

from __future__ import annotations

import contextlib
import math
import shutil
import tempfile
import time
import uuid
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path

from ndld_flow.accuracy.sequence_runs import refuse_mistakes
from ndld_flow.base.errors import RequestError, naming_step
from ndld_flow.measure.gpu_watch import GpuWatch, watched_gpus
from ndld_flow.measure.measured_profile import Measured, MeasurementSession, describe_feeds, make_profile
from ndld_flow.measure.preflight import disturbance, look_around, read_cpu_time
from ndld_flow.measure.process_runs import ProcessRuns, ProfilingRequest, Side, time_batches
from ndld_flow.measure.stopping import Tally, go_on, stopped_because
from ndld_flow.measure.worker_job import write_feeds, write_steps
from ndld_flow.models.files import model_outputs
from ndld_flow.models.tensors import Array, TensorSpec
from ndld_flow.records.profile import BatchPoint, Profile
from ndld_flow.runtimes.protocol import LayerPass
from ndld_flow.samples.feedback import check_feedback, find_feedback
from ndld_flow.samples.feeds import Feed, make_feeds
from ndld_flow.samples.sample_settings import SampleSettings
from ndld_flow.samples.sequences import Sequences, make_sequences

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
        feeds = steps[0] if steps else make_feeds(specs, request.inputs, request.seed, request.label)
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
        feeds=write_feeds(_arrays(feeds), folder / "inputs"),
        steps=write_steps(map(_arrays, steps[1:]), folder / "steps"),
        feedback={} if sequences is None else sequences.feedback,
        tally=Tally(request.plan, least),
        folder=folder,
        progress=side.progress,
        layers=recording,
        environment=request.session.environment(folder),
    )
    return Measured(side, feeds, batches, runs, look_around(on_gpu))


def _sequences(request: ProfilingRequest, specs: Sequence[TensorSpec]) -> Sequences | None:
    """Return the first sequence of a model with states; None for a model without."""
    if not find_feedback(request.inputs):
        return None
    if request.batches:
        raise RequestError(
            "batches: a sequence is measured at one batch size. Remove `batches`, or the inputs' `from`."
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
