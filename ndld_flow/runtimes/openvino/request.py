"""Requests to compile a model in OpenVINO."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from ndld_flow.runtimes.openvino.compile_settings import CompileSettings
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

if TYPE_CHECKING:  # a measuring process imports few modules
    from ndld_flow.models.tensors import Array, TensorSpec


@dataclass(frozen=True)
class OpenvinoRequest(CompileSettings, PrivatePackages, SessionRequest):
    """A model to compile in OpenVINO."""

    runtime: ClassVar[str] = "openvino"
    libraries: ClassVar[tuple[str, ...]] = ("openvino",)

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
        from ndld_flow.runtimes.openvino.openvino_session import record_layers

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
