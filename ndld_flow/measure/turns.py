"""The answers of a process that runs passes on command. Imports nothing, since the process starts in every round."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Opening:
    """The model is open and has run once."""

    threads: int
    """The thread that runs the model and those that the library started; 1 where the system does not report them."""


@dataclass(frozen=True)
class Turn:
    """Some passes, run one after the other."""

    wall_ms: float
    cpu_ms: float
    """CPU time of the whole process."""
    queued_ms: float | None
    """Time in which the thread was ready to run while others had the CPU; None where the system does not report it."""
