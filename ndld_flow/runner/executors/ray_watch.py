"""What is known of a task on a Ray node from what the node says, and from its silence."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

from ndld_flow.base.errors import BackendError
from ndld_flow.base.quantities import seconds
from ndld_flow.base.text import shortened, visible_name
from ndld_flow.records.step_record import StepRecord
from ndld_flow.runner.executors.executor import StepTimeoutError, Task
from ndld_flow.runner.executors.line import Logged, Progressed, Waits
from ndld_flow.runner.executors.ray_cluster import Said
from ndld_flow.runner.executors.ray_words import Alive, Died, Lacks, Last, Stopped, read_word
from ndld_flow.runner.executors.worker_process import Ear
from ndld_flow.runner.executors.workers import read_answer

SILENCE_S = 60.0
"""A node that works says something every few seconds; one that says nothing for so long is lost."""


class LostError(BackendError):
    """Nobody knows what became of a task; to be tried again."""


class LostWorkerError(LostError):
    """The process that worked on it was killed there."""


class NotBegunError(LostError):
    """It was lost before any node said that it works on it: Ray gave it to one that was going away."""


class LacksError(LostError):
    """Its node could not read artifacts whole: those with these digests."""

    def __init__(self, digests: Sequence[str]) -> None:
        self.digests = digests
        super().__init__("what it reads did not reach its node whole")


@dataclass
class Watch:
    """Listens to one task."""

    task: Task
    ear: Ear
    heard: float | None = None
    """When its node said something last (monotonic seconds); None while it is queued."""

    def hear(self, said: Said) -> Sequence[StepRecord] | None:
        """The task's records; None while it is not done.

        Raises the error it ended with; StepTimeoutError; BackendError when the node cannot do such tasks at all;
        LostError when it, or the process that worked, is gone.
        """
        if said.kind == "refused":
            raise BackendError(f"Ray's node cannot work: {shortened(visible_name(said.text), 300)}.")
        if said.kind != "said":
            lost = NotBegunError if self.heard is None else LostError
            raise lost(said.text or "it ended without an answer")
        self.heard = time.monotonic()
        word = read_word(said.text)
        if isinstance(word, Progressed):
            self.ear.progress(word.place, word.done, word.total, word.what)
        elif isinstance(word, Logged):
            self.ear.logged(word.place, word.text)
        elif isinstance(word, Waits):
            self.ear.waits(word.name)
        elif not isinstance(word, Alive):
            return self._conclude(word)
        return None

    def _conclude(self, last: Last) -> Sequence[StepRecord]:
        if isinstance(last, Died):
            lost = LostWorkerError if last.killed else LostError
            raise lost(f"the process that worked on it {last.text}")
        if isinstance(last, Lacks):
            raise LacksError(last.digests)
        if isinstance(last, Stopped):
            raise StepTimeoutError(
                f"{name_steps(self.task)}: it took longer than {seconds(self.task.timeout_s or 0)} and was stopped. "
                "Allow it more by `timeout`."
            )
        return read_answer(last)

    def check(self) -> None:
        """Raises LostError when the node has been silent for long."""
        if self.heard is not None and time.monotonic() - self.heard > SILENCE_S:
            raise LostError(f"its node has said nothing for {SILENCE_S:g} s")


def name_steps(task: Task) -> str:
    return f"step {' and '.join(work.step.name for work in task.works)}"
