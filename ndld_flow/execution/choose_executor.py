"""Choose the executor for a run or a sweep; with targets, it computes each task on the target of its steps."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ndld_flow.base.errors import RequestError
from ndld_flow.execution.daemon_threads import DaemonThreads
from ndld_flow.execution.events import wait_for_other_run
from ndld_flow.execution.executor import Executor, InProcess, Task
from ndld_flow.execution.listener import Listener
from ndld_flow.execution.request import Request
from ndld_flow.execution.workers import TaskListener, Workers
from ndld_flow.processes.worker import is_one_process
from ndld_flow.recipe.points import Sweep
from ndld_flow.recipe.recipe import Recipe, RecipeStep
from ndld_flow.records.run_record import StepRecord
from ndld_flow.store.store import Store

if TYPE_CHECKING:
    from ndld_flow.execution.ray.executor import OnRay
    from ndld_flow.execution.ssh.targets import Targets


def choose_executor(jobs: int | None, needs_timeout: bool, listener: Listener, trust: bool) -> Executor:
    """Return an executor with `jobs` worker processes, at least one: a crash in native code, or a lack of memory, then
    ends that process and not this one.

    Raises RequestError for fewer than one job.
    """
    if jobs is not None and jobs < 1:
        raise RequestError(f"--jobs {jobs}: use at least 1.")
    alone = (jobs or 1) == 1 and not needs_timeout  # this process cannot stop itself
    if alone and is_one_process():
        return InProcess(lambda *step: listener(wait_for_other_run(*step)))
    return Workers(jobs or 1, listener, trust=trust)


def with_targets(here: Executor, targets: Targets | None, listener: Listener, *, trust: bool) -> Executor:
    """Return an executor that computes steps on their targets, and the others by `here`."""
    return here if targets is None else OnTargets(here, targets, listener, trust=trust)


@dataclass(frozen=True)
class SweepExecutor:
    """An executor, and the machine that computes each step."""

    executor: Executor
    machine_of: Callable[[RecipeStep], str] | None = None
    """Returns the fingerprint of the machine that would compute a step; None if this one computes all."""


def open_executor(
    sweep: Sweep, request: Request, store: Store, listener: Listener, targets: Targets | None
) -> SweepExecutor:
    """Open the executor for a sweep.

    Raises RequestError for options that contradict each other, BackendError if a library or a cluster is missing.
    """
    place = request.place
    if not place.ray:
        here = choose_executor(place.jobs, sweep.section.timeout is not None, listener, request.trust)
        return SweepExecutor(with_targets(here, targets, listener, trust=request.trust))
    refuse_with_ray(request, targets)
    cluster = open_cluster(sweep.base, request, listener)
    return SweepExecutor(cluster, lambda step: cluster.machine_for(step, store))


def refuse_with_ray(request: Request, targets: Targets | None) -> None:
    """Raise RequestError for what contradicts `--ray`."""
    if targets is not None:
        raise RequestError("--ray computes all steps on its cluster, but `on:` or --on names machines: remove one.")
    if request.place.jobs is not None:
        raise RequestError("--jobs runs steps on this machine, and --ray on a cluster: choose one of them.")


def open_cluster(recipe: Recipe, request: Request, listener: Listener) -> OnRay:
    """Connect to the cluster of a request. Raises BackendError if Ray is missing, or does not answer."""
    from ndld_flow.execution.ray.executor import OnRay

    return OnRay(request.place.ray, recipe.file.needs, listener, trust=request.trust)


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
