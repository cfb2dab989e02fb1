"""The executor of runs with targets: each task is computed on the target of its steps, or on this machine."""

from __future__ import annotations

import queue
import threading
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass

from ndld_flow.records.run_record import StepRecord
from ndld_flow.runner.executors.executor import Executor, Task, join_threads
from ndld_flow.runner.executors.ssh.host import Host
from ndld_flow.runner.executors.ssh.targets import Targets
from ndld_flow.runner.executors.workers import TaskListener
from ndld_flow.runner.listener import Listener
from ndld_flow.store.store import Store


@dataclass(frozen=True)
class _Job:
    task: Task
    store: Store
    future: Future[Sequence[StepRecord]]


class OnTargets:
    """Computes the tasks of some steps on targets, one at a time on each, and the others by another executor."""

    def __init__(self, here: Executor, targets: Targets, listener: Listener, *, trust: bool) -> None:
        self._here, self._targets, self._listener, self._trust = here, targets, listener, trust
        self._listener_lock = threading.Lock()
        self._jobs: dict[str, queue.SimpleQueue[_Job | None]] = {}
        self._threads: list[threading.Thread] = []

    @property
    def slots(self) -> int:
        return self._here.slots + len(self._targets.known)

    def submit(self, task: Task, store: Store) -> Future[Sequence[StepRecord]]:
        host = self._targets.host_of(task.works[0].step)
        if host is None:
            return self._here.submit(task, store)
        if host.name not in self._jobs:
            self._jobs[host.name] = queue.SimpleQueue()
            # Daemon threads: a driver that exits without closing must not wait.
            thread = threading.Thread(target=self._work, args=(host, self._jobs[host.name]), daemon=True)
            self._threads.append(thread)
            thread.start()
        job = _Job(task, store, Future())
        self._jobs[host.name].put(job)
        return job.future

    def close(self) -> None:
        """Stop everything that is still running, here and on the targets, at once."""
        self._here.close()
        self._targets.close()
        for jobs in self._jobs.values():
            jobs.put(None)
        join_threads(self._threads)

    def _work(self, host: Host, jobs: queue.SimpleQueue[_Job | None]) -> None:
        while (job := jobs.get()) is not None:
            if not job.future.set_running_or_notify_cancel():
                continue
            listener = TaskListener(job.task, self._listener, self._listener_lock)
            try:
                job.future.set_result(host.compute(job.task, job.store, listener, trust=self._trust))
            except BaseException as error:
                job.future.set_exception(error)
