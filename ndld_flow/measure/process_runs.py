"""A request to measure a model, and its process runs: each opens it in a new process and times its share of passes.

Runs end when their medians agree, or the time is used up.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from pydantic import JsonValue

from ndld_flow.base import errors
from ndld_flow.base.quantities import counted, seconds, with_time_left
from ndld_flow.inputs import InputSpec
from ndld_flow.measure import worker
from ndld_flow.measure.worker import Answer, FeedFile, Job, Part, TimingPlan, write_feeds
from ndld_flow.models.tensors import Array
from ndld_flow.processes.launch import ProcessEnd, run_worker_module
from ndld_flow.profiles.compare.intervals import median_interval
from ndld_flow.runtimes.protocol import RecordingPlan, SessionRequest, Timing
from ndld_flow.samples.feedback import Feedback
from ndld_flow.samples.feeds import Feed, make_feeds
from ndld_flow.samples.sample_feeds import make_samples
from ndld_flow.samples.sample_settings import SampleSettings

_FEWEST_TO_TRUST = 5
"""The interval of fewer medians is too short: the whole range of 5 values contains the median with 94 % confidence."""


@dataclass(frozen=True)
class MeasuringPlan:
    """The limits for measuring one model, over all process runs."""

    runs: int = 5
    """Minimum number of process runs."""
    passes: int = 100
    """Minimum number of measured passes, over the minimum number of runs."""
    duration_ms: float = 0.0
    """Minimum time of measured passes, over the minimum number of runs."""
    stable: float = 0.03
    """Continue until the median's confidence interval is within this fraction of it: 0.03 is ±3 %; 0 stops at
    `runs`."""
    budget_ms: float = 20_000.0
    """No run starts after this time of loading, warming up and measuring; each run gets its share of it."""
    warmup_passes: int = 5
    """Minimum number of passes before the measured ones of each run."""
    warmup_ms: float = 200.0
    """Minimum duration of each run's warm-up."""
    sleep_ms: float = 0.0
    """Pause before each measured pass."""

    def share(self, runs: int) -> TimingPlan:
        """Return the plan of the timing pass of one of this many runs."""
        return TimingPlan(
            passes=math.ceil(self.passes / runs),
            duration_ms=self.duration_ms / runs,
            limit_ms=self.budget_ms / runs,
            warmup_passes=self.warmup_passes,
            warmup_ms=self.warmup_ms,
            sleep_ms=self.sleep_ms,
        )


def spread(run_medians_ms: Sequence[float]) -> float | None:
    """Return the relative distance of the 95 % bootstrap interval of the median from it; None for a single run."""
    if len(run_medians_ms) < 2:
        return None
    low, high = median_interval(run_medians_ms)
    median = statistics.median(run_medians_ms)
    return max(high - median, median - low) / median


@dataclass
class Tally:
    """The progress of measuring one model."""

    plan: MeasuringPlan
    least: int
    """Minimum number of process runs: the largest that any of the models measured in turns requests."""
    medians_ms: list[float] = field(default_factory=list)
    used_ms: float = 0.0
    cut_short: bool = False
    """A run reached the limit of its share."""

    def add(self, timing: Timing, used_ms: float) -> None:
        """Count one more process run."""
        self.medians_ms.append(statistics.median(timing.latency_ms))
        self.used_ms += used_ms
        self.cut_short = self.cut_short or timing.limit_reached

    @property
    def is_stable(self) -> bool:
        if not self.plan.stable or len(self.medians_ms) < max(self.least, _FEWEST_TO_TRUST):
            return False
        reached = spread(self.medians_ms)
        return reached is not None and reached <= self.plan.stable

    @property
    def wants_more(self) -> bool:
        """Return whether more runs are needed, regardless of the budget."""
        return len(self.medians_ms) < self.least or (self.plan.stable > 0 and not self.is_stable)


def go_on(tallies: Sequence[Tally]) -> bool:
    """Return whether another round is due. Models that take turns get equally many runs, and share their budgets."""
    used, budget = (sum(ms) for ms in zip(*((t.used_ms, t.plan.budget_ms) for t in tallies), strict=True))
    return used < budget and any(tally.wants_more for tally in tallies)


def stopped_because(tally: Tally, all_tallies: Sequence[Tally]) -> str:
    """Return the reason for stopping, such as `stable: ±1.2 % after 5 runs`."""
    count = len(tally.medians_ms)
    runs = counted(count, "run")
    reached = spread(tally.medians_ms)
    outcome = f"after {runs}" if reached is None else f"{spread_text(reached)} after {runs}"
    if tally.is_stable:
        return f"stable: {outcome}"
    if tally.cut_short or tally.wants_more:
        budget_ms = sum(each.plan.budget_ms for each in all_tallies)
        shared = f" for {len(all_tallies)} models in turns" if len(all_tallies) > 1 else ""
        budget = f"{budget_ms / 1e3:g} s" if budget_ms < 60_000 else seconds(budget_ms / 1e3)
        return f"budget of {budget}{shared} used: {outcome}"
    return f"runs done: {outcome}"


def spread_text(ratio: float) -> str:
    """Return a ratio as `±1.2 %`."""
    percent = ratio * 100
    if percent < 0.095:
        return f"±{percent:.1g} %"
    return f"±{percent:.1f} %" if percent < 99.95 else f"±{percent:,.0f} %"


Progress = Callable[[int, int, str], None]


@dataclass(frozen=True)
class ProfilingRequest:
    """A model to measure, with all settings."""

    path: Path
    label: str
    """Name of the model in messages and reports."""
    digest: str
    inputs: Mapping[str, InputSpec]
    session: SessionRequest
    plan: MeasuringPlan
    layer_passes: int
    """Passes of the layer pass; 0 for none."""
    batches: tuple[int, ...]
    seed: int
    options: dict[str, JsonValue]
    """Every setting in effect, for the record."""
    samples: int = 1
    """Number of samples that passes run in turn."""
    steps: int | None = None
    """Number of steps of a sequence; None for as many as its data has."""
    lock_clocks: bool = False
    """Lock the GPU to its base clock during the measurement."""
    restore_clocks: tuple[int, int] | None = None
    """The lock in MHz that the GPU had before and gets again; None if it had none."""
    sample_gpu: bool = False
    """Sample the GPU during the measurement."""
    values: Mapping[str, Array] | None = None
    """Values of the inputs for rounds, instead of those of `inputs`: a part of a model reads captured ones."""

    def make_feeds(self) -> list[dict[str, Feed]]:
        """Return the values of the inputs in each sample. Raises `RequestError` if they do not fit."""
        specs = self.session.declared_inputs(self.path)
        if self.samples == 1:
            return [make_feeds(specs, self.inputs, self.seed, self.label)]
        wanted = SampleSettings(samples=self.samples, seed=self.seed)
        return [sample.feeds for sample in make_samples(specs, self.inputs, wanted, self.label)]

    def make_values(self) -> list[dict[str, Array]]:
        """Return the same without their descriptions."""
        return [{name: feed.values for name, feed in feeds.items()} for feeds in self.make_feeds()]


@dataclass(frozen=True)
class Side:
    """One of the models that take turns."""

    request: ProfilingRequest
    scratch: Path
    """An existing folder, empty afterwards."""
    progress: Progress
    step: str = ""
    """The step that measures it, for errors."""
    graph: Path | None = None
    """File for the graph that the runtime ran, without large weights; None to write none."""


def run_worker(job: Job, folder: Path, progress: Progress, environment: Mapping[str, str] | None = None) -> Answer:
    """Run a job in a new process with its files in `folder`, which is created; `environment` is added to ours.

    Raises the worker's exception, `ModelError`, `BackendError` or `RequestError`; `KilledError` if it was killed. The
    worker has always ended afterwards; when this process is killed, it ends by itself.
    """
    folder.mkdir(parents=True)
    job.write(folder / worker.JOB)
    ended = run_worker_module(worker.__name__, folder, progress, environment)
    answer = Answer.read(folder)
    if answer is None or answer.error:
        raise failure_of(job, ended)
    return answer


def failure_of(job: Job, ended: ProcessEnd) -> Exception:
    """Return the exception of a measuring process that ended without an answer, or the cause of its death."""
    answer = Answer.read(ended.folder)
    if answer is not None and answer.error:
        error: Exception = getattr(errors, answer.error)(answer.message)
        return error
    names = job.session.names()
    suspect = f"{names.library} or one of its libraries"
    return ended.died("measuring", f"measured {job.model} on {names.device}", suspect, f"{names.crash_advice}.")


@dataclass
class ProcessRuns:
    """The process runs of one model so far."""

    model: Path
    session: SessionRequest
    feeds: Mapping[str, FeedFile]
    tally: Tally
    folder: Path
    progress: Progress
    steps: Sequence[Mapping[str, FeedFile]] = ()
    """Inputs of the further steps of a sequence."""
    feedback: Feedback = field(default_factory=dict)
    layers: RecordingPlan | None = None
    """The recording in each of the first runs, as many as the minimum number of runs."""
    environment: Mapping[str, str] = field(default_factory=dict)
    """Additional environment variables for the processes."""
    answers: list[Answer] = field(default_factory=list)

    @property
    def plan(self) -> MeasuringPlan:
        return self.tally.plan

    def run_once(self) -> None:
        """Time one more process run. Raises as `run_worker` does."""
        number = len(self.answers) + 1
        share = self.plan.share(self.tally.least)
        part = Part(self.feeds, share, steps=tuple(self.steps), feedback=self.feedback)
        recording = None
        if self.layers is not None and number <= self.tally.least:
            recording = replace(self.layers, keep_optimized=number == 1)
        alone = recording is not None and bool(recording.environment)
        job = Job(self.model, self.session.timed(), (part,), None if alone else recording)
        report = self._reporter(number, share.passes)
        report(0, share.passes, "starting a process")
        started = time.perf_counter()
        answer = run_worker(job, self.folder / f"run-{number}", report, self.environment)
        used_ms = (time.perf_counter() - started) * 1e3 - answer.recording_ms
        if recording is not None and alone:
            only_layers = replace(job, layers=recording, times_passes=False)
            variables = {**self.environment, **recording.environment}
            answer.recording = run_worker(only_layers, self.folder / f"layers-{number}", report, variables).recording
        self.tally.add(answer.timings[0], used_ms)
        self.answers.append(answer)

    def report_turn(self) -> None:
        """Report that the model waits while others are measured."""
        before, foreseen = self._passes(0)  # it is unknown if it needs a further turn
        after = f" after run {len(self.answers)}" if self.answers else ""
        self.progress(before, foreseen, f"waits for its turn{after}")

    def _reporter(self, number: int, passes: int) -> Progress:
        """Return a callback of the progress over all runs, as far as known, with the time that they take at the pace of
        the first passes.
        """
        before, foreseen = self._passes(passes)
        started_s, first = time.monotonic(), list[tuple[float, int]]()

        def report(done: int, total: int, what: str) -> None:
            now_s = time.monotonic()
            if done and not first:
                first.append((now_s, done))
            if done > (first[0][1] if first else done) and done < total:
                left_s = (total - done) * (now_s - first[0][0]) / (done - first[0][1])
                what = with_time_left(what, left_s + self._later_runs_s(number, now_s - started_s + left_s))
            self.progress(before + done, foreseen, f"run {number}: {what}")

        return report

    def _later_runs_s(self, number: int, run_s: float) -> float:
        """Return the seconds of the runs after one that takes so many; the budget may allow fewer than the minimum."""
        left_s = (self.plan.budget_ms - self.tally.used_ms) / 1e3
        runs = min(self.tally.least - number, math.ceil(left_s / run_s) - 1)
        return max(0, runs) * run_s

    def _passes(self, passes: int) -> tuple[int, int]:
        """Return the passes so far, and the expected passes of all runs if each has so many."""
        before = sum(len(answer.timings[0].latency_ms) for answer in self.answers)
        least = self.plan.share(self.tally.least).passes * self.tally.least
        return before, max(least, before + passes)


def time_batches(side: ProcessRuns, batches: Mapping[int, Mapping[str, Array]]) -> Answer:
    """Time several batch sizes, which share the budget, in one process run."""
    whole = side.plan.share(1)
    plan = replace(whole, limit_ms=whole.limit_ms / len(batches))
    parts = tuple(
        Part(write_feeds(feeds, side.folder / f"batch-{batch}"), plan, f"batch {batch}: ")
        for batch, feeds in batches.items()
    )
    job = Job(side.model, side.session.timed(), parts)
    return run_worker(job, side.folder / "batches", side.progress, side.environment)
