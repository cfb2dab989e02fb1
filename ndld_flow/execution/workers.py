"""The executor that computes steps in worker processes, which live on so that libraries are imported once, and may
die."""

from __future__ import annotations

import contextlib
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from typing import IO

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
from ndld_flow.processes.launch import END_S, Child, module_command, name_signal, start_process
from ndld_flow.records.run_record import StepRecord
from ndld_flow.store.store import Store

COMMAND = module_command("ndld_flow.execution.worker")
_LAST_BYTES = 4096
_LAST_LINES = 3
_LAST_OF_FAILED = 10


class Worker:
    """Computes one order after another in a process, which is started when it is first needed, and again if it died."""

    def __init__(self, environment: Mapping[str, str] | None = None) -> None:
        """`environment`: variables of the process in addition to ours."""
        self._environment = environment
        self._stderr: IO[bytes] | None = None
        self._child: Child | None = None
        self._lock = threading.Lock()
        self._closed = self._stopped = False

    @property
    def pid(self) -> int:
        """The process; 0 if there is none."""
        return 0 if self._child is None else self._child.pid

    def compute(self, order: TaskOrder, store: Store, report: Report) -> End:
        """Send an order, pass on what the process reports, and wait for the end: its answer, or its own end, if it dies
        or is ended after the order's time limit.

        Raises the errors of `report`, and BackendError if the process cannot be started or this was closed. Unless it
        has answered, the process and its unfinished results are gone afterwards.
        """
        idle, child = self._child, self._living()
        end: End | None = None
        try:
            end = self._follow(child, order, report, was_idle=child is idle)
        finally:
            if not isinstance(end, Answer):
                self.release()
                with contextlib.suppress(OSError):
                    store.sweep_building()
        # Without an end, the process was dying when the order came; a new one computes it.
        return self.compute(order, store, report) if end is None else end

    def close(self) -> None:
        """End the process, and start no other. Any thread may call this."""
        with self._lock:
            self._closed, child = True, self._child
        if child is not None:
            child.end()

    def release(self) -> None:
        """End the process and close its files. Only the thread that sends orders may call this."""
        child, self._child = self._child, None
        if child is not None and self._stderr is not None:
            child.release()
            self._stderr.close()

    def _living(self) -> Child:
        with self._lock:
            if self._closed:
                raise BackendError("the executor was closed before this step finished.")
            if self._child is not None and not self._child.lives:
                self.release()
            if self._child is None:
                self._stopped = False
                try:
                    with contextlib.ExitStack() as opened:
                        self._stderr = opened.enter_context(tempfile.TemporaryFile())
                        self._child = Child(start_process(COMMAND, self._stderr, self._environment), END_S)
                        opened.pop_all()
                except OSError as error:
                    raise BackendError(f"a worker cannot be started by {COMMAND[0]!r}: {error.strerror}.") from None
            return self._child

    def _follow(self, child: Child, order: TaskOrder, report: Report, *, was_idle: bool) -> End | None:
        """Return the end of an order; None if a process that was idle before ends without a word."""
        assert self._stderr is not None
        # Drop the output of earlier orders. The file offset is shared with the worker.
        self._stderr.seek(0)
        self._stderr.truncate()
        child.send(order.to_line())
        began = False
        with contextlib.ExitStack() as watch:
            while line := child.read_line():
                began = True
                message = read_message(line)
                if isinstance(message, Answer):
                    for printed in () if isinstance(message, Done) else self._last_printed(_LAST_OF_FAILED):
                        report(Logged(index=0, text=f"printed: {printed}"))
                    return message
                if isinstance(message, Started) and order.timeout_s is not None:
                    watch.enter_context(_alarm(order.timeout_s, partial(self._stop, child)))
                elif isinstance(message, News):
                    report(message)
        code = child.end()
        if self._stopped:
            return Stopped()
        if was_idle and not began:
            return None
        killed_by = name_signal(-code if code < 0 else code - 128)
        how = f"was killed by {killed_by}" if killed_by else f"ended with code {code}"
        last = self._last_printed(_LAST_LINES)
        printed = f"; its last output: {' / '.join(last)}" if last else ""
        return Died(text=f"{how}{printed}", killed=bool(killed_by))

    def _stop(self, child: Child) -> None:
        self._stopped = True
        child.end()

    def _last_printed(self, count: int) -> list[str]:
        """Return the last lines that the worker, and libraries in it, printed since this order."""
        assert self._stderr is not None
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
            for work in self.task.works[message.index : message.index + 1]:  # it may come from another machine
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
        self.workers = [Worker() for _ in range(count)]
        self._idle = list(self.workers)
        """The last one has computed last: its libraries are imported."""

    def submit(self, task: Task, store: Store) -> Future[Sequence[StepRecord]]:
        """Compute a task as soon as a worker is free; until then it can be cancelled.

        The future also raises WorkerBugError, in addition to the errors of `Executor.submit`.
        """
        order = write_order(task, store, trust=self._trust)
        return self._threads.submit(lambda: self._compute(task, order, store))

    def close(self) -> None:
        """Stop everything that is still running, at once, and leave nothing behind."""
        for worker in self.workers:
            worker.close()
        self._threads.join()
        for worker in self._idle:
            worker.release()

    def _compute(self, task: Task, order: TaskOrder, store: Store) -> Sequence[StepRecord]:
        report = TaskListener(task, self._listener, self._listener_lock)
        worker = self._idle.pop()
        try:
            end = worker.compute(order, store, report)
            if isinstance(end, Died) and self._tries > 1:
                end = worker.compute(order, store, report)
        finally:
            self._idle.append(worker)
        if isinstance(end, Died):
            kind = KilledError if end.killed else BackendError
            raise kind(f"the process that computed it {end.text}. {_ADVICE[self._tries]}", step=task.name)
        return read_end(end, task)


def read_end(end: Answer | Stopped, task: Task) -> Sequence[StepRecord]:
    """Return the records of a task that has ended, or raise its error as in the worker."""
    if isinstance(end, Done):
        return end.records
    if isinstance(end, Stopped):
        raise StepTimeoutError.of(task)
    if isinstance(end, Refused):
        error_class = find_error_class(end.error)
        raise error_class.__new__(error_class).with_text(end.text, end.step)
    raise WorkerBugError(f"{end.error}: {end.text}") from _WorkersTraceback(end.traceback)
