"""Differences between measuring in ONNX Runtime and measuring an engine, outside the measuring processes."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from ndld_flow.base.errors import ModelError
from ndld_flow.measure.device_roofs import measure_roofs
from ndld_flow.measure.engine_layers import read_engine_layers
from ndld_flow.measure.layer_pass import LayerPass, count_events, read_layers
from ndld_flow.measure.layer_recording import OPTIMISED
from ndld_flow.measure.profiling_request import ProfilingRequest
from ndld_flow.measure.recording_plan import RecordingPlan
from ndld_flow.measure.worker_job import Answer
from ndld_flow.models.files import model_inputs
from ndld_flow.models.layer_evidence import add_evidence
from ndld_flow.models.tensors import TensorSpec, fix_dimensions
from ndld_flow.precision.constraints.constraints import requested_precisions, with_requested_precisions
from ndld_flow.records.profile import Layer, Roofs
from ndld_flow.runtimes.onnxruntime.execution_providers import CPU, full_name
from ndld_flow.runtimes.onnxruntime.onnxruntime_session import SessionSettings
from ndld_flow.runtimes.tensorrt.engine.engine_session import EngineSession
from ndld_flow.runtimes.tensorrt.engine.layer_recording import INSPECTED

Session = SessionSettings | EngineSession


def runs_on_gpu(session: Session) -> bool:
    """Return True for a session on a GPU. Raises `BackendError` for an execution provider that ONNX Runtime does not
    have.
    """
    return isinstance(session, EngineSession) or full_name(session.provider) != CPU


def inputs_of(request: ProfilingRequest) -> tuple[TensorSpec, ...]:
    """Return the model's inputs, with the dimensions that the session fixes."""
    session = request.session
    declared = model_inputs(request.path)
    return declared if isinstance(session, EngineSession) else fix_dimensions(declared, session.free_dimensions)


def environment_of(request: ProfilingRequest, folder: Path) -> Mapping[str, str]:
    """Return environment variables with which a measuring process finds its library; valid as long as `folder`
    exists.
    """
    return {} if request.library is None else request.library.environment(folder)


def plan_recording(request: ProfilingRequest, runs: int) -> RecordingPlan | None:
    """Return the recording plan of each process run; None without a layer pass."""
    if not request.layer_passes:
        return None
    counted = None if isinstance(request.session, EngineSession) else count_events(request.path)
    return RecordingPlan(math.ceil(request.layer_passes / runs), counted)


def read_recordings(request: ProfilingRequest, plan: RecordingPlan, answers: Sequence[Answer]) -> LayerPass:
    """Return the layers that process runs recorded."""
    recordings = [Path(answer.recording) for answer in answers if answer.recording]
    folder, session = recordings[0].parent, request.session
    if isinstance(session, EngineSession):
        found = read_engine_layers(recordings, folder / INSPECTED, [answer.timings[0] for answer in answers])
        return replace(found, layers=add_evidence(_beside_asked(found.layers, request.path), request.path))
    return read_layers(request.path, recordings, folder / OPTIMISED, plan, parallel=session.execution == "parallel")


def _beside_asked(layers: Sequence[Layer], model: Path) -> tuple[Layer, ...]:
    try:
        return with_requested_precisions(layers, requested_precisions(model))
    except ModelError:  # unreadable metadata; the measurement is valid without it
        return tuple(layers)


def roofs_of(session: Session, layers: Sequence[Layer]) -> Roofs | None:
    """Return the peak performance of the device; None where it cannot be measured."""
    return None if isinstance(session, EngineSession) else measure_roofs(session, layers)
