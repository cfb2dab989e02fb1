"""Profile models in ONNX Runtime: process runs that take turns, a batch sweep, and a layer pass of its own."""

from __future__ import annotations

import contextlib
import math
import tempfile
import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from pydantic import JsonValue

from ndld_flow.backends.measuring.device_roofs import measure_roofs
from ndld_flow.backends.measuring.layer_pass import LayerPass, count_events, read_layers
from ndld_flow.backends.measuring.layer_recording import OPTIMISED, RecordingPlan
from ndld_flow.backends.measuring.measured_profile import Measured, Sitting, describe_feeds, make_profile
from ndld_flow.backends.measuring.preflight import disturbance, look_around, read_cpu_time
from ndld_flow.backends.measuring.process_runs import ProcessRuns, Progress, time_batches
from ndld_flow.backends.measuring.profiling_request import ProfilingRequest, Side
from ndld_flow.backends.measuring.stopping import Tally, go_on, stopped_because
from ndld_flow.backends.measuring.worker_job import Answer, write_feeds
from ndld_flow.backends.models.declared_inputs import model_inputs
from ndld_flow.backends.models.tensors import Array, fix_dimensions
from ndld_flow.backends.running.execution_providers import CPU, full_name
from ndld_flow.backends.running.feeds import Feed, make_feeds
from ndld_flow.records.profile import BatchPoint, Profile, Roofs


@dataclass
class _Measuring:
    """One side while it is measured."""

    side: Side
    feeds: Mapping[str, Feed]
    batches: Mapping[int, Mapping[str, Feed]]
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
    with side.naming_errors():
        on_gpu = full_name(request.session.provider) != CPU
        specs = fix_dimensions(model_inputs(request.path), request.session.free_dimensions)
        feeds = make_feeds(specs, request.inputs, request.seed, request.label)
        # Before measuring, though they are needed after it: a mistake should cost no time.
        batches = {
            batch: make_feeds(specs, request.inputs, request.seed, request.label, batch) for batch in request.batches
        }
    runs = ProcessRuns(
        model=request.path,
        session=request.session,
        feeds=write_feeds(_arrays(feeds), folder / "inputs"),
        tally=Tally(request.plan, least),
        folder=folder,
        progress=side.progress,
        layers=_recording_plan(request, least),
    )
    return _Measuring(side, feeds, batches, runs, look_around(on_gpu), {})


def _recording_plan(request: ProfilingRequest, runs: int) -> RecordingPlan | None:
    """What each process run records."""
    if not request.layer_passes:
        return None
    return RecordingPlan(math.ceil(request.layer_passes / runs), count_events(request.path))


def _take_turns(measuring: Sequence[_Measuring]) -> Sitting:
    measured_at, started, cpu_before = datetime.now(UTC), time.perf_counter(), read_cpu_time()
    _go_round(measuring)
    during = disturbance(cpu_before, read_cpu_time(), time.perf_counter() - started)
    for one in measuring:
        one.after = look_around("gpus" in one.before)
    began_s = min(one.first.timings[0].began_s for one in measuring)
    return Sitting(uuid.uuid4().hex[:12], measured_at, began_s, during)


def _go_round(measuring: Sequence[_Measuring]) -> None:
    """A's first run, B's first run, ...; A's second run, ...: what the machine does meanwhile hits them alike."""
    while True:
        for one in measuring:
            with one.side.naming_errors():
                one.runs.run_once()
        if not go_on([one.runs.tally for one in measuring]):
            return


def _conclude(one: _Measuring, sitting: Sitting, reason: str) -> tuple[Profile, str]:
    with one.side.naming_errors():
        batches, layers = _batches(one), _layers(one)
    found = Measured(
        request=one.request,
        feeds=one.feeds,
        answers=one.runs.answers,
        stopped_because=reason,
        before=one.before,
        after=one.after,
        batches=batches,
        layers=layers,
        roofs=_roofs(one, layers),
    )
    return make_profile(found, sitting), one.first.log


def _batches(one: _Measuring) -> tuple[BatchPoint, ...]:
    if not one.batches:
        return ()
    answer = time_batches(one.runs, {batch: _arrays(feeds) for batch, feeds in one.batches.items()})
    return tuple(
        BatchPoint(batch=batch, inputs=describe_feeds(feeds), latency_ms=tuple(timing.latency_ms))
        for (batch, feeds), timing in zip(one.batches.items(), answer.timings, strict=True)
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


def _arrays(feeds: Mapping[str, Feed]) -> dict[str, Array]:
    return {name: feed.values for name, feed in feeds.items()}
