"""A measuring process: opens a model, times passes, writes its answer and ends.

`python -P -m ndld_flow.measure.worker FOLDER` reads `FOLDER/job.json`, writes `FOLDER/answer.json`, and reports its
progress on standard output: one line `DONE TOTAL WHAT` at a time. It ends when its standard input does, so that no
process is left when its parent is killed.

The process contains only the model and its inputs, and imports few modules, because every run starts one.
"""

from __future__ import annotations

import os
import sys
import time
from dataclasses import replace
from pathlib import Path
from types import TracebackType

from ndld_flow.base.errors import RequestError
from ndld_flow.measure.timing_pass import TimingPlan, time_passes
from ndld_flow.measure.worker_job import Answer, Job, Part, read_feeds
from ndld_flow.models.tensors import Array
from ndld_flow.processes import worker as process
from ndld_flow.processes.worker import ReportProgress
from ndld_flow.runtimes.protocol import Binding, DeviceTimes, HostBinding, RecordingPlan, Session, Timing

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
    feeds = read_feeds(first.feeds)  # loaded before memory is measured, as they are needed for any model
    threads_before = count_threads()
    with PeakMemory() as memory:
        progress(0, first.plan.passes, "loading")
        session = job.session.open(job.model)
        binding: Binding = _SequenceBinding(session, first) if first.steps else session.bind(feeds, on_device=True)
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
    return time_passes(
        binding,
        within(part.plan, (time.perf_counter() - entered) * 1e3),
        lambda done, total: progress(done, total, f"{part.what}pass {done} of {total}"),
        binding if isinstance(binding, _SequenceBinding) else None,
    )


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
