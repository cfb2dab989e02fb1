"""Which executor does what is asked for."""

from __future__ import annotations

from ndld_flow.base.errors import RequestError
from ndld_flow.base.one_process import is_one_process
from ndld_flow.runner.events import Listener, StepWaits
from ndld_flow.runner.executors.executor import Executor
from ndld_flow.runner.executors.in_process import InProcess
from ndld_flow.runner.executors.workers import Workers


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
