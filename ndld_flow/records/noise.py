"""Noise of a machine: differences between measurements of one and the same model."""

from __future__ import annotations

from datetime import datetime
from typing import Literal

from ndld_flow.records.base import Document, Record
from ndld_flow.records.formats import VERSIONS
from ndld_flow.records.machine import Machine


class NoiseSample(Record):
    """One A/A comparison: the same model, measured in turns with itself."""

    a_runs_ms: tuple[float, ...]
    """The metric's value in each process run."""
    b_runs_ms: tuple[float, ...]
    ratio: float
    """Ratio of the two latencies, as in a comparison."""


class Noise(Document):
    """Thresholds that `ndld-flow noise` learned: smaller differences are insignificant on this machine."""

    document: Literal["noise"] = "noise"
    format_version: int = VERSIONS["noise"]
    machine: Machine
    backend: str
    provider: str
    """The execution provider that ran."""
    model: str
    """Name of the measured model, for people."""
    measured_at: datetime
    metric: str = "latency.median"
    """The metric of the samples."""
    samples: tuple[NoiseSample, ...]
    threshold: float
    """The relative difference that A/A comparisons stay below: 0.03 is 3 %."""
    run_cov: float
    """Coefficient of variation of single process runs."""
    single_run_threshold: float
    """The threshold where each side has only one process run."""
    rounds_spread: float | None = None
    """Standard deviation of A/A rounds, in which two processes of the same model alternate pass by pass: 0.01 is 1 %;
    None where no rounds were measured."""
