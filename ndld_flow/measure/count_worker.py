"""A process that runs passes to be counted: by a hardware counter, or by the Valgrind in which it runs.

`python -P -m ndld_flow.measure.count_worker FOLDER` reads `FOLDER/job.json` and `FOLDER/count.json`, and writes
`FOLDER/counted.json`. Nothing is timed here: Valgrind makes a pass hundreds of times slower.
"""

from __future__ import annotations

import ctypes
import gc
import importlib
import json
import platform
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from ndld_flow.base.errors import BackendError, RequestError
from ndld_flow.machine.counters import CounterName
from ndld_flow.machine.perf_events import open_counter
from ndld_flow.measure.valgrind_requests import ValgrindRequests
from ndld_flow.measure.worker_job import Job, read_feeds
from ndld_flow.processes import worker as process
from ndld_flow.processes.worker import ReportProgress

JOB, COUNT, COUNTED = "job.json", "count.json", "counted.json"
WARMUP_PASSES = 2
"""Passes before the counted ones: the runtime allocates memory in the first and plans it for the second."""
MARK_BYTES = 7_654_321
"""Size of the allocation before and after each pass, by which passes are found in Valgrind's log of allocations."""


@dataclass(frozen=True)
class CountPlan:
    """The counting of one process."""

    counted: str
    """`instructions` or `allocations`."""
    counter: CounterName
    passes: int


@dataclass
class Counted:
    """The answer of a counting process."""

    error: str = ""
    """Name of a class in `errors`."""
    message: str = ""
    samples: list[int] = field(default_factory=list)
    """The count of each pass; empty if Valgrind wrote it to files of its own."""
    cpu_features: list[str] = field(default_factory=list)
    """Instruction sets that the processor offers to this process, or the one that Valgrind emulates."""
    libc: str = ""

    @classmethod
    def read(cls, folder: Path) -> Counted | None:
        """Read the answer; None if the process died before it."""
        try:
            raw: dict[str, Any] = json.loads((folder / COUNTED).read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return None
        return cls(**raw)


def main() -> None:
    """Run the job of the folder on the command line."""
    folder = Path(sys.argv[1])
    progress = process.start_worker()
    plan = CountPlan(**json.loads((folder / COUNT).read_text(encoding="utf-8")))
    try:
        counted = Counted(samples=_count(Job.read(folder / JOB), plan, progress))
        counted.cpu_features, counted.libc = find_cpu_features(), " ".join(platform.libc_ver())
    except RequestError as error:
        counted = Counted(error=type(error).__name__, message=str(error))
    (folder / COUNTED).write_text(json.dumps(asdict(counted)), encoding="utf-8")
    process.exit_worker()


def _count(job: Job, plan: CountPlan, progress: ReportProgress) -> list[int]:
    progress(0, plan.passes, "loading")
    binding = job.session.open(job.model).bind(read_feeds(job.parts[0].feeds), on_device=True)
    for done in range(WARMUP_PASSES):
        progress(0, plan.passes, f"warm-up pass {done + 1} of {WARMUP_PASSES}")
        binding.run()
    gc.collect()
    gc.disable()
    count = _COUNTERS[plan.counted, plan.counter]
    return count(
        binding.run, plan.passes, lambda done: progress(done, plan.passes, f"pass {done + 1} of {plan.passes}")
    )


def _by_perf_events(run: Callable[[], None], passes: int, report: Callable[[int], object]) -> list[int]:
    """Return the instructions of each pass. Raises BackendError if the counter missed any."""
    with open_counter() as counter:
        readings = []
        for done in range(passes):
            report(done)
            counter.start()
            run()
            readings.append(counter.stop())
    refuse_shared(readings)
    return [reading.value for reading in readings]


def refuse_shared(readings: Sequence[Any]) -> None:
    """Raise BackendError if other programs used the counter during a pass."""
    for reading in readings:
        if not reading.is_whole:
            part = reading.running_ns / reading.enabled_ns if reading.enabled_ns else 0.0
            raise BackendError(
                f"the processor's instruction counter ran for {part:.0%} of a pass: others use it too, or the CPU has "
                "cores of two kinds. End other profilers, or set `counter: valgrind`."
            )


def _by_callgrind(run: Callable[[], None], passes: int, report: Callable[[int], object]) -> list[int]:
    """Run passes; Callgrind writes the counts of each to its own file."""
    valgrind = ValgrindRequests()
    if not valgrind.is_in_valgrind:
        raise BackendError("the process that counts does not run in Valgrind.")
    valgrind.start_counting()
    run()  # Valgrind translates the code again to count it, for which threads wait
    for done in range(passes):
        report(done)
        valgrind.reset()
        run()
        valgrind.write_counts()
    return []


def _by_log(run: Callable[[], None], passes: int, report: Callable[[int], object]) -> list[int]:
    """Run passes between allocations of a known size, which Valgrind logs."""
    library = ctypes.CDLL(None)
    library.malloc.restype, library.malloc.argtypes = ctypes.c_void_p, (ctypes.c_size_t,)
    library.free.argtypes = (ctypes.c_void_p,)
    for done in range(passes):
        report(done)
        library.free(library.malloc(MARK_BYTES))
        run()
        library.free(library.malloc(MARK_BYTES))
    return []


_COUNTERS: dict[tuple[str, CounterName], Callable[[Callable[[], None], int, Callable[[int], object]], list[int]]] = {
    ("instructions", "perf"): _by_perf_events,
    ("instructions", "valgrind"): _by_callgrind,
    ("allocations", "valgrind"): _by_log,
}


def find_cpu_features() -> list[str]:
    """Return the instruction sets that this process sees, by which libraries choose their kernels; empty if unknown."""
    try:
        features = importlib.import_module("numpy._core._multiarray_umath").__cpu_features__
    except (ImportError, AttributeError):
        return []
    return sorted(name for name, is_there in features.items() if is_there)


if __name__ == "__main__":
    main()
