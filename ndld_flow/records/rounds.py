"""Rounds in which two models alternate pass by pass: the evidence that decides which of the two is faster."""

from __future__ import annotations

from typing import Literal

from ndld_flow.records.base import Record

Clock = Literal["cpu", "wall"]
FEWEST_ROUNDS = 4
"""Fewer rounds decide nothing: a few processes may agree by chance."""


class RoundSide(Record):
    """One model's turns in one round, all in one process. Times are of one pass: a turn's time over its passes."""

    passes: int
    """Passes in each turn; more than one where a pass takes far less than 1 ms."""
    threads: int
    """Threads of the process that the model's library started, and the one that runs the model."""
    wall_ms: tuple[float, ...]
    cpu_ms: tuple[float, ...]
    """CPU time of the whole process."""
    queued_ms: tuple[float, ...] = ()
    """Time in which the process was ready to run while others had the CPU; empty where the system does not report
    it."""


class Round(Record):
    """Two fresh processes that alternated; turn i of both belongs to the same cycle."""

    base: RoundSide
    candidate: RoundSide
    pinned_to: int | None = None
    """The CPU that both were pinned to; None where they were not."""


class ClockRatio(Record):
    """Candidate over base by one clock."""

    ratio: float
    low: float
    """With `high` the interval that decides; it accounts for a test after every round."""
    high: float


class PairedRounds(Record):
    """All rounds of one pair, measured in one session, and the criteria of their verdict."""

    base: int
    """Position among the compared profiles."""
    candidate: int
    rounds: tuple[Round, ...]
    clock: Clock
    """The clock that decides."""
    clock_reason: str
    """The reason for this clock, in a few words."""
    cpu: ClockRatio
    """The median pass by CPU time."""
    wall: ClockRatio
    """The median pass by wall time."""
    clocks_disagree: bool
    """By wall time the two differ by more than CPU time allows; the intervals of verdicts span both clocks then."""
    floor: float
    """Smallest assumed standard deviation of a round: 0.01 is 1 %."""
    rounds_limit: int
    budget_ms: float
    stopped_because: str
