"""The protocol of a runtime in a measuring process: ONNX Runtime, or TensorRT on an engine."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from ndld_flow.measure.recording_plan import RecordingPlan
from ndld_flow.models.tensors import Array
from ndld_flow.runtimes.device_facts import DeviceFacts, DeviceTimes
from ndld_flow.runtimes.tensorrt.engine.engine_session import EngineSession

if TYPE_CHECKING:  # a process imports the runtime that it measures, and no other
    from ndld_flow.runtimes.onnxruntime.onnxruntime_session import SessionSettings


class Bound(Protocol):
    """A model with its inputs bound."""

    def once(self) -> None:
        """Run one pass and nothing else."""

    @property
    def can_copy(self) -> bool:
        """Return True when copies are measured separately by `copy_in` and `copy_out`: in ms, or None where unknown."""

    def copy_in(self) -> float | None: ...

    def copy_out(self) -> float | None: ...

    def device_times(self) -> DeviceTimes:
        """Return the times of the last pass."""

    def output_shapes(self) -> dict[str, tuple[str, tuple[int, ...]]]:
        """Return name -> dtype and shape of the outputs of the last pass."""


class Opened(Protocol):
    """A model ready to run."""

    @property
    def load_ms(self) -> float: ...

    @property
    def providers(self) -> tuple[str, ...]:
        """Return the providers that run it, preferred one first."""

    @property
    def log(self) -> str:
        """Return the messages of the library."""

    @property
    def device(self) -> DeviceFacts: ...

    def bind(self, feeds: Mapping[str, Array], on_device: bool) -> Bound: ...


Tell = Callable[[int, int], None]


@dataclass(frozen=True)
class Library:
    """An imported runtime."""

    open: Callable[[], Opened]
    record: Callable[[Mapping[str, Array], RecordingPlan, Path, Tell], Path]
    """Runs with the runtime's profiler on, in a session of its own; returns the file it wrote."""


def import_library(model: Path, session: SessionSettings | EngineSession) -> Library:
    """Import the runtime of a session, ready to open the model."""
    if isinstance(session, EngineSession):
        return _tensorrt(session)
    return _onnxruntime(model, session)


def _onnxruntime(model: Path, session: SessionSettings) -> Library:
    from ndld_flow.measure.layer_recording import record_layers
    from ndld_flow.runtimes.onnxruntime.onnxruntime_session import open_model

    return Library(
        open=lambda: open_model(model, session),
        record=lambda feeds, plan, folder, progress: record_layers(model, session, feeds, plan, folder, progress),
    )


def _tensorrt(session: EngineSession) -> Library:
    from ndld_flow.runtimes.tensorrt.engine.layer_recording import record_engine_layers
    from ndld_flow.runtimes.tensorrt.engine.open_engine import open_engine

    return Library(
        open=lambda: open_engine(session),
        record=lambda feeds, plan, folder, progress: record_engine_layers(
            session, feeds, plan.passes, folder, progress
        ),
    )
