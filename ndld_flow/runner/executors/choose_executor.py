"""Which executor does what is asked for."""

from __future__ import annotations

from ndld_flow.errors import RequestError
from ndld_flow.runner.events import Listener, StepWaits
from ndld_flow.runner.executors.executor import Executor
from ndld_flow.runner.executors.in_process import InProcess
from ndld_flow.runner.executors.workers import Workers


def choose_executor(jobs: int | None, needs_timeout: bool, listener: Listener, trust: bool) -> Executor:
    """Worker processes where `jobs` asks for several, or one where a step may take only so long: this process cannot
    stop itself. Otherwise this process.

    Raises RequestError for a number of jobs that makes no sense.
    """
    if jobs is not None and jobs < 1:
        raise RequestError(f"--jobs {jobs}: at least one process must do the work.")
    if needs_timeout or (jobs or 1) > 1:
        return Workers(jobs or 1, listener, trust=trust)
    return InProcess(lambda name: listener(StepWaits(name=name, waits_for="another run computes this step")))
