"""Layers measured in this process, which the product measures in processes of their own."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from ndld_flow.models.tensors import Array
from ndld_flow.runtimes.onnxruntime.layer_pass import count_events, read_layers
from ndld_flow.runtimes.onnxruntime.layer_recording import OPTIMIZED, record_layers
from ndld_flow.runtimes.onnxruntime.onnxruntime_session import SessionSettings
from ndld_flow.runtimes.protocol import LayerPass, RecordingPlan


def measure_layers(
    path: Path, settings: SessionSettings, feeds: Mapping[str, Array], passes: int, scratch: Path
) -> LayerPass:
    """Measure every layer, in `passes` passes or fewer where ONNX Runtime cannot keep their events.

    Raises `ModelError` or `BackendError` as `open_model` does.
    """
    plan = RecordingPlan(passes, count_events(path))
    recording = record_layers(path, settings, feeds, plan, scratch, lambda done, total: None)
    return read_layers(path, [recording], scratch / OPTIMIZED, plan, parallel=settings.execution == "parallel")
