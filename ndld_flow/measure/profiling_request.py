"""What to measure, and how."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from pydantic import JsonValue

from ndld_flow.base.errors import KilledError, RequestError
from ndld_flow.inputs import InputSpec
from ndld_flow.measure.process_runs import Progress
from ndld_flow.measure.stopping import MeasuringPlan
from ndld_flow.runtimes.onnxruntime.onnxruntime_session import SessionSettings
from ndld_flow.runtimes.tensorrt.engine.engine_session import EngineSession
from ndld_flow.runtimes.tensorrt.library import Library


@dataclass(frozen=True)
class ProfilingRequest:
    """A model to measure, with every setting."""

    path: Path
    label: str
    """What a person calls it."""
    digest: str
    inputs: Mapping[str, InputSpec]
    session: SessionSettings | EngineSession
    plan: MeasuringPlan
    layer_passes: int
    """0 for no layer pass."""
    batches: tuple[int, ...]
    seed: int
    options: dict[str, JsonValue]
    """Every setting, for the record."""
    library: Library | None = None
    """The TensorRT that an engine runs in."""
    lock_clocks: bool = False
    """Lock the GPU to its base clock as long as it is measured."""
    sample_gpu: bool = False
    """Ask the GPU what it does while it is measured."""

    @property
    def gpu(self) -> int:
        """Number of the GPU that is measured."""
        if isinstance(self.session, EngineSession):
            return self.session.gpu
        return int(self.session.provider_options.get("device_id", 0))


@dataclass(frozen=True)
class Side:
    """One of those that take turns."""

    request: ProfilingRequest
    scratch: Path
    """An existing folder; nothing is left in it."""
    progress: Progress
    called: str = ""
    """Put before its errors, such as `step speed`."""

    @contextlib.contextmanager
    def naming_errors(self) -> Iterator[None]:
        """Let errors name the side."""
        try:
            yield
        except (RequestError, KilledError) as error:
            if not self.called:
                raise
            raise type(error)(f"{self.called}: {error}") from error
