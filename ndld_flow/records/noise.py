"""Noise of a machine, and rounds in which two models alternate pass by pass: the evidence of comparisons."""

from __future__ import annotations

from typing import Literal

from ndld_flow.records.document import Document, Record, Time
from ndld_flow.records.measurement import Machine


class NoiseSample(Record):
    """One A/A comparison: the same model, measured in turns with itself."""

    a_runs_ms: tuple[float, ...]
    """The metric's value in each process run."""
    b_runs_ms: tuple[float, ...]
    ratio: float
    """Ratio of the two latencies, as in a comparison."""


class Noise(Document):
    """Noise of a machine, learned by `noise` into `outputs/noise/`: smaller differences there are insignificant."""

    document: Literal["noise"] = "noise"
    format_version: int = 2
    machine: Machine
    backend: str
    provider: str
    """The execution provider that ran."""
    model: str
    """Display name of the measured model."""
    measured_at: Time
    metric: str = "latency.median"
    """The metric of the samples."""
    samples: tuple[NoiseSample, ...]
    threshold: float
    """The relative difference below which A/A comparisons stay: 0.03 is 3 %."""
    run_cov: float
    """Coefficient of variation of single process runs."""
    single_run_threshold: float
    """The threshold if each side has only one process run."""
    rounds_spread: float | None = None
    """Standard deviation of A/A rounds, in which two processes of the same model alternate pass by pass: 0.01 is 1 %;
    None if no rounds were measured."""


Clock = Literal["cpu", "wall"]


class RoundSide(Record):
    """One model's turns in one round, all in one process. Times are of one pass: a turn's time over its passes."""

    passes: int
    """Measured passes in each turn; more than one if a pass takes less than 10 ms."""
    threads: int
    """Threads of the process that the model's library started, and the one that runs the model."""
    wall_ms: tuple[float, ...]
    cpu_ms: tuple[float, ...]
    """CPU time of the whole process."""
    queued_ms: tuple[float, ...] = ()
    """Time in which the process was ready to run while others had the CPU; empty if the system does not report
    it."""


class Round(Record):
    """Two fresh processes that alternated; turn i of both belongs to the same cycle."""

    base: RoundSide
    candidate: RoundSide
    pinned_to: int | None = None
    """The CPU to which both were pinned; None if they were not."""


class ClockRatio(Record):
    """Candidate over base by one clock."""

    ratio: float
    low: float
    """With `high` the deciding interval, which accounts for a test after every round."""
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
    """By wall time the two differ by more than CPU time allows; the intervals of verdicts then span both clocks."""
    floor: float
    """Smallest assumed standard deviation of a round: 0.01 is 1 %."""
    rounds_limit: int
    budget_ms: float
    stopped_because: str


def describe_noise(noise: Noise) -> str:
    """Return a description of learned noise."""
    return (
        f"±{noise.threshold * 100:.2g} % learned from {len(noise.samples)} A/A comparisons of {noise.model} "
        f"on {noise.machine.cpu}, {noise.measured_at:%Y-%m-%d}"
    )
