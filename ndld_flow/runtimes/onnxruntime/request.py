"""Requests to open a model in ONNX Runtime."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Self

from ndld_flow.models.tensors import Array, TensorSpec, fix_dimensions
from ndld_flow.runtimes.onnxruntime.execution_providers import CPU, full_name
from ndld_flow.runtimes.onnxruntime.onnxruntime_session import OnnxruntimeSession, SessionSettings, open_model
from ndld_flow.runtimes.protocol import (
    SEPARATE_COPIES,
    LayerPass,
    PrivatePackages,
    RecordingPlan,
    ReportPasses,
    RuntimeNames,
    SessionFacts,
    SessionRequest,
    Timing,
)

if TYPE_CHECKING:  # a measuring process imports few modules
    from ndld_flow.records.profile import Layer, Roofs, RuntimeTraits

_ON_NVIDIA = ("CUDAExecutionProvider", "TensorrtExecutionProvider", "NvTensorRTRTXExecutionProvider")


@dataclass(frozen=True)
class OnnxruntimeRequest(SessionSettings, PrivatePackages, SessionRequest):
    """A model to open in ONNX Runtime, with the settings of its session."""

    runtime: ClassVar[str] = "onnxruntime"

    @property
    def needs_process(self) -> bool:
        # Only a process's first session decides on denormal numbers, and for all other code in the process too.
        return self.flush_denormals or super().needs_process

    def names(self) -> RuntimeNames:
        advice = "Try another provider or optimization, or fewer threads"
        return RuntimeNames("onnxruntime", "ONNX Runtime", self.provider, advice)

    def open(self, model: Path) -> OnnxruntimeSession:
        session = open_model(model, self)
        self.check_imported("onnxruntime")
        return session

    def open_changed(self, model: Path, changed: bytes) -> OnnxruntimeSession:
        session = open_model(model, self, changed)
        self.check_imported("onnxruntime")
        return session

    def brief(self) -> Self:
        return replace(self, memory_reuse=False)

    def in_turns(self) -> Self:
        return replace(self, spinning_on=False)

    def unfused(self) -> Self:
        return replace(self, optimization="disabled")

    def in_floats(self) -> Self:
        return replace(self, optimization="basic", integer_kernels=False)

    def record_layers(
        self, model: Path, feeds: Mapping[str, Array], plan: RecordingPlan, folder: Path, report: ReportPasses
    ) -> Path:
        from ndld_flow.runtimes.onnxruntime.layer_recording import record_layers

        return record_layers(model, self, feeds, plan, folder, report)

    def measured_gpu(self) -> int | None:
        if self.provider_library is not None:
            return None
        return None if full_name(self.provider) == CPU else int(self.provider_options.get("device_id", 0))

    def declared_inputs(self, model: Path) -> tuple[TensorSpec, ...]:
        return fix_dimensions(super().declared_inputs(model), self.free_dimensions)

    def library_versions(self, reported: Mapping[str, str]) -> dict[str, str]:
        from ndld_flow.machine.versions import read_version

        private = self.private_versions("onnxruntime", "onnxruntime-gpu", "onnxruntime-directml")
        distribution, _, version = read_version("onnxruntime").partition(" ")
        return private or {distribution: version}

    def traits(self, devices: Sequence[str]) -> RuntimeTraits:
        from ndld_flow.profiles.read.onnxruntime_profile import onnxruntime_traits

        return onnxruntime_traits(devices)

    def notes(self, facts: SessionFacts, *, copied: bool) -> Iterator[str]:
        if facts.devices[0] != CPU:
            yield "peak memory is the host's: memory of the device is not counted"
        if copied:
            yield SEPARATE_COPIES

    def plan_recording(self, model: Path, passes: int) -> RecordingPlan:
        from ndld_flow.runtimes.onnxruntime.layer_pass import count_events

        # ONNX Runtime's profiler reads the host's clock: unless each launch on an NVIDIA GPU waits for its kernel, a
        # layer's time is that of its launch, and a layer that waits has the time of those before it.
        captures = any("cuda_graph" in name for name in self.provider_options)
        known = self.provider_library is None
        waits = known and full_name(self.provider) in _ON_NVIDIA and not captures
        return RecordingPlan(passes, count_events(model), environment={"CUDA_LAUNCH_BLOCKING": "1"} if waits else {})

    def read_layers(
        self, model: Path, recordings: Sequence[Path], plan: RecordingPlan, timings: Sequence[Timing]
    ) -> LayerPass:
        from ndld_flow.runtimes.onnxruntime.layer_pass import read_layers

        optimized = self.executed_graph(recordings)
        return read_layers(model, recordings, optimized, plan, parallel=self.execution == "parallel")

    def executed_graph(self, recordings: Sequence[Path]) -> Path | None:
        from ndld_flow.runtimes.onnxruntime.layer_recording import OPTIMIZED

        optimized = recordings[0].parent / OPTIMIZED
        return optimized if optimized.is_file() else None

    def measure_roofs(self, layers: Sequence[Layer]) -> Roofs | None:
        from ndld_flow.runtimes.onnxruntime.device_roofs import measure_roofs

        return None if self.provider_library is not None else measure_roofs(self, layers)
