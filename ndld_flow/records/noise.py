"""How far two measurements of the very same thing lie apart on one machine."""

from __future__ import annotations

from datetime import datetime
from typing import Literal

from ndld_flow.records.base import Document, Record
from ndld_flow.records.formats import VERSIONS
from ndld_flow.records.machine import Machine


class NoiseSample(Record):
    """One A/A comparison: the same model, measured as two that take turns."""

    a_runs_ms: tuple[float, ...]
    """The metric's value in each process run."""
    b_runs_ms: tuple[float, ...]
    ratio: float
    """Of the two latencies as a comparison would give it."""


class Noise(Document):
    """What `ndld-flow noise` learned: differences below it mean nothing here."""

    document: Literal["noise"] = "noise"
    format_version: int = VERSIONS["noise"]
    machine: Machine
    backend: str
    provider: str
    """The execution provider that ran."""
    model: str
    """What was measured, as a person calls it."""
    measured_at: datetime
    metric: str = "latency.median"
    """What the samples are values of."""
    samples: tuple[NoiseSample, ...]
    threshold: float
    """The relative difference that A/A comparisons stay below: 0.03 is 3 %."""
    run_cov: float
    """Coefficient of variation of single process runs."""
    single_run_threshold: float
    """The same where each side has one process run only."""
    rounds_spread: float | None = None
    """Standard deviation of A/A rounds, in which two processes of the same model alternate pass by pass: 0.01 is 1 %;
    None where no rounds were measured."""
