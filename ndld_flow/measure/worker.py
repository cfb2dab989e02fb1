"""A measuring process: reads a job, opens its model, times passes, writes an answer and ends.

`python -P -m ndld_flow.measure.worker FOLDER` reads `FOLDER/job.json`, writes `FOLDER/answer.json`, and reports its
progress on standard output: one line `DONE TOTAL WHAT` at a time. It ends when its standard input does, so that no
process is left when its parent is killed.

The process contains only the model and its inputs, and imports few modules, because every run starts one.
"""

from __future__ import annotations

import json
import math
import os
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol

import numpy as np

from ndld_flow.base.errors import RequestError
from ndld_flow.base.garbage_collection import paused_garbage_collection
from ndld_flow.measure.samples_in_turn import SamplesInTurn, bind_samples
from ndld_flow.models.tensors import Array, numpy_dtype
from ndld_flow.processes import worker as process
from ndld_flow.processes.worker import ReportProgress
from ndld_flow.runtimes.protocol import (
    Binding,
    DeviceTimes,
    HostBinding,
    RecordingPlan,
    Session,
    SessionRequest,
    Timing,
)
from ndld_flow.runtimes.registry import find_runtime
from ndld_flow.samples.feedback import FedFrom, Feedback

_REPORT_EVERY_NS = 100_000_000


@dataclass(frozen=True)
class TimingPlan:
    """The extent of the timing pass of one process run."""

    passes: int
    """Minimum number of measured passes."""
    duration_ms: float = 0.0
    """Minimum duration of measuring."""
    limit_ms: float = 0.0
    """Maximum duration of warm-up and measuring together, after the first pass; 0 for no limit.

    One pass is always measured. The first warm-up pass does not count: on a GPU it takes seconds, in which the runtime
    searches for algorithms, and only milliseconds would be left for passes."""
    warmup_passes: int = 0
    """Minimum number of passes before the measured ones."""
    warmup_ms: float = 0.0
    """Minimum duration of the warm-up, within half of the limit."""
    sleep_ms: float = 0.0
    """Pause before each measured pass."""


class SequencePasses(Protocol):
    """Passes that are the steps of a sequence, or samples in turn; it starts again after the last one."""

    count: int
    """Number of steps or samples."""

    def restart(self) -> None:
        """Let the next pass be the first step."""

    def prepare(self) -> None:
        """Feed the next step, outside of the measured time."""


def time_passes(
    binding: Binding, plan: TimingPlan, progress: Callable[[int, int], None], steps: SequencePasses | None = None
) -> Timing:
    """Warm up, then measure passes of a binding, each with its copies and the times by the device's clock.

    `progress(done, total)` is called between passes, at most ten times a second, with the number of passes that the
    limits allow at the pace so far. With `steps`, measuring begins at the first step, and ends after the last one
    unless the limit is reached before.
    """
    clock = time.perf_counter_ns
    timing = Timing()
    _warm_up(binding, plan, timing, steps)
    warmed_ms = timing.warmup_ms - timing.first_pass_ms
    if steps:
        steps.restart()
    with paused_garbage_collection():
        timing.began_s = time.monotonic()
        started = reported = clock()
        while True:
            if plan.sleep_ms:
                time.sleep(plan.sleep_ms / 1e3)
            _feed(binding, timing, steps)
            before = clock()
            binding.run()
            after = clock()
            timing.latency_ms.append((after - before) / 1e6)
            timing.starts_ms.append((before - started) / 1e6)
            timing.add(binding.device_times())
            if binding.can_copy:
                timing.add(DeviceTimes(d2h_ms=_duration_ms(binding.copy_out)))
            is_enough = _is_enough(timing, plan, (after - started) / 1e6, steps)
            if not is_enough and plan.limit_ms and warmed_ms + (after - started) / 1e6 >= plan.limit_ms:
                timing.limit_reached = True
            if is_enough or timing.limit_reached:
                first = timing.starts_ms[0]
                timing.starts_ms = [start - first for start in timing.starts_ms]
                return timing
            if after - reported > _REPORT_EVERY_NS:
                reported = after
                progress(len(timing.latency_ms), _foresee(timing, plan, warmed_ms, (after - started) / 1e6))


def _foresee(timing: Timing, plan: TimingPlan, warmed_ms: float, elapsed_ms: float) -> int:
    """Return the number of passes that will be measured at the pace so far."""
    done = len(timing.latency_ms)
    pass_ms = elapsed_ms / done
    wanted = max(plan.passes, math.ceil(plan.duration_ms / pass_ms))
    allowed = math.ceil((plan.limit_ms - warmed_ms) / pass_ms) if plan.limit_ms else wanted
    return max(done, min(wanted, allowed))


def _is_enough(timing: Timing, plan: TimingPlan, elapsed_ms: float, steps: SequencePasses | None) -> bool:
    passes = len(timing.latency_ms)
    is_whole = steps is None or passes % steps.count == 0
    return passes >= plan.passes and elapsed_ms >= plan.duration_ms and is_whole


def _feed(binding: Binding, timing: Timing, steps: SequencePasses | None) -> None:
    """Prepare the next pass."""
    if steps:
        steps.prepare()
    if binding.can_copy:
        timing.add(DeviceTimes(h2d_ms=_duration_ms(binding.copy_in)))


def _warm_up(binding: Binding, plan: TimingPlan, timing: Timing, steps: SequencePasses | None) -> None:
    started = time.perf_counter_ns()
    limit_ms = plan.limit_ms / 2 or float("inf")
    while timing.warmup_passes < plan.warmup_passes or timing.warmup_ms < plan.warmup_ms:
        if steps:
            steps.prepare()
        binding.run()
        timing.warmup_passes += 1
        timing.warmup_ms = (time.perf_counter_ns() - started) / 1e6
        timing.first_pass_ms = timing.first_pass_ms or timing.warmup_ms
        if timing.warmup_ms - timing.first_pass_ms >= limit_ms:
            break
    if binding.can_copy and timing.warmup_passes:
        binding.copy_in()
        binding.copy_out()


def _duration_ms(work: Callable[[], float | None]) -> float:
    before = time.perf_counter_ns()
    by_device_ms = work()
    return (time.perf_counter_ns() - before) / 1e6 if by_device_ms is None else by_device_ms


ANSWER = "answer.json"
"""The file that a worker writes into its job's folder."""


@dataclass(frozen=True)
class FeedFile:
    """Values of one input in a .npy file."""

    path: str
    dtype: str
    """Name in numpy or ml_dtypes: .npy files only store numpy's dtypes."""


@dataclass(frozen=True)
class Part:
    """Passes on one set of inputs."""

    feeds: Mapping[str, FeedFile]
    plan: TimingPlan
    what: str = ""
    """Prefix of the pass's number in progress messages."""
    steps: tuple[Mapping[str, FeedFile], ...] = ()
    """Inputs of the further steps of a sequence, without its states, or of the further samples that passes run in turn;
    `feeds` are those of the first."""
    feedback: Feedback = field(default_factory=dict)
    """Input -> the output whose value it has at the next step of a sequence."""


@dataclass(frozen=True)
class Job:
    """Open a model once and time its parts in order; then open it again to record its layers.

    Without `times_passes`, the parts are not timed, and only layers are recorded.
    """

    model: Path
    session: SessionRequest
    parts: tuple[Part, ...]
    layers: RecordingPlan | None = None
    """Recording of the layers, on the inputs of the first part."""
    times_passes: bool = True

    def write(self, file: Path) -> None:
        values = {
            "model": self.model,
            "runtime": self.session.runtime,
            "session": self.session.to_json(),
            "parts": [asdict(part) for part in self.parts],
            "layers": None if self.layers is None else asdict(self.layers),
            "times_passes": self.times_passes,
        }
        file.write_text(json.dumps(values, default=str), encoding="utf-8")

    @classmethod
    def read(cls, file: Path) -> Job:
        raw = json.loads(file.read_text(encoding="utf-8"))
        parts = (
            Part(
                {name: FeedFile(**feed) for name, feed in part["feeds"].items()},
                TimingPlan(**part["plan"]),
                part["what"],
                tuple({name: FeedFile(**feed) for name, feed in step.items()} for step in part["steps"]),
                {name: FedFrom(**{**fed, "shape": tuple(fed["shape"])}) for name, fed in part["feedback"].items()},
            )
            for part in raw["parts"]
        )
        layers = RecordingPlan(**raw["layers"]) if raw["layers"] else None
        session = find_runtime(raw["runtime"]).read_request(raw["session"])
        return cls(Path(raw["model"]), session, tuple(parts), layers, raw["times_passes"])


@dataclass
class Answer:
    """The measurements of a worker, or its error."""

    error: str = ""
    """Name of a class in `errors`."""
    message: str = ""
    load_ms: float = 0.0
    peak_bytes: int = 0
    """Peak memory of the first part; 0 if the system does not report it."""
    devices: list[str] = field(default_factory=list)
    outputs: list[tuple[str, str, list[int]]] = field(default_factory=list)
    """Name, dtype and shape of the outputs of the first part."""
    log: str = ""
    """Messages of the library while it loaded the model."""
    facts: dict[str, int | str | bool] = field(default_factory=dict)
    """Facts reported by the device, such as memory in bytes."""
    versions: dict[str, str] = field(default_factory=dict)
    """Versions of libraries that only the worker loads."""
    notes: list[str] = field(default_factory=list)
    """Notes for the profile."""
    timings: list[Timing] = field(default_factory=list)
    """The timing of each part."""
    threads: int = 1
    """The thread that runs the model and those of the library; 1 if the system does not report them."""
    affinity: list[int] = field(default_factory=list)
    """CPUs it could use."""
    recording: str = ""
    """The file with the recorded layers; empty without a recording."""
    recording_ms: float = 0.0
    """Time of the recording, including loading."""

    def write(self, folder: Path) -> None:
        (folder / ANSWER).write_text(json.dumps(asdict(self)), encoding="utf-8")

    @classmethod
    def read(cls, folder: Path) -> Answer | None:
        """Read the answer; None if it is incomplete because the worker died."""
        try:
            raw: dict[str, Any] = json.loads((folder / ANSWER).read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return None
        timings = [Timing(**timing) for timing in raw.pop("timings")]
        return cls(
            **{name: raw[name] for name in (known.name for known in fields(cls)) if name in raw}, timings=timings
        )


def write_feeds(feeds: Mapping[str, Array], folder: Path) -> dict[str, FeedFile]:
    """Save arrays for workers; file names do not contain names of inputs."""
    folder.mkdir(parents=True, exist_ok=True)
    written = {}
    for number, (name, values) in enumerate(feeds.items()):
        path = folder / f"input-{number}.npy"
        np.save(path, values, allow_pickle=False)
        written[name] = FeedFile(str(path), values.dtype.name)
    return written


def write_steps(steps: Iterable[Mapping[str, Array]], folder: Path) -> list[dict[str, FeedFile]]:
    """Save the inputs of each step of a sequence; an input that does not change is saved once."""
    written: list[dict[str, FeedFile]] = []
    before: Mapping[str, Array] = {}
    for number, arrays in enumerate(steps):
        same = {name for name, array in arrays.items() if name in before and np.array_equal(before[name], array)}
        changed = write_feeds({name: array for name, array in arrays.items() if name not in same}, folder / str(number))
        written.append({name: written[-1][name] if name in same else changed[name] for name in arrays})
        before = arrays
    return written


def read_feeds(files: Mapping[str, FeedFile]) -> dict[str, Array]:
    """Return the arrays saved by `write_feeds`."""
    feeds = {}
    for name, file in files.items():
        values: Array = np.load(file.path, allow_pickle=False)
        dtype = numpy_dtype(file.dtype)
        # A dtype of ml_dtypes is loaded as raw bytes.
        feeds[name] = values if dtype is None or values.dtype == dtype else values.view(dtype)
    return feeds


_STATUS = Path("/proc/self/status")
_RESET = Path("/proc/self/clear_refs")


class PeakMemory:
    """Peak of resident memory above that at the start of the block, in bytes; 0 if the system does not report it.

    Meant for a new process: the C library reuses freed memory without a trace. Memory that a process's first session
    needs for itself (ONNX Runtime: about 10 MB) is included.
    """

    def __init__(self) -> None:
        self.peak_bytes = 0
        self._before = 0
        self._reset = False

    def __enter__(self) -> PeakMemory:
        self._before = _status_bytes("VmRSS")
        try:
            _RESET.write_text("5")  # makes the kernel forget the high-water mark of this process
            self._reset = True
        except OSError:
            pass
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        peak = _status_bytes("VmHWM" if self._reset else "VmRSS")
        self.peak_bytes = max(0, peak - self._before) if self._before else 0


def _status_bytes(field: str) -> int:
    try:
        lines = _STATUS.read_text().splitlines()
    except OSError:
        return 0
    for line in lines:
        if line.startswith(f"{field}:"):
            return int(line.split()[1]) * 1024
    return 0


JOB = "job.json"


def main() -> None:
    """Run the job of the folder on the command line."""
    folder = Path(sys.argv[1])
    progress = process.start_worker()
    try:
        job = Job.read(folder / JOB)
        answer = _measure(job, progress) if job.times_passes else Answer()
        if job.layers:
            _record(job, job.layers, answer, folder, progress)
    except RequestError as error:
        answer = Answer(error=type(error).__name__, message=str(error))
    except MemoryError:
        answer = Answer(error="KilledError", message=f"the process that measured {folder.name} ran out of memory.")
    answer.write(folder)
    process.exit_worker()


def _measure(job: Job, progress: ReportProgress) -> Answer:
    entered = time.perf_counter()
    answer = Answer()
    first = job.parts[0]
    # They are loaded before memory is measured, as they are needed for any model.
    samples = [read_feeds(files) for files in (first.feeds, *([] if first.feedback else first.steps))]
    threads_before = count_threads()
    with PeakMemory() as memory:
        progress(0, first.plan.passes, "loading")
        session = job.session.open(job.model)
        binding: Binding = _SequenceBinding(session, first) if first.feedback else bind_samples(session, samples)
        timing = _time(binding, first, entered, progress)
    facts = session.describe()
    answer.peak_bytes = memory.peak_bytes
    answer.load_ms = session.load_ms
    answer.devices = list(facts.devices)
    answer.outputs = [(name, dtype, list(shape)) for name, (dtype, shape) in binding.output_shapes().items()]
    answer.facts = dict(facts.facts)
    answer.versions = dict(facts.versions)
    answer.notes = list(facts.notes)
    answer.timings = [timing]
    for part in job.parts[1:]:
        binding = session.bind(read_feeds(part.feeds), on_device=True)
        answer.timings.append(_time(binding, part, time.perf_counter(), progress))
    answer.log = session.log
    answer.threads = count_threads() - threads_before + 1
    answer.affinity = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
    return answer


def _record(job: Job, plan: RecordingPlan, answer: Answer, folder: Path, progress: ReportProgress) -> None:
    """Record the layers after the session without a profiler is released."""
    started = time.perf_counter()
    timed = sum(len(timing.latency_ms) for timing in answer.timings[:1])
    progress(timed, timed, "opening the model for its layers")
    recording = job.session.record_layers(
        job.model,
        read_feeds(job.parts[0].feeds),
        plan,
        folder,
        lambda done, total: progress(timed, timed, f"layer pass {done} of {total}"),
    )
    answer.recording = "" if recording is None else str(recording)
    answer.recording_ms = (time.perf_counter() - started) * 1e3


def _time(binding: Binding, part: Part, entered: float, progress: ReportProgress) -> Timing:
    progress(0, part.plan.passes, f"{part.what}warming up")
    plan = within(part.plan, (time.perf_counter() - entered) * 1e3)
    if isinstance(binding, SamplesInTurn):
        plan = replace(plan, warmup_passes=max(plan.warmup_passes, binding.count))
    timing = time_passes(
        binding,
        plan,
        lambda done, total: progress(done, total, f"{part.what}pass {done} of {total}"),
        binding if isinstance(binding, _SequenceBinding | SamplesInTurn) else None,
    )
    timing.new_size_ms = binding.new_size_ms if isinstance(binding, SamplesInTurn) else []
    return timing


class _SequenceBinding(HostBinding):
    """The steps of a sequence, bound one after the other: each pass is the next step.

    It copies nothing of its own: states are copied anyway, between the passes.
    """

    def __init__(self, session: Session, part: Part) -> None:
        self._session, self._part = session, part
        self._specs = {spec.name: spec for spec in session.describe().inputs}
        self.count = 1 + len(part.steps)
        self._next = 0
        self._bound = session.bind(read_feeds(part.feeds), on_device=True)

    def restart(self) -> None:
        self._next = 0

    def prepare(self) -> None:
        if self._next == 0:
            feeds = read_feeds(self._part.feeds)
        else:
            outputs = self._bound.outputs()
            states = {
                name: fed.value(outputs[fed.output], self._specs[name]) for name, fed in self._part.feedback.items()
            }
            feeds = {**states, **read_feeds(self._part.steps[self._next - 1])}
        self._bound = self._session.bind(feeds, on_device=True)
        self._next = (self._next + 1) % self.count

    def run(self) -> None:
        self._bound.run()

    def device_times(self) -> DeviceTimes:
        return self._bound.device_times()

    def outputs(self) -> dict[str, Array | None]:
        return self._bound.outputs()

    def output_shapes(self) -> dict[str, tuple[str, tuple[int, ...]]]:
        return self._bound.output_shapes()


def within(plan: TimingPlan, used_ms: float) -> TimingPlan:
    """Return the plan limited to the remaining time of the process, at least half of its limit.

    A few runs that measured something are worth more than many that only loaded the model.
    """
    return replace(plan, limit_ms=max(plan.limit_ms - used_ms, plan.limit_ms / 2))


def count_threads() -> int:
    """Return the number of threads of this process; 0 if the system does not report it."""
    try:
        return sum(1 for _ in Path("/proc/self/task").iterdir())
    except OSError:
        return 0


if __name__ == "__main__":
    main()
