"""The protocol of executors, and the executor that computes steps in this process."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from typing import Protocol

from ndld_flow.base.errors import NdldFlowError, RequestError
from ndld_flow.records.step_record import StepRecord
from ndld_flow.runner.execute import Work, execute_steps
from ndld_flow.runner.keys import make_key
from ndld_flow.store.store import Store


class StepTimeoutError(RequestError):
    """A step took longer than it may, and was stopped."""


@dataclass(frozen=True)
class Task:
    """Steps to compute: one, or several that take turns."""

    works: tuple[Work, ...]
    fresh: bool = False
    """Compute although the store has it."""
    timeout_s: float | None = None
    held: bool = False
    """Whoever submits it holds the locks of its keys, and has looked whether the store has it."""


class Executor(Protocol):
    """Computes tasks. Losing an answer or doing a task twice harms nothing: the store has one record for each key."""

    @property
    def slots(self) -> int:
        """Tasks it can do at once."""

    def submit(self, task: Task, store: Store) -> Future[Sequence[StepRecord]]:
        """Compute a task, or take from the store what another process has put there meanwhile.

        The future raises what the steps raise (`NdldFlowError`); `StepTimeoutError` when they took longer than they
        may; `KilledError` when the process that worked on it was killed.
        """

    def close(self) -> None:
        """End what is still going on, at once, and leave nothing behind."""


def compute_steps(
    task: Task, store: Store, tell_wait: Callable[[str], None], tell_begin: Callable[[], None] = lambda: None
) -> Sequence[StepRecord]:
    """The records of a task's steps; `tell_wait` hears the names of those that another process is working on, and
    `tell_begin` when all is held and the work begins.

    Raises what `execute_steps` raises.
    """
    if task.held:
        return execute_steps(task.works, store, tell_begin)
    with contextlib.ExitStack() as held:
        # Steps in another order or company have other keys: two processes hold the same keys in the same order, or none
        for work in task.works:
            held.enter_context(store.locks.hold(make_key(work.parts), partial(tell_wait, work.step.name)))
        found = None if task.fresh else find_records(task.works, store)
        return found if found is not None else execute_steps(task.works, store, tell_begin)


def find_records(works: Sequence[Work], store: Store) -> list[StepRecord] | None:
    """The records of all these steps, where all are there, are intact and come from one sitting."""
    records = [store.read_record(make_key(work.parts)) for work in works]
    found = [record for record in records if record is not None and store.is_intact(record.artifact)]
    if len(found) < len(works) or len({record.started_at for record in found}) > 1:
        return None
    return found


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
