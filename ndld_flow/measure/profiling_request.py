"""A request to measure a model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from pydantic import JsonValue

from ndld_flow.inputs import InputSpec
from ndld_flow.measure.process_runs import Progress
from ndld_flow.measure.stopping import MeasuringPlan
from ndld_flow.runtimes.onnxruntime.onnxruntime_session import SessionSettings
from ndld_flow.runtimes.tensorrt.engine.engine_session import EngineSession
from ndld_flow.runtimes.tensorrt.library import Library


@dataclass(frozen=True)
class ProfilingRequest:
    """A model to measure, with all settings."""

    path: Path
    label: str
    """Name of the model in messages and reports."""
    digest: str
    inputs: Mapping[str, InputSpec]
    session: SessionSettings | EngineSession
    plan: MeasuringPlan
    layer_passes: int
    """Passes of the layer pass; 0 for none."""
    batches: tuple[int, ...]
    seed: int
    options: dict[str, JsonValue]
    """Every setting in effect, for the record."""
    library: Library | None = None
    """The TensorRT that runs an engine."""
    lock_clocks: bool = False
    """Lock the GPU to its base clock during the measurement."""
    sample_gpu: bool = False
    """Sample the GPU during the measurement."""

    @property
    def gpu(self) -> int:
        """Return the index of the GPU that is measured."""
        if isinstance(self.session, EngineSession):
            return self.session.gpu
        return int(self.session.provider_options.get("device_id", 0))


@dataclass(frozen=True)
class Side:
    """One of the models that take turns."""

    request: ProfilingRequest
    scratch: Path
    """An existing folder, left empty."""
    progress: Progress
    step: str = ""
    """The step that measures it, for errors."""
