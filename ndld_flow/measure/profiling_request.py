"""A request to measure a model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from pydantic import JsonValue

from ndld_flow.inputs import InputSpec
from ndld_flow.measure.process_runs import Progress
from ndld_flow.measure.stopping import MeasuringPlan
from ndld_flow.models.tensors import Array
from ndld_flow.runtimes.protocol import SessionRequest


@dataclass(frozen=True)
class ProfilingRequest:
    """A model to measure, with all settings."""

    path: Path
    label: str
    """Name of the model in messages and reports."""
    digest: str
    inputs: Mapping[str, InputSpec]
    session: SessionRequest
    plan: MeasuringPlan
    layer_passes: int
    """Passes of the layer pass; 0 for none."""
    batches: tuple[int, ...]
    seed: int
    options: dict[str, JsonValue]
    """Every setting in effect, for the record."""
    steps: int | None = None
    """Number of steps of a sequence; None for as many as its data has."""
    lock_clocks: bool = False
    """Lock the GPU to its base clock during the measurement."""
    restore_clocks: tuple[int, int] | None = None
    """The lock in MHz that the GPU had before and gets again; None if it had none."""
    sample_gpu: bool = False
    """Sample the GPU during the measurement."""
    values: Mapping[str, Array] | None = None
    """Values of the inputs for rounds, instead of those of `inputs`: a part of a model reads captured ones."""


@dataclass(frozen=True)
class Side:
    """One of the models that take turns."""

    request: ProfilingRequest
    scratch: Path
    """An existing folder, empty afterwards."""
    progress: Progress
    step: str = ""
    """The step that measures it, for errors."""
    graph: Path | None = None
    """File for the graph that the runtime ran, without large weights; None to write none."""
