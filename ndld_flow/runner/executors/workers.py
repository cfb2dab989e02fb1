"""The executor that computes steps in worker processes, which live on so that libraries are imported once, and may
die."""

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

from ndld_flow.base.errors import BackendError, KilledError
from ndld_flow.base.text import shortened, visible_text
from ndld_flow.processes.launch import end_group, name_signal
from ndld_flow.records.run_record import StepRecord
from ndld_flow.runner.events import wait_for_other_run
from ndld_flow.runner.executors.executor import StepTimeoutError, Task, join_threads
from ndld_flow.runner.executors.messages import (
    Answer,
    Done,
    Failed,
    Logged,
    News,
    Progressed,
    Refused,
    Started,
    TaskOrder,
    find_error_class,
    read_message,
    write_order,
)
from ndld_flow.runner.listener import Listener, ignore
from ndld_flow.store.store import Store

# -P: a file `json.py` in the current directory must not be imported.
COMMAND = (sys.executable, "-P", "-m", "ndld_flow.runner.executors.worker")
_END_S = 5.0
_LAST_BYTES = 4096
_LAST_LINES = 3
_LAST_OF_FAILED = 10


class ProgressListener(Protocol):
    """Receives a worker's messages while it computes a task."""

    def progress(self, place: int, done: int, total: int, what: str) -> None: ...

    def logged(self, place: int, line: str) -> None: ...

    def waits(self, name: str, holder: str) -> None: ...


class WorkerDiedError(Exception):
    """A worker ended without an answer; the text gives the reason and its last output."""

    def __init__(self, text: str, *, killed: bool) -> None:
        super().__init__(text)
        self.killed = killed
        """True if a signal ended it."""


class WorkerStoppedError(Exception):
    """A worker was ended because its task exceeded its time limit."""


class WorkerProcess:
    """A process that computes one order after another until it is ended."""

    def __init__(self, command: Sequence[str] = COMMAND) -> None:
        with contextlib.ExitStack() as opened:
            self._stderr = opened.enter_context(tempfile.TemporaryFile())
            self._process = subprocess.Popen(
                list(command),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._stderr,
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

    def do(self, order: TaskOrder, listener: ProgressListener) -> Answer:
        """Send an order and wait for the answer.

        Raises WorkerDiedError, WorkerStoppedError after the order's time limit, and the listener's errors.
        """
        # Drop the output of earlier orders. The file offset is shared with the worker.
        self._stderr.seek(0)
        self._stderr.truncate()
        with contextlib.ExitStack() as watch:
            with contextlib.suppress(OSError, ValueError):  # it has died; its exit code gives the reason
                assert self._process.stdin is not None
                self._process.stdin.write(order.to_line().encode())
                self._process.stdin.flush()
            for line in self._process.stdout or ():
                message = read_message(line)
                if isinstance(message, Done | Refused | Failed):
                    for printed in () if isinstance(message, Done) else self._last_printed(_LAST_OF_FAILED):
                        listener.logged(0, f"printed: {printed}")
                    return message
                if isinstance(message, Started) and order.timeout_s is not None:
                    watch.enter_context(_alarm(order.timeout_s, self._stop))
                elif isinstance(message, News):
                    forward(message, listener)
        self.end()
        if self._stopped:
            raise WorkerStoppedError
        code = self._process.returncode
        killed_by = name_signal(-code if code < 0 else code - 128)
        how = f"was killed by {killed_by}" if killed_by else f"ended with code {self._process.returncode}"
        last = self._last_printed(_LAST_LINES)
        printed = f"; its last output: {' / '.join(last)}" if last else ""
        raise WorkerDiedError(f"{how}{printed}", killed=bool(killed_by))

    def _stop(self) -> None:
        self._stopped = True
        self.end()

    def end(self) -> None:
        """End the process and everything that it started, at once. Any thread may call this, any number of times."""
        if self._process.stdin is not None:
            with contextlib.suppress(OSError, ValueError):
                self._process.stdin.close()
        try:
            self._process.wait(_END_S)  # its watchdog ends all its children, including those in other sessions
        except subprocess.TimeoutExpired:
            end_group(self._process)

    def release(self) -> None:
        """End the process and close its files. Only the thread that sends orders may call this."""
        self.end()
        end_group(self._process)
        self._stderr.close()

    def _last_printed(self, count: int) -> list[str]:
        """Return the last lines that the worker, and libraries in it, printed since this order."""
        size = self._stderr.seek(0, 2)
        self._stderr.seek(max(0, size - _LAST_BYTES))
        lines = visible_text(self._stderr.read().decode(errors="replace")).split("\n")
        return [shortened(line.strip(), 300) for line in lines if line.strip()][-count:]


def forward(message: News, listener: ProgressListener) -> None:
    """Pass what a task reports on to its listener."""
    if isinstance(message, Progressed):
        listener.progress(message.place, message.done, message.total, message.what)
    elif isinstance(message, Logged):
        listener.logged(message.place, message.text)
    else:
        listener.waits(message.name, message.holder)


@contextlib.contextmanager
def _alarm(after_s: float, ring: Callable[[], None]) -> Iterator[None]:
    """Call `ring` after some seconds, unless the block has ended before."""
    timer = threading.Timer(after_s, ring)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


_ADVICE = {
    1: "Finished steps are kept. It may have run out of memory, or a library crashed on this model or these settings: "
    "inspect the results of the steps before it, and try other settings.",
    2: "A second attempt failed in the same way. If memory is short, run fewer steps at once (`--jobs`).",
}
"""By the number of attempts."""


class WorkerBugError(Exception):
    """A bug in ndld_flow or in a step that occurred in a worker. Its cause holds the worker's traceback."""


class _WorkersTraceback(Exception):
    """The worker's traceback, as text."""

    def __str__(self) -> str:
        return f"\n{self.args[0]}"


@dataclass(frozen=True)
class _Job:
    task: Task
    order: TaskOrder
    store: Store
    future: Future[Sequence[StepRecord]]


class Workers:
    """Computes tasks in up to `count` processes, each started when it is first needed.

    A task whose worker dies while others run is tried once more: they may have used up the memory. Each step's
    `Work.progress` and `listener`, which is called for steps that wait for other processes, are called from other
    threads, one call at a time. `command` starts a worker, possibly on another machine that has the store and the
    models under the same path::

        ssh -o BatchMode=yes -o ServerAliveInterval=15 HOST python -P -m ndld_flow.runner.executors.worker

    When ssh or the driver is killed, OpenSSH closes the worker's standard input within a second, which ends the worker
    with all that it has started. If the network fails, the server's `ClientAliveInterval` does the same. Nothing checks
    that the worker's store is the driver's; `ray.node.find_fault` could.
    """

    def __init__(
        self, count: int, listener: Listener = ignore, *, trust: bool = False, command: Sequence[str] = COMMAND
    ) -> None:
        self.slots = count
        self._listener = listener
        self._trust = trust
        self._pool = _WorkerPool(command)
        self._tries = 2 if count > 1 else 1
        self._jobs: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self._idle = threading.Semaphore(0)
        self._listener_lock = threading.Lock()
        self._threads: list[threading.Thread] = []

    def submit(self, task: Task, store: Store) -> Future[Sequence[StepRecord]]:
        """Compute a task as soon as a worker is free; until then it can be cancelled.

        The future also raises WorkerBugError, in addition to the errors of `Executor.submit`.
        """
        future: Future[Sequence[StepRecord]] = Future()
        self._jobs.put(_Job(task, write_order(task, store, trust=self._trust), store, future))
        if not self._idle.acquire(blocking=False) and len(self._threads) < self.slots:
            # Daemon threads: a driver that exits without closing must not wait; its workers end with it.
            self._threads.append(threading.Thread(target=self._work, daemon=True))
            self._threads[-1].start()
        return future

    def close(self) -> None:
        """Stop everything that is still running, at once, and leave nothing behind."""
        self._pool.close()
        for _ in self._threads:
            self._jobs.put(None)
        join_threads(self._threads)

    def _work(self) -> None:
        """Compute jobs in one worker."""
        slot = _WorkerSlot(self._pool, self._tries)
        while (job := self._jobs.get()) is not None:
            outcome = self._do(job, slot) if job.future.set_running_or_notify_cancel() else None
            self._idle.release()  # before the caller can submit more
            if isinstance(outcome, BaseException):
                job.future.set_exception(outcome)
            elif outcome is not None:
                job.future.set_result(outcome)
        slot.leave()

    def _do(self, job: _Job, slot: _WorkerSlot) -> Sequence[StepRecord] | BaseException:
        try:
            return read_answer(slot.do(job, TaskListener(job.task, self._listener, self._listener_lock)))
        except BaseException as error:
            return error


@dataclass(frozen=True)
class TaskListener:
    """Passes a worker's messages on to a task's steps and to the run's listener."""

    task: Task
    listener: Listener
    lock: threading.Lock

    def progress(self, place: int, done: int, total: int, what: str) -> None:
        with self.lock:
            for work in self.task.works[place : place + 1]:  # the place may come from another machine
                work.progress(done, total, what)

    def logged(self, place: int, line: str) -> None:
        with self.lock:
            for work in self.task.works[place : place + 1]:
                work.logged(line)

    def waits(self, name: str, holder: str) -> None:
        with self.lock:
            self.listener(wait_for_other_run(name, holder))


class _WorkerPool:
    """All running workers, which are ended together."""

    def __init__(self, command: Sequence[str]) -> None:
        self._command = command
        self._lock = threading.Lock()
        self._living: set[WorkerProcess] | None = set()

    def start(self) -> WorkerProcess:
        """Start a worker. Raises BackendError if that fails, or the pool is closed."""
        with self._lock:
            if self._living is None:
                raise BackendError("the executor was closed before this step finished.")
            try:
                worker = WorkerProcess(self._command)
            except OSError as error:
                raise BackendError(f"a worker cannot be started by {self._command[0]!r}: {error.strerror}.") from None
            self._living.add(worker)
        return worker

    def discard(self, worker: WorkerProcess) -> None:
        """End a worker that is no longer needed."""
        worker.release()
        with self._lock:
            if self._living is not None:
                self._living.discard(worker)

    def close(self) -> None:
        """End all workers permanently."""
        with self._lock:
            living, self._living = self._living or set(), None
        for worker in living:
            worker.end()


class _WorkerSlot:
    """A slot for one worker, which is replaced when it dies."""

    def __init__(self, pool: _WorkerPool, tries: int) -> None:
        self._pool = pool
        self._tries = tries
        self._worker: WorkerProcess | None = None

    def do(self, job: _Job, listener: ProgressListener) -> Answer:
        """Return the answer to a job.

        Raises KilledError if a signal ended the worker in each attempt, BackendError if it exited without answer,
        and StepTimeoutError.
        """
        died = WorkerDiedError("", killed=False)
        for _ in range(self._tries):
            try:
                with self._running_worker(job.store) as worker:
                    return worker.do(job.order, listener)
            except WorkerDiedError as error:
                died = error
            except WorkerStoppedError:
                raise StepTimeoutError.of(job.task) from None
        kind = KilledError if died.killed else BackendError
        raise kind(f"the process that computed it {died}. {_ADVICE[self._tries]}", step=job.task.name)

    @contextlib.contextmanager
    def _running_worker(self, store: Store) -> Iterator[WorkerProcess]:
        """Yield the slot's worker; after an error it is replaced."""
        if self._worker is not None and not self._worker.lives:
            self.leave()
        self._worker = self._worker or self._pool.start()
        try:
            yield self._worker
        except BaseException:
            self.leave()
            with contextlib.suppress(OSError):
                store.sweep_building()  # its unfinished results
            raise

    def leave(self) -> None:
        if self._worker is not None:
            self._pool.discard(self._worker)
        self._worker = None


def read_answer(answer: Answer) -> Sequence[StepRecord]:
    """Return the records of an answer, or raise its error as in the worker."""
    if isinstance(answer, Done):
        return answer.records
    if isinstance(answer, Refused):
        raise find_error_class(answer.error).with_text(answer.text, answer.step)
    raise WorkerBugError(f"{answer.error}: {answer.text}") from _WorkersTraceback(answer.traceback)
