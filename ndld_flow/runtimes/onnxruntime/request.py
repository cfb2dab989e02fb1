"""Requests to open a model in ONNX Runtime."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from ndld_flow.models.tensors import Array, TensorSpec, fix_dimensions
from ndld_flow.runtimes.onnxruntime.execution_providers import CPU, full_name
from ndld_flow.runtimes.onnxruntime.onnxruntime_session import OnnxruntimeSession, SessionSettings, open_model
from ndld_flow.runtimes.protocol import (
    SEPARATE_COPIES,
    LayerPass,
    RecordingPlan,
    ReportPasses,
    RuntimeNames,
    SessionFacts,
    SessionRequest,
    Timing,
)

if TYPE_CHECKING:  # a measuring process imports few modules
    from ndld_flow.records.profile import Layer, Roofs


@dataclass(frozen=True)
class OnnxruntimeRequest(SessionSettings, SessionRequest):
    """A model to open in ONNX Runtime, with the settings of its session."""

    runtime: ClassVar[str] = "onnxruntime"

    def names(self) -> RuntimeNames:
        advice = "Try another provider or optimization, or fewer threads"
        return RuntimeNames("onnxruntime", "ONNX Runtime", self.provider, advice)

    def open(self, model: Path) -> OnnxruntimeSession:
        return open_model(model, self)

    def record_layers(
        self, model: Path, feeds: Mapping[str, Array], plan: RecordingPlan, folder: Path, report: ReportPasses
    ) -> Path:
        from ndld_flow.runtimes.onnxruntime.layer_recording import record_layers

        return record_layers(model, self, feeds, plan, folder, report)

    def measured_gpu(self) -> int | None:
        return None if full_name(self.provider) == CPU else int(self.provider_options.get("device_id", 0))

    def declared_inputs(self, model: Path) -> tuple[TensorSpec, ...]:
        return fix_dimensions(super().declared_inputs(model), self.free_dimensions)

    def library_versions(self, reported: Mapping[str, str]) -> dict[str, str]:
        from ndld_flow.machine.versions import read_version

        distribution, _, version = read_version("onnxruntime").partition(" ")
        return {distribution: version}

    def notes(self, facts: SessionFacts, *, copied: bool) -> Iterator[str]:
        if facts.devices[0] != CPU:
            yield "peak memory is the host's: memory of the device is not counted"
        if copied:
            yield SEPARATE_COPIES

    def plan_recording(self, model: Path, passes: int) -> RecordingPlan:
        from ndld_flow.runtimes.onnxruntime.layer_pass import count_events

        return RecordingPlan(passes, count_events(model))

    def read_layers(
        self, model: Path, recordings: Sequence[Path], plan: RecordingPlan, timings: Sequence[Timing]
    ) -> LayerPass:
        from ndld_flow.runtimes.onnxruntime.layer_pass import read_layers
        from ndld_flow.runtimes.onnxruntime.layer_recording import OPTIMIZED

        optimized = recordings[0].parent / OPTIMIZED
        return read_layers(model, recordings, optimized, plan, parallel=self.execution == "parallel")

    def measure_roofs(self, layers: Sequence[Layer]) -> Roofs | None:
        from ndld_flow.runtimes.onnxruntime.device_roofs import measure_roofs

        return measure_roofs(self, layers)
