"""The executor that computes steps in worker processes. They last, so that libraries are imported once, and may die."""

from __future__ import annotations

import contextlib
import queue
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Protocol

from ndld_flow.base import errors
from ndld_flow.base.errors import BackendError, KilledError, NdldFlowError
from ndld_flow.base.quantities import seconds
from ndld_flow.base.text import shortened, visible_text
from ndld_flow.processes.launch import end_group, name_signal
from ndld_flow.records.step_record import StepRecord
from ndld_flow.runner.events import Listener, StepWaits, ignore
from ndld_flow.runner.executors.executor import StepTimeoutError, Task
from ndld_flow.runner.executors.messages import (
    Answer,
    Begins,
    Done,
    Failed,
    Logged,
    Message,
    Progressed,
    Refused,
    Waits,
    read_message,
)
from ndld_flow.runner.executors.orders import TaskOrder, write_order
from ndld_flow.store.store import Store

# -P: a file `json.py` in the current directory must not be imported.
COMMAND = (sys.executable, "-P", "-m", "ndld_flow.runner.executors.worker")
_END_S = 5.0
_LAST_BYTES = 4096
_LAST_LINES = 3
_LAST_OF_FAILED = 10


class Ear(Protocol):
    """Who hears what a worker says while it is at work."""

    def progress(self, place: int, done: int, total: int, what: str) -> None: ...

    def logged(self, place: int, line: str) -> None: ...

    def waits(self, name: str) -> None: ...


class WorkerDiedError(Exception):
    """A worker ended without an answer; the text says how, and what it printed last."""

    def __init__(self, text: str, *, killed: bool) -> None:
        super().__init__(text)
        self.killed = killed
        """Whether a signal ended it."""


class WorkerStoppedError(Exception):
    """A worker was ended because its task took longer than it may."""


class WorkerProcess:
    """A process that does one order after another, until it is ended."""

    def __init__(self, command: Sequence[str] = COMMAND) -> None:
        with contextlib.ExitStack() as opened:
            self._said = opened.enter_context(tempfile.TemporaryFile())
            self._process = subprocess.Popen(
                list(command),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._said,
                start_new_session=True,  # Ctrl-C is the driver's to handle
            )
            opened.pop_all()
        self._stopped = False

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def lives(self) -> bool:
        return self._process.poll() is None

    def do(self, order: TaskOrder, ear: Ear) -> Answer:
        """Give an order and wait for the answer.

        Raises WorkerDiedError, WorkerStoppedError after the order's time, and what `ear` raises.
        """
        self._forget()
        with contextlib.ExitStack() as watch:
            with contextlib.suppress(OSError, ValueError):  # it has died; its code says why
                assert self._process.stdin is not None
                self._process.stdin.write(order.to_line().encode())
                self._process.stdin.flush()
            for line in self._process.stdout or ():
                message = read_message(line)
                if isinstance(message, Done | Refused | Failed):
                    for printed in () if isinstance(message, Done) else self._last_printed(_LAST_OF_FAILED):
                        ear.logged(0, f"printed: {printed}")
                    return message
                if isinstance(message, Begins) and order.timeout_s is not None:
                    watch.enter_context(_alarm(order.timeout_s, self._stop))
                elif message is not None:
                    _hand_on(message, ear)
        self.end()
        if self._stopped:
            raise WorkerStoppedError
        killed_by = self._killing_signal()
        how = f"was killed by {killed_by}" if killed_by else f"ended with code {self._process.returncode}"
        raise WorkerDiedError(f"{how}{self._last_words()}", killed=bool(killed_by))

    def _forget(self) -> None:
        """What was said before this order is of no interest; the offset is the worker's too."""
        self._said.seek(0)
        self._said.truncate()

    def _stop(self) -> None:
        self._stopped = True
        self.end()

    def end(self) -> None:
        """End it and all that it started, at once. Any thread may call this, and often."""
        if self._process.stdin is not None:
            with contextlib.suppress(OSError, ValueError):
                self._process.stdin.close()
        try:
            self._process.wait(_END_S)  # its keeper ends all, as far as it has sessions of its own too
        except subprocess.TimeoutExpired:
            end_group(self._process)

    def release(self) -> None:
        """End it, and give back what it took here. Only who gives it orders may call this."""
        self.end()
        end_group(self._process)
        self._said.close()

    def _killing_signal(self) -> str:
        """Return the name of the signal that ended it; empty where it ended by itself."""
        code = self._process.returncode
        return name_signal(-code if code < 0 else code - 128)

    def _last_words(self) -> str:
        last = self._last_printed(_LAST_LINES)
        return f"; it said last: {' / '.join(last)}" if last else ""

    def _last_printed(self, count: int) -> list[str]:
        """Return the last lines that the worker, and libraries in it, printed since this order."""
        size = self._said.seek(0, 2)
        self._said.seek(max(0, size - _LAST_BYTES))
        lines = visible_text(self._said.read().decode(errors="replace")).split("\n")
        return [shortened(line.strip(), 300) for line in lines if line.strip()][-count:]


def _hand_on(message: Message, ear: Ear) -> None:
    if isinstance(message, Progressed):
        ear.progress(message.place, message.done, message.total, message.what)
    elif isinstance(message, Logged):
        ear.logged(message.place, message.text)
    elif isinstance(message, Waits):
        ear.waits(message.name)


@contextlib.contextmanager
def _alarm(after_s: float, ring: Callable[[], None]) -> Iterator[None]:
    """Ring after some time, unless this has ended before."""
    timer = threading.Timer(after_s, ring)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


_ADVICE = {
    1: "What was finished before is kept. It may have run out of memory, or a library crashed on this model or these "
    "settings: inspect what the steps before it made, and try other settings.",
    2: "A second try ended alike. If it is short of memory, let fewer steps work at once (`--jobs`).",
}
"""By the number of tries."""


class WorkerBugError(Exception):
    """What went wrong in a worker and no person can act on: a mistake in ndld_flow or in a step.

    Its cause tells the worker's traceback.
    """


class _WorkersTraceback(Exception):
    """The traceback as the worker saw it, as text."""

    def __str__(self) -> str:
        return f"\n{self.args[0]}"


@dataclass(frozen=True)
class _Job:
    task: Task
    order: TaskOrder
    store: Store
    future: Future[Sequence[StepRecord]]

    @property
    def steps(self) -> str:
        return f"step {' and '.join(work.step.name for work in self.task.works)}"


class Workers:
    """Computes tasks in up to `count` processes, each started when it is first needed.

    A task whose worker dies beside others is tried once more: it may have died of their memory. What steps tell of
    their progress comes to their `Work.progress`, from other threads but one call at a time, as do the calls of
    `listener`, which hears what waits for other processes.
    `command` starts a worker, which may be on another machine that has the store, and the models, under the same path::

        ssh -o BatchMode=yes -o ServerAliveInterval=15 HOST python -P -m ndld_flow.runner.executors.worker

    When ssh or the driver is killed, OpenSSH ends the worker's standard input, and by it the worker with all it has
    started, within a second. Where the network just falls silent, it is the server's `ClientAliveInterval` that does.
    Nobody looks whether that store is the driver's: `ray_node.find_fault` would tell.
    """

    def __init__(
        self, count: int, listener: Listener = ignore, *, trust: bool = False, command: Sequence[str] = COMMAND
    ) -> None:
        self.slots = count
        self._listener = listener
        self._trust = trust
        self._staff = _Staff(command)
        self._tries = 2 if count > 1 else 1
        self._jobs: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self._idle = threading.Semaphore(0)
        self._telling = threading.Lock()
        self._threads: list[threading.Thread] = []

    def submit(self, task: Task, store: Store) -> Future[Sequence[StepRecord]]:
        """Compute a task as soon as a worker is free; until then it can be cancelled.

        Besides what `Executor` says, the future raises WorkerBugError.
        """
        future: Future[Sequence[StepRecord]] = Future()
        self._jobs.put(_Job(task, write_order(task, store, trust=self._trust), store, future))
        if not self._idle.acquire(blocking=False) and len(self._threads) < self.slots:
            # A daemon: a driver that ends without closing must not wait; its workers end with it.
            self._threads.append(threading.Thread(target=self._work, daemon=True))
            self._threads[-1].start()
        return future

    def close(self) -> None:
        """End what is still going on, at once, and leave nothing behind."""
        self._staff.dismiss()
        for _ in self._threads:
            self._jobs.put(None)
        for thread in self._threads:
            thread.join()

    def _work(self) -> None:
        """Do jobs, with a worker of its own."""
        bench = _Bench(self._staff, self._tries)
        while (job := self._jobs.get()) is not None:
            outcome = self._do(job, bench) if job.future.set_running_or_notify_cancel() else None
            self._idle.release()  # before anyone can know and submit more
            if isinstance(outcome, BaseException):
                job.future.set_exception(outcome)
            elif outcome is not None:
                job.future.set_result(outcome)
        bench.leave()

    def _do(self, job: _Job, bench: _Bench) -> Sequence[StepRecord] | BaseException:
        try:
            return read_answer(bench.do(job, Hearing(job.task, self._listener, self._telling)))
        except BaseException as error:
            return error


@dataclass(frozen=True)
class Hearing:
    """Who hears what a worker says of a task."""

    task: Task
    listener: Listener
    telling: threading.Lock

    def progress(self, place: int, done: int, total: int, what: str) -> None:
        with self.telling:
            self.task.works[place].progress(done, total, what)

    def logged(self, place: int, line: str) -> None:
        with self.telling:
            self.task.works[place].logged(line)

    def waits(self, name: str) -> None:
        with self.telling:
            self.listener(StepWaits(name=name, waits_for="another run, which computes the same step"))


class _Staff:
    """All workers that live, to be dismissed in one go."""

    def __init__(self, command: Sequence[str]) -> None:
        self._command = command
        self._lock = threading.Lock()
        self._living: set[WorkerProcess] | None = set()

    def hire(self) -> WorkerProcess:
        """A new worker. Raises BackendError where none can be started, or none is wanted any more."""
        with self._lock:
            if self._living is None:
                raise BackendError("the work was ended before it was done.")
            try:
                worker = WorkerProcess(self._command)
            except OSError as error:
                raise BackendError(f"a worker cannot be started by {self._command[0]!r}: {error.strerror}.") from None
            self._living.add(worker)
        return worker

    def part_with(self, worker: WorkerProcess) -> None:
        """End a worker that is of no more use."""
        worker.release()
        with self._lock:
            if self._living is not None:
                self._living.discard(worker)

    def dismiss(self) -> None:
        """End all, for good."""
        with self._lock:
            living, self._living = self._living or set(), None
        for worker in living:
            worker.end()


class _Bench:
    """A worker's place: who sits there changes when workers die."""

    def __init__(self, staff: _Staff, tries: int) -> None:
        self._staff = staff
        self._tries = tries
        self._worker: WorkerProcess | None = None

    def do(self, job: _Job, ear: Ear) -> Answer:
        """Return the answer to a job.

        Raises KilledError when a signal ended the worker in each try, BackendError when it ended by itself without an
        answer, and StepTimeoutError.
        """
        died = WorkerDiedError("", killed=False)
        for _ in range(self._tries):
            try:
                with self._seated(job.store) as worker:
                    return worker.do(job.order, ear)
            except WorkerDiedError as error:
                died = error
            except WorkerStoppedError:
                raise StepTimeoutError(
                    f"{job.steps}: it took longer than {seconds(job.task.timeout_s or 0)} and was stopped. Allow it "
                    "more by `timeout`."
                ) from None
        kind = KilledError if died.killed else BackendError
        raise kind(f"{job.steps}: the process that worked on it {died}. {_ADVICE[self._tries]}")

    @contextlib.contextmanager
    def _seated(self, store: Store) -> Iterator[WorkerProcess]:
        """The worker who sits here; whoever is interrupted at work is no more of use."""
        if self._worker is not None and not self._worker.lives:
            self.leave()
        self._worker = self._worker or self._staff.hire()
        try:
            yield self._worker
        except BaseException:
            self.leave()
            with contextlib.suppress(OSError):
                store.sweep_building()  # what it was making
            raise

    def leave(self) -> None:
        if self._worker is not None:
            self._staff.part_with(self._worker)
        self._worker = None


def read_answer(answer: Answer) -> Sequence[StepRecord]:
    """The records, or what went wrong, raised here as it was there."""
    if isinstance(answer, Done):
        return answer.records
    if isinstance(answer, Refused):
        kind: type[NdldFlowError] = getattr(errors, answer.error)
        raise kind.with_text(answer.text)
    raise WorkerBugError(f"{answer.error}: {answer.text}") from _WorkersTraceback(answer.traceback)
