"""The executor of runs with targets: each task is computed on the target of its steps, or on this machine."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from concurrent.futures import Future

from ndld_flow.execution.daemon_threads import DaemonThreads
from ndld_flow.execution.executor import Executor, Task
from ndld_flow.execution.listener import Listener
from ndld_flow.execution.ssh.targets import Targets
from ndld_flow.execution.workers import TaskListener
from ndld_flow.records.run_record import StepRecord
from ndld_flow.store.store import Store


class OnTargets:
    """Computes the tasks of some steps on targets, one at a time on each, and the others by another executor."""

    def __init__(self, here: Executor, targets: Targets, listener: Listener, *, trust: bool) -> None:
        self._here, self._targets, self._listener, self._trust = here, targets, listener, trust
        self._listener_lock = threading.Lock()
        self._threads: dict[str, DaemonThreads] = {}
        """By the names of targets."""

    @property
    def slots(self) -> int:
        return self._here.slots + len(self._targets.known)

    def submit(self, task: Task, store: Store) -> Future[Sequence[StepRecord]]:
        host = self._targets.host_of(task.works[0].step)
        if host is None:
            return self._here.submit(task, store)
        report = TaskListener(task, self._listener, self._listener_lock)
        thread = self._threads.setdefault(host.name, DaemonThreads(1))
        return thread.submit(lambda: host.compute(task, store, report, trust=self._trust))

    def close(self) -> None:
        """Stop everything that is still running, here and on the targets, at once."""
        self._here.close()
        self._targets.close()
        for thread in self._threads.values():
            thread.join()
