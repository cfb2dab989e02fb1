"""Choose the executor for a run or a sweep."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ndld_flow.base.errors import RequestError
from ndld_flow.processes.watchdog import is_one_process
from ndld_flow.recipe.points import Sweep
from ndld_flow.recipe.recipe import RecipeStep
from ndld_flow.runner.events import Listener, wait_for_other_run
from ndld_flow.runner.executors.executor import Executor, InProcess
from ndld_flow.runner.executors.workers import Workers
from ndld_flow.runner.request import Request
from ndld_flow.store.store import Store


def choose_executor(jobs: int | None, needs_timeout: bool, listener: Listener, trust: bool) -> Executor:
    """Return an executor with `jobs` worker processes, at least one: a crash in native code, or a lack of memory, then
    ends that process and not this one.

    Raises RequestError for fewer than one job.
    """
    if jobs is not None and jobs < 1:
        raise RequestError(f"--jobs {jobs}: use at least 1.")
    alone = (jobs or 1) == 1 and not needs_timeout  # this process cannot stop itself
    if alone and is_one_process():
        return InProcess(lambda name: listener(wait_for_other_run(name)))
    return Workers(jobs or 1, listener, trust=trust)


@dataclass(frozen=True)
class SweepExecutor:
    """An executor, and the machine that computes each step."""

    executor: Executor
    machine_of: Callable[[RecipeStep], str] | None = None
    """Returns the fingerprint of the machine that would compute a step; None if this one computes all."""


def open_executor(sweep: Sweep, request: Request, store: Store, listener: Listener) -> SweepExecutor:
    """Open the executor for a request.

    Raises RequestError for options that contradict each other, BackendError if a library or a cluster is missing.
    """
    place = request.place
    if not place.ray:
        if place.remote_store:
            raise RequestError(
                "--remote-store transfers artifacts between the machines of a cluster: give the cluster with --ray."
            )
        return SweepExecutor(choose_executor(place.jobs, sweep.section.timeout is not None, listener, request.trust))
    if place.jobs is not None:
        raise RequestError("--jobs runs steps on this machine, and --ray on a cluster: choose one of them.")
    from ndld_flow.runner.executors.ray.executor import OnRay
    from ndld_flow.store.remote_store import RemoteStore

    remote = RemoteStore(place.remote_store) if place.remote_store else None
    cluster = OnRay(place.ray, sweep.section.needs, listener, trust=request.trust, remote_store=remote)
    return SweepExecutor(cluster, lambda step: cluster.machine_for(step, store))
