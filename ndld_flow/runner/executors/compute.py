"""Compute steps against a store: lock their keys, look whether another process was faster, do the work."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from functools import partial

from ndld_flow.records.step_record import StepRecord
from ndld_flow.runner.execute import Work, execute_steps
from ndld_flow.runner.executors.executor import Task
from ndld_flow.runner.keys import make_key
from ndld_flow.store.store import Store


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
