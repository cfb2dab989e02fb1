"""The executor that computes steps in worker processes, which live on so that libraries are imported once, and may
die."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass

from ndld_flow.base.errors import BackendError, KilledError
from ndld_flow.base.text import shortened, visible_text
from ndld_flow.execution.daemon_threads import DaemonThreads
from ndld_flow.execution.events import wait_for_other_run
from ndld_flow.execution.executor import StepTimeoutError, Task
from ndld_flow.execution.listener import Listener, ignore
from ndld_flow.execution.messages import (
    Answer,
    Died,
    Done,
    End,
    Failed,
    Logged,
    News,
    Progressed,
    Refused,
    Report,
    Started,
    Stopped,
    TaskOrder,
    Waits,
    find_error_class,
    read_message,
    write_order,
)
from ndld_flow.processes.launch import end_group, name_signal
from ndld_flow.records.run_record import StepRecord
from ndld_flow.store.store import Store

# -P: a file `json.py` in the current directory must not be imported.
COMMAND = (sys.executable, "-P", "-m", "ndld_flow.execution.worker")
_END_S = 5.0
_LAST_BYTES = 4096
_LAST_LINES = 3
_LAST_OF_FAILED = 10


class WorkerProcess:
    """A process that computes one order after another until it is ended."""

    def __init__(self) -> None:
        with contextlib.ExitStack() as opened:
            self._stderr = opened.enter_context(tempfile.TemporaryFile())
            self._process = subprocess.Popen(
                list(COMMAND),
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

    def do(self, order: TaskOrder, report: Report) -> End:
        """Send an order, pass on what the worker reports, and wait for the end: the worker's own, if it dies, or is
        ended after the order's time limit. Raises the errors of `report`.
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
                        report(Logged(place=0, text=f"printed: {printed}"))
                    return message
                if isinstance(message, Started) and order.timeout_s is not None:
                    watch.enter_context(_alarm(order.timeout_s, self._stop))
                elif isinstance(message, News):
                    report(message)
        self.end()
        if self._stopped:
            return Stopped()
        code = self._process.returncode
        killed_by = name_signal(-code if code < 0 else code - 128)
        how = f"was killed by {killed_by}" if killed_by else f"ended with code {self._process.returncode}"
        last = self._last_printed(_LAST_LINES)
        printed = f"; its last output: {' / '.join(last)}" if last else ""
        return Died(text=f"{how}{printed}", killed=bool(killed_by))

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
class TaskListener:
    """Passes what a worker reports on to a task's steps and to the run's listener, one call at a time."""

    task: Task
    listener: Listener
    lock: threading.Lock

    def __call__(self, message: News) -> None:
        with self.lock:
            if isinstance(message, Waits):
                self.listener(wait_for_other_run(message.name, message.holder))
                return
            for work in self.task.works[message.place : message.place + 1]:  # it may come from another machine
                if isinstance(message, Progressed):
                    work.progress(message.done, message.total, message.what)
                else:
                    work.logged(message.text)


class Workers:
    """Computes tasks in up to `count` processes, each started when it is first needed.

    A task whose worker dies while others run is tried once more: they may have used up the memory. Each step's
    `Work.progress` and `listener`, which is called for steps that wait for other processes, are called from other
    threads, one call at a time.
    """

    def __init__(self, count: int, listener: Listener = ignore, *, trust: bool = False) -> None:
        self.slots = count
        self._listener = listener
        self._trust = trust
        self._tries = 2 if count > 1 else 1
        self._threads = DaemonThreads(count)
        self._listener_lock = threading.Lock()
        self._lock = threading.Lock()
        self._living: set[WorkerProcess] | None = set()
        """None if no more may be started."""
        self._idle: list[WorkerProcess] = []

    def submit(self, task: Task, store: Store) -> Future[Sequence[StepRecord]]:
        """Compute a task as soon as a worker is free; until then it can be cancelled.

        The future also raises WorkerBugError, in addition to the errors of `Executor.submit`.
        """
        order = write_order(task, store, trust=self._trust)
        return self._threads.submit(lambda: self._compute(task, order, store))

    def close(self) -> None:
        """Stop everything that is still running, at once, and leave nothing behind."""
        with self._lock:
            living, self._living = self._living or set(), None
        for worker in living:
            worker.end()
        self._threads.join()
        for worker in self._idle:
            worker.release()

    def _compute(self, task: Task, order: TaskOrder, store: Store) -> Sequence[StepRecord]:
        report = TaskListener(task, self._listener, self._listener_lock)
        end = self._attempt(order, store, report)
        if isinstance(end, Died) and self._tries > 1:
            end = self._attempt(order, store, report)
        if isinstance(end, Died):
            kind = KilledError if end.killed else BackendError
            raise kind(f"the process that computed it {end.text}. {_ADVICE[self._tries]}", step=task.name)
        return read_end(end, task)

    def _attempt(self, order: TaskOrder, store: Store, report: Report) -> End:
        """Compute a task in an idle worker, or a new one. It is ended if it does not answer."""
        worker = self._take()
        answered = False
        try:
            end = worker.do(order, report)
            answered = isinstance(end, Answer)
            return end
        finally:
            if answered:
                self._idle.append(worker)
            else:
                self._discard(worker)
                with contextlib.suppress(OSError):
                    store.sweep_building()  # its unfinished results

    def _take(self) -> WorkerProcess:
        """Return a worker. Raises BackendError if none can be started, or the executor is closed."""
        while self._idle:
            worker = self._idle.pop()
            if worker.lives:
                return worker
            self._discard(worker)
        with self._lock:
            if self._living is None:
                raise BackendError("the executor was closed before this step finished.")
            try:
                worker = WorkerProcess()
            except OSError as error:
                raise BackendError(f"a worker cannot be started by {COMMAND[0]!r}: {error.strerror}.") from None
            self._living.add(worker)
        return worker

    def _discard(self, worker: WorkerProcess) -> None:
        worker.release()
        with self._lock:
            if self._living is not None:
                self._living.discard(worker)


def read_end(end: Answer | Stopped, task: Task) -> Sequence[StepRecord]:
    """Return the records of a task that has ended, or raise its error as in the worker."""
    if isinstance(end, Done):
        return end.records
    if isinstance(end, Stopped):
        raise StepTimeoutError.of(task)
    if isinstance(end, Refused):
        raise find_error_class(end.error).with_text(end.text, end.step)
    raise WorkerBugError(f"{end.error}: {end.text}") from _WorkersTraceback(end.traceback)
