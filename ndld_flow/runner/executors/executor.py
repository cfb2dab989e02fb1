"""What every executor does: it computes steps against a store, and knows nothing else of recipes and sweeps."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Protocol

from ndld_flow.base.errors import RequestError
from ndld_flow.records.step_record import StepRecord
from ndld_flow.runner.execute import Work
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
