"""A measuring process that runs passes on command, so that two models can alternate pass by pass.

`python -P -m ndld_flow.measure.turn_worker FOLDER` reads `FOLDER/job.json`, opens the model, and answers
each line on standard input, the number of passes, the ms of others before them and the CPU to run on, with a line of
JSON. It is blocked while the other model's process has its turn, and ends when its standard input does."""

from __future__ import annotations

import gc
import json
import os
import sys
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from ndld_flow.base.errors import RequestError
from ndld_flow.measure.samples_in_turn import SamplesInTurn, bind_samples
from ndld_flow.measure.worker import JOB, Answer, Job, count_threads, read_feeds
from ndld_flow.processes import worker as process


@dataclass(frozen=True)
class Turn:
    """Some passes, run one after the other."""

    wall_ms: float
    cpu_ms: float
    """CPU time of the whole process."""
    queued_ms: float | None
    """Time during which the thread was ready to run while others had the CPU; None if the system does not report it."""


def main() -> None:
    """Open the model, then run turns until standard input ends."""
    folder = Path(sys.argv[1])
    output = process.claim_output()
    try:
        _serve(Job.read(folder / JOB), lambda answer: os.write(output, f"{json.dumps(answer)}\n".encode()))
    except RequestError as error:
        Answer(error=type(error).__name__, message=str(error)).write(folder)
    process.exit_worker()


def _serve(job: Job, answer: Callable[[Mapping[str, float | None]], object]) -> None:
    samples = [read_feeds(part.feeds) for part in job.parts]
    threads_before = count_threads()
    binding = bind_samples(job.session.open(job.model), samples)
    for _ in samples:
        binding.run()  # libraries start threads with the first pass, and adapt to each size
    # The thread that runs the model and those that the library started; 1 if the system does not report them.
    answer({"threads": count_threads() - threads_before + 1})
    measured = 0

    def rewind() -> None:
        """Run the sample before the next to be measured: its size may differ, as in use."""
        assert isinstance(binding, SamplesInTurn)
        binding.restart(measured - 1)
        binding.run()

    gc.collect()
    gc.disable()
    for line in sys.stdin:
        number, warm_ms, cpu_name = line.split()
        cpu = int(cpu_name)
        if cpu >= 0 and os.sched_getaffinity(0) != {cpu}:
            os.sched_setaffinity(0, {cpu})
        answer(asdict(run_turn(binding.run, int(number), float(warm_ms), rewind if len(samples) > 1 else None)))
        measured += int(number)


def run_turn(
    run: Callable[[], object], passes: int, warm_ms: float = 0.0, rewind: Callable[[], object] | None = None
) -> Turn:
    """Run passes one after the other, and measure them together, after others that take `warm_ms` or more.

    `rewind` is called in between: of several samples, these others must not decide which are measured.
    """
    warm_ns = time.perf_counter_ns() + warm_ms * 1e6
    while time.perf_counter_ns() < warm_ns:
        run()
    if rewind is not None and warm_ms:
        rewind()
    queued = _read_queued_ns()
    cpu, wall = time.process_time_ns(), time.perf_counter_ns()
    for _ in range(passes):
        run()
    wall, cpu = time.perf_counter_ns() - wall, time.process_time_ns() - cpu
    after = _read_queued_ns()
    queued_ms = None if queued is None or after is None else (after - queued) / 1e6
    return Turn(wall_ms=wall / 1e6, cpu_ms=cpu / 1e6, queued_ms=queued_ms)


def _read_queued_ns() -> int | None:
    """Return how long this thread has been ready to run while others had the CPU; None if that is not reported."""
    try:
        return int(Path(f"/proc/self/task/{threading.get_native_id()}/schedstat").read_bytes().split()[1])
    except (OSError, ValueError, IndexError):
        return None


if __name__ == "__main__":
    main()
