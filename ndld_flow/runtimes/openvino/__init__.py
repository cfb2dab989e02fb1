"""OpenVINO: sessions on its CPU plugin, with the layers that its performance counters time."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from pydantic import Field

from ndld_flow.base.errors import NdldFlowError
from ndld_flow.base.extras import EXTRAS
from ndld_flow.machine.check import Check
from ndld_flow.runtimes.protocol import (
    LayerPass,
    PrivatePackages,
    RecordingPlan,
    ReportPasses,
    RuntimeNames,
    Session,
    SessionFacts,
    SessionRequest,
    Timing,
)
from ndld_flow.runtimes.registry import Runtime
from ndld_flow.runtimes.settings import ReadArtifact, RuntimeSettings
from ndld_flow.step import Foresight
from ndld_flow.store.kinds import Onnx

if TYPE_CHECKING:  # a measuring process imports few modules
    from ndld_flow.models.tensors import Array, TensorSpec

_EXTRA = EXTRAS["openvino"]


class OpenvinoSettings(RuntimeSettings):
    """Settings of a model compiled by OpenVINO."""

    title: ClassVar[str] = "OpenVINO"
    libraries: ClassVar[tuple[str, ...]] = ("openvino",)
    synonyms: ClassVar[Mapping[str, str]] = {
        "performance_hint": "hint",
        "num_streams": "streams",
        "nstreams": "streams",
        "nireq": "requests",
        "num_requests": "requests",
        "inference_num_threads": "threads",
        "nthreads": "threads",
        "inference_precision_hint": "inference_precision",
        "infer_precision": "inference_precision",
        "dynamic_quantization_group_size": "dynamic_quantization",
    }

    backend: Literal["openvino"]
    inference_precision: Literal["f32", "bf16", "f16", "default"] = "f32"
    """OpenVINO: element type in which layers of floating-point numbers compute. With `default`, OpenVINO chooses bf16
    or f16 on a CPU with instructions for it, also for models of float32; the profile shows the types that were used."""
    dynamic_quantization: Annotated[int, Field(ge=0)] | None = None
    """OpenVINO: number of activations that share a scale where a layer with packed weights (of 4 or 8 bits, without
    Q/DQ of its input) quantizes its activations to int8; 0 never does. By default OpenVINO chooses, and quantizes on
    most CPUs."""
    free_dimensions: dict[str, Annotated[int, Field(ge=1)]] = Field(default={})
    """OpenVINO: dimension name -> size, fixed before compilation, so that shapes are constants."""

    hint: Literal["latency", "throughput"] = "latency"
    """OpenVINO: its performance hint. With `throughput`, a pass is as many concurrent inferences as OpenVINO advises,
    and layers are not timed."""
    streams: Annotated[int, Field(ge=0, le=1024)] = 0
    """OpenVINO: number of streams, each of which runs an inference on its share of the threads; 0 lets the hint
    choose."""
    requests: Annotated[int, Field(ge=0, le=1024)] = 0
    """OpenVINO: number of concurrent inferences in a pass; 0 is the number that OpenVINO advises for its streams."""
    threads: Annotated[int, Field(ge=0)] = 0
    """OpenVINO: threads of all streams together; 0 lets OpenVINO choose. It never uses more than it has cores."""

    def foresee(self) -> Foresight:
        lack = _EXTRA.lack("`backend: openvino`")
        return Foresight(lacks=(lack,) if lack else ())

    def request(self, model: Onnx, read: ReadArtifact) -> SessionRequest:
        return OpenvinoRequest.of(self)


@dataclass(frozen=True)
class OpenvinoRequest(PrivatePackages, SessionRequest):
    """A model to compile in OpenVINO."""

    runtime: ClassVar[str] = "openvino"
    libraries: ClassVar[tuple[str, ...]] = ("openvino",)

    hint: str = "latency"
    streams: int = 0
    requests: int = 0
    threads: int = 0
    inference_precision: str = "f32"
    dynamic_quantization: int | None = None
    free_dimensions: Mapping[str, int] = field(default_factory=dict)

    def names(self) -> RuntimeNames:
        return RuntimeNames("openvino", "OpenVINO", "CPU", "Use another runtime")

    def open(self, model: Path) -> Session:
        from ndld_flow.runtimes.openvino.openvino_session import open_model

        session = open_model(model, self)
        self.check_imported("openvino")
        return session

    def record_layers(
        self, model: Path, feeds: Mapping[str, Array], plan: RecordingPlan, folder: Path, report: ReportPasses
    ) -> Path | None:
        from ndld_flow.runtimes.openvino.layer_recording import record_layers

        return record_layers(model, self, feeds, plan.passes, folder, report)

    def declared_inputs(self, model: Path) -> tuple[TensorSpec, ...]:
        from ndld_flow.models.tensors import fix_dimensions

        return fix_dimensions(super().declared_inputs(model), self.free_dimensions)

    def notes(self, facts: SessionFacts, *, copied: bool) -> Iterator[str]:
        requests, threads = facts.facts["concurrent_inferences"], facts.facts["threads"]
        if self.threads and threads != self.threads:
            yield f"OpenVINO runs {threads} threads instead of the {self.threads} of `threads`"
        if requests != 1:
            yield (
                f"a pass is {requests} concurrent inferences: its latency ends with the last of them, and layers are "
                "not timed, because OpenVINO's times of layers then include waiting for each other"
            )

    def read_layers(
        self, model: Path, recordings: Sequence[Path], plan: RecordingPlan, timings: Sequence[Timing]
    ) -> LayerPass:
        from ndld_flow.runtimes.openvino.layer_pass import read_layers

        return read_layers(model, recordings)


class _Openvino(Runtime):
    def settings(self) -> type[RuntimeSettings]:
        return OpenvinoSettings

    def read_request(self, values: Mapping[str, Any]) -> SessionRequest:
        return OpenvinoRequest(**values)

    def examine(self, library: Path | None) -> Iterable[Check]:
        if not _EXTRA.is_installed:
            yield Check(name="openvino", state="absent", found="not installed", advice=_EXTRA.command)
            return
        from ndld_flow.runtimes.openvino.openvino_session import describe_devices

        try:
            yield Check(name="openvino", state="ok", found=describe_devices())
        except NdldFlowError as error:
            yield Check(name="openvino", state="broken", found=str(error))


RUNTIME: Runtime = _Openvino()
