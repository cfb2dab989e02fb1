"""The protocol of executors, and the executor that computes steps in this process."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Protocol, Self, TypeVar

from ndld_flow.base.errors import NdldFlowError, RequestError
from ndld_flow.base.quantities import seconds
from ndld_flow.execution.execute import Work, execute_steps
from ndld_flow.execution.keys import find_misfit, make_key
from ndld_flow.records.run_record import StepRecord
from ndld_flow.store.store import Store, find_record_fault

T = TypeVar("T")


class StepTimeoutError(RequestError):
    """A step exceeded its time limit and was stopped."""

    @classmethod
    def of(cls, task: Task) -> Self:
        """Return the error of a task that was stopped."""
        limit = seconds(task.timeout_s or 0)
        return cls(f"it took longer than {limit} and was stopped. Raise `timeout`.", step=task.name)


@dataclass(frozen=True)
class Task:
    """Steps to compute: one, or several that are measured in turns."""

    works: tuple[Work, ...]
    fresh: bool = False
    """Compute even if the store has the results."""
    timeout_s: float | None = None
    held: bool = False
    """The caller holds the locks of its keys, and the store has no results."""

    @property
    def name(self) -> str:
        """Return the names of its steps, for messages."""
        return " and ".join(work.step.name for work in self.works)


class Executor(Protocol):
    """Computes tasks. A lost answer or a task that runs twice does no harm: the store has one record per key."""

    @property
    def slots(self) -> int:
        """Return the number of tasks that it can compute at once."""

    def submit(self, task: Task, store: Store) -> Future[Sequence[StepRecord]]:
        """Compute a task, or take the results from the store if another process has written them in the meantime.

        The future raises the steps' errors (`NdldFlowError`); `StepTimeoutError` after the time limit; `KilledError`
        when the process that computed it was killed.
        """

    def close(self) -> None:
        """Stop all running tasks at once, and leave nothing behind."""


def compute_steps(
    task: Task, store: Store, report_wait: Callable[[str, str], None], report_start: Callable[[], None] = lambda: None
) -> Sequence[StepRecord]:
    """Lock a task's keys, look up its records in the store, and compute them if they are missing.

    `report_wait` is called with the name of a step that another process is computing and a description of that,
    `report_start` when all locks are held and the work starts. Raises as `execute_steps` does.
    """
    if task.held:
        return execute_steps(task.works, store, report_start)
    keys = [(make_key(work.parts), work.step.name) for work in task.works]
    return find_or_compute(
        store,
        keys,
        lambda: None if task.fresh else find_records(task.works, store),
        lambda: execute_steps(task.works, store, report_start),
        report_wait,
    )


def find_or_compute(
    store: Store,
    keys: Iterable[tuple[str, str]],
    find: Callable[[], T | None],
    compute: Callable[[], T],
    report_wait: Callable[[str, str], None],
) -> T:
    """Lock the keys of steps, given with the steps' names, and return the result of `find`, or else of `compute`.

    Another process may have computed the steps while this one waited for the locks, so `find` is called again.
    """
    with store.locks.hold_keys(keys, report_wait):
        stored = find()
        return compute() if stored is None else stored


def find_records(works: Sequence[Work], store: Store) -> list[StepRecord] | None:
    """Return the records of all these steps if all exist, are intact and come from one measurement session."""
    records = match_records([store.read_record(make_key(work.parts)) for work in works], store)
    return records if records is not None and fit(records, works) else None


def fit(records: Sequence[StepRecord], works: Sequence[Work]) -> bool:
    """Return whether the records of these steps' keys have artifacts of the steps' kinds."""
    return not any(
        find_misfit(record, work.step.type.cls.kinds()[1]) for record, work in zip(records, works, strict=True)
    )


def match_records(records: Sequence[StepRecord | None], store: Store) -> list[StepRecord] | None:
    """Return the records of steps that ran together under the conditions of `find_records`."""
    intact = [record for record in records if record is not None and store.is_intact(record.artifact)]
    if len(intact) < len(records) or len({record.started_at for record in intact}) > 1:
        return None
    return intact


def are_results_of(task: Task, records: Sequence[StepRecord]) -> bool:
    """Return whether records that another machine sent are those of a task's steps, before anything of them is kept."""
    return len(records) == len(task.works) and all(
        record.key == make_key(work.parts)
        and record.parts == work.parts
        and not (find_record_fault(record) or find_misfit(record, work.step.type.cls.kinds()[1]))
        for record, work in zip(records, task.works, strict=True)
    )


class InProcess:
    """Computes each task when it is submitted: for debuggers, and for tests."""

    slots = 1

    def __init__(self, report_wait: Callable[[str, str], None] = lambda *_: None) -> None:
        self._report_wait = report_wait

    def submit(self, task: Task, store: Store) -> Future[Sequence[StepRecord]]:
        answer: Future[Sequence[StepRecord]] = Future()
        try:
            answer.set_result(compute_steps(task, store, self._report_wait))
        except NdldFlowError as error:
            answer.set_exception(error)
        return answer

    def close(self) -> None:
        """Do nothing: no task runs between calls."""
