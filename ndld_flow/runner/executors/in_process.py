"""The executor that needs nothing: steps are computed here and now, one after another. For debuggers, and for tests."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future

from ndld_flow.base.errors import NdldFlowError
from ndld_flow.records.step_record import StepRecord
from ndld_flow.runner.executors.compute import compute_steps
from ndld_flow.runner.executors.executor import Task
from ndld_flow.store.store import Store


class InProcess:
    """Computes each task when it is submitted."""

    slots = 1

    def __init__(self, tell_wait: Callable[[str], None] = lambda _: None) -> None:
        self._tell_wait = tell_wait

    def submit(self, task: Task, store: Store) -> Future[Sequence[StepRecord]]:
        answer: Future[Sequence[StepRecord]] = Future()
        try:
            answer.set_result(compute_steps(task, store, self._tell_wait))
        except NdldFlowError as error:
            answer.set_exception(error)
        return answer

    def close(self) -> None:
        """Nothing goes on between tasks."""
