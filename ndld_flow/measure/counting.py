"""Count the instructions and allocations of a pass, in processes of their own, after the timing pass.

A count is a figure for machines whose times are too noisy: the same libraries run nearly the same number of
instructions for the same model, whatever else the machine does. It is not a time.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from ndld_flow.base import errors
from ndld_flow.base.errors import BackendError
from ndld_flow.machine.counters import CounterName, describe_counter, find_address_fixer, find_valgrind
from ndld_flow.measure import count_worker
from ndld_flow.measure.count_worker import COUNT, JOB, MARK_BYTES, Counted, CountPlan
from ndld_flow.measure.timing_pass import TimingPlan
from ndld_flow.measure.worker_job import FeedFile, Job, Part
from ndld_flow.processes.launch import run_worker_module
from ndld_flow.records.profile import CountedQuantity, PassCount
from ndld_flow.runtimes.protocol import SessionRequest

_CALLGRIND_FILE, _LOG = "callgrind.out", "valgrind.log"
_ENVIRONMENT: Final = {"PYTHONHASHSEED": "0", "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
"""Variables without which Python and numpy run other instructions in each process."""
_TOTALS = re.compile(r"^totals: (\d+)$", re.MULTILINE)
_THREAD_FILE = re.compile(r"callgrind\.out\.(\d+)-(\d+)")
_ALLOCATION = re.compile(
    rb"--\d+-- (malloc|calloc|realloc|memalign|posix_memalign|aligned_alloc|_Zn[wa]\w*)\(([^)]*)\)"
)
"""A call in Valgrind's log: `malloc(24)`, `calloc(2,8)`, `realloc(0x0,24)`, `memalign(al 64, size 24)`, `_Znwm(24)`."""


@dataclass(frozen=True)
class CountingPlan:
    """The counts that a profile records."""

    quantities: tuple[str, ...]
    """`instructions`, `allocations`."""
    counter: CounterName
    """The counter of instructions; allocations are counted by Valgrind."""
    passes: int


@dataclass(frozen=True)
class CountedModel:
    """A model whose passes are counted."""

    path: Path
    session: SessionRequest
    feeds: Mapping[str, FeedFile]
    folder: Path
    environment: Mapping[str, str]
    progress: Callable[[int, int, str], None]


def count_passes(model: CountedModel, plan: CountingPlan) -> tuple[tuple[PassCount, ...], tuple[str, ...]]:
    """Return the counts of passes on one thread, and notes. Raises as `run_worker` does."""
    session = model.session.on_one_thread()
    if session is None:
        raise BackendError(f"{model.session.names().library} has no session on one thread, whose passes are counted.")
    counts: list[PassCount] = []
    notes: list[str] = ["instructions and allocations are those of passes on one thread, and are no measure of time"]
    for quantity in plan.quantities:
        counter = plan.counter if quantity == "instructions" else "valgrind"
        folder = model.folder / f"count-{quantity}"
        counted = _run(model, session, CountPlan(quantity, counter, plan.passes), folder)
        samples = _read_samples(folder, quantity, counted, notes)
        counts.extend(
            PassCount(
                quantity=name,
                counter=describe_counter(counter),
                threads=1,
                cpu_features=tuple(counted.cpu_features),
                libc=counted.libc,
                samples=tuple(values),
            )
            for name, values in samples
        )
    return tuple(counts), tuple(notes)


def _run(model: CountedModel, session: SessionRequest, plan: CountPlan, folder: Path) -> Counted:
    folder.mkdir(parents=True)
    Job(model.path, session, (Part(model.feeds, TimingPlan(plan.passes)),)).write(folder / JOB)
    (folder / COUNT).write_text(json.dumps(asdict(plan)), encoding="utf-8")

    def report(done: int, total: int, doing: str) -> None:
        model.progress(done, total, f"counting {plan.counted}: {doing}")

    environment = {**model.environment, **_ENVIRONMENT}
    ended = run_worker_module(count_worker.__name__, folder, report, environment, under=_command(plan, folder))
    counted = Counted.read(folder)
    if counted is None:
        raise BackendError(_explain_death(session, plan, ended.code, ended.doing, folder))
    if counted.error:
        error: Exception = getattr(errors, counted.error)(counted.message)
        raise error
    return counted


def _command(plan: CountPlan, folder: Path) -> tuple[str, ...]:
    """Return the command that runs the process."""
    if plan.counter != "valgrind":
        return find_address_fixer()
    common = (*find_address_fixer(), find_valgrind()[0], "--quiet", f"--log-file={folder / _LOG}", "--vgdb=no")
    if plan.counted == "instructions":
        file = folder / _CALLGRIND_FILE
        return (*common, "--tool=callgrind", "--instr-atstart=no", "--separate-threads=yes",
                f"--callgrind-out-file={file}")  # fmt: skip
    # Massif replaces the allocator as Memcheck does, and is faster: it does not look at the instructions.
    return (*common, "--tool=massif", "--trace-malloc=yes", "--massif-out-file=/dev/null", "--depth=1")


def _explain_death(session: SessionRequest, plan: CountPlan, code: int, doing: str, folder: Path) -> str:
    by = describe_counter(plan.counter)
    log = folder / _LOG
    text = log.read_text(encoding="utf-8", errors="replace") if plan.counter == "valgrind" and log.is_file() else ""
    known = "unhandled instruction" in text or "SIGILL" in text
    reason = (
        f"this {by} does not know an instruction that {session.names().library} uses"
        if known
        else f"it ended with code {code}"
    )
    return (
        f"the process that counts {plan.counted} by {by} died while {doing}: {reason}. Set `counter: perf` where perf "
        "events are allowed, install a later Valgrind, or remove `count`."
    )


def _read_samples(
    folder: Path, quantity: str, counted: Counted, notes: list[str]
) -> Iterator[tuple[CountedQuantity, list[int]]]:
    if counted.samples:
        yield "instructions", counted.samples
    elif quantity == "instructions":
        samples, others = read_callgrind(folder)
        if others:
            notes.append(
                f"threads that took part in only some passes ran {others:,} instructions, which are not counted"
            )
        yield "instructions", samples
    else:
        with (folder / _LOG).open("rb") as lines:
            passes = read_allocations(lines)
        yield "allocations", [len(sizes) for sizes in passes]
        yield "allocated_bytes", [sum(sizes) for sizes in passes]


def read_callgrind(folder: Path) -> tuple[list[int], int]:
    """Return the instructions of each pass, and those of threads that did not take part in all of them.

    Libraries have threads for other purposes, which wake up now and then (ONNX Runtime: for telemetry).
    """
    passes: dict[int, dict[int, int]] = {}
    for path in folder.glob(f"{_CALLGRIND_FILE}.*"):
        named = _THREAD_FILE.fullmatch(path.name)
        found = _TOTALS.search(path.read_text(encoding="utf-8", errors="replace"))
        if named and found:
            passes.setdefault(int(named[1]), {})[int(named[2])] = int(found[1])
    if not passes:
        raise BackendError("Valgrind wrote no counts. Install a later Valgrind, or set `counter: perf`.")
    active = [{thread for thread, total in threads.items() if total} for threads in passes.values()]
    steady = set.intersection(*active)
    samples = [sum(passes[number].get(thread, 0) for thread in steady) for number in sorted(passes)]
    return samples, sum(sum(threads.values()) for threads in passes.values()) - sum(samples)


def read_allocations(lines: Iterator[bytes] | Sequence[bytes]) -> list[list[int]]:
    """Return the size of each allocation of each pass, from Valgrind's log of all calls."""
    passes: list[list[int]] = []
    inside = False
    for line in lines:
        found = _ALLOCATION.match(line)
        if found is None:
            continue
        size = _size(found[1], found[2])
        if size == MARK_BYTES:
            inside = not inside
            if inside:
                passes.append([])
        elif inside:
            passes[-1].append(size)
    return passes


def _size(function: bytes, arguments: bytes) -> int:
    _, named, rest = arguments.partition(b"size ")
    numbers = (rest if named else arguments).split(b",")
    if function == b"calloc":
        return int(numbers[0]) * int(numbers[1])
    return int(numbers[0 if named else -1])
