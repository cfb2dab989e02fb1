"""Choose the executor for a run or a sweep."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ndld_flow.base.errors import RequestError
from ndld_flow.base.one_process import is_one_process
from ndld_flow.recipe.points import Sweep
from ndld_flow.recipe.recipe import RecipeStep
from ndld_flow.runner.events import Listener, StepWaits
from ndld_flow.runner.executors.executor import Executor, InProcess
from ndld_flow.runner.executors.workers import Workers
from ndld_flow.runner.state import Request
from ndld_flow.store.store import Store


def choose_executor(jobs: int | None, needs_timeout: bool, listener: Listener, trust: bool) -> Executor:
    """As many worker processes as `jobs` asks for, otherwise one: what crashes in native code, or takes all memory,
    ends that process and not this one.

    Raises RequestError for a number of jobs that makes no sense.
    """
    if jobs is not None and jobs < 1:
        raise RequestError(f"--jobs {jobs}: at least one process must do the work.")
    alone = (jobs or 1) == 1 and not needs_timeout  # this process cannot stop itself
    if alone and is_one_process():
        return InProcess(
            lambda name: listener(StepWaits(name=name, waits_for="another run, which computes the same step"))
        )
    return Workers(jobs or 1, listener, trust=trust)


@dataclass(frozen=True)
class Crew:
    """An executor, and on which machine it does what."""

    executor: Executor
    machine_of: Callable[[RecipeStep], str] | None = None
    """The fingerprint of the machine that would do a step; None: this one does all."""


def open_crew(sweep: Sweep, request: Request, store: Store, listener: Listener) -> Crew:
    """Who was asked for.

    Raises RequestError for a request that makes no sense, BackendError when what it needs is not there.
    """
    place = request.place
    if not place.ray:
        if place.remote_store:
            raise RequestError("--remote-store carries artifacts between the machines of a cluster: name it by --ray.")
        return Crew(choose_executor(place.jobs, sweep.section.timeout is not None, listener, request.trust))
    if place.jobs is not None:
        raise RequestError("--jobs is for this machine, and --ray has a cluster do the steps: choose one of them.")
    from ndld_flow.runner.executors.ray.executor import OnRay
    from ndld_flow.store.remote_store import RemoteStore

    remote = RemoteStore(place.remote_store) if place.remote_store else None
    cluster = OnRay(place.ray, sweep.section.needs, listener, trust=request.trust, remote_store=remote)
    return Crew(cluster, lambda step: cluster.machine_for(step, store))
