"""Requests to open an engine."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from ndld_flow.models.tensors import Array, TensorSpec
from ndld_flow.runtimes.protocol import (
    SEPARATE_COPIES,
    LayerPass,
    RecordingPlan,
    ReportPasses,
    RuntimeNames,
    Session,
    SessionFacts,
    SessionRequest,
    Timing,
)
from ndld_flow.runtimes.tensorrt.engine.engine_settings import EngineSettings

if TYPE_CHECKING:  # measuring processes import this module
    from ndld_flow.records.build import BuiltProfile
    from ndld_flow.records.execution import BuiltFile
    from ndld_flow.records.profile import RuntimeTraits
    from ndld_flow.runtimes.tensorrt.library import Library

_PATHS = ("engine", "model", "lean_runtime", "runtime_cache")


@dataclass(frozen=True)
class EngineRequest(EngineSettings, SessionRequest):
    """An engine to open, with the TensorRT that runs it."""

    runtime: ClassVar[str] = "tensorrt"

    installation: Library | None = None
    """The TensorRT to run it with; a measuring process has it already, from its environment."""
    has_debug_tensors: bool = False
    origin: BuiltFile | None = None
    """The record of the engine's file; a measuring process does not get it."""
    profile: BuiltProfile | None = None
    """The optimization profile that is used; None if it is not known before the engine is open, and in a measuring
    process."""

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> EngineRequest:
        """Return the request from the values of `to_json`, read from JSON."""
        paths = {name: Path(values[name]) for name in _PATHS if values[name] is not None}
        specs = {
            name: tuple(
                TensorSpec(**{**raw, "shape": None if raw["shape"] is None else tuple(raw["shape"])})
                for raw in values[name]
            )
            for name in ("inputs", "outputs")
        }
        marked, plugins = tuple(values["marked"]), tuple(map(Path, values["plugins"]))
        return cls(**{**values, **paths, **specs, "marked": marked, "plugins": plugins})

    def to_json(self) -> dict[str, Any]:
        return asdict(replace(self, installation=None, origin=None, profile=None))

    @property
    def needs_process(self) -> bool:
        return True

    def with_inner_outputs(self, tensors: Sequence[str]) -> EngineRequest:
        own = {spec.name for spec in self.outputs}
        return replace(self, marked=tuple(name for name in tensors if name not in own))

    def with_debug_tensors(self) -> EngineRequest | None:
        if not self.has_debug_tensors:
            return None
        return replace(self, debug_tensors=True, streams=1, queue=0, cuda_graph=False)

    def names(self) -> RuntimeNames:
        return RuntimeNames(self.backend, "TensorRT", self.backend, "Rebuild the engine")

    def open(self, model: Path) -> Session:
        from ndld_flow.runtimes.tensorrt.engine.engine_session import open_engine

        return open_engine(self)

    def record_layers(
        self, model: Path, feeds: Mapping[str, Array], plan: RecordingPlan, folder: Path, report: ReportPasses
    ) -> Path:
        from ndld_flow.runtimes.tensorrt.engine.engine_session import record_engine_layers

        return record_engine_layers(self, feeds, plan.passes, folder, report)

    def environment(self, folder: Path) -> Mapping[str, str]:
        return {} if self.installation is None else self.installation.environment(folder)

    def measured_gpu(self) -> int:
        return self.gpu

    def built_file(self) -> Path:
        return self.engine

    def describe_built_file(self) -> BuiltFile | None:
        return self.origin

    def refuse_shapes(self, shapes: Mapping[str, tuple[int, ...]]) -> None:
        from ndld_flow.runtimes.tensorrt.engine.engine_tensors import refuse_shape

        for name, allowed in self.profile.inputs.items() if self.profile is not None else ():
            if name in shapes and not allowed.values:
                bounds = (allowed.min, allowed.opt, allowed.max)
                refuse_shape(name, shapes[name], bounds, self.optimization_profile)

    def traits(self, devices: Sequence[str]) -> RuntimeTraits:
        from ndld_flow.records.profile import RuntimeTraits

        return RuntimeTraits(library=self.backend.replace("_", "-"), runs_engine=True, on_gpu=True)

    def notes(self, facts: SessionFacts, *, copied: bool) -> Iterator[str]:
        from ndld_flow.base.quantities import size

        yield (
            f"device memory: {size(int(facts.facts['device_used_bytes']))} to load the engine, of which "
            f"{size(int(facts.facts['activation_bytes']))} for the activations of each stream; peak memory is the "
            "host's"
        )
        if self.queue:
            yield (
                "the next pass was enqueued before the running one ended (`queue: 1`): latency is the time between the "
                "ends of two passes, and hides the host's work that fits into it; copies were "
                + ("on the same stream" if self.transfers else "not measured")
            )
        elif self.transfers:
            yield "latency includes the copies of inputs to the device and of outputs from it"
        else:
            yield SEPARATE_COPIES
        if not self.spin_wait:
            yield "latency includes waking the CPU (`spin_wait: false`), unlike that of ONNX Runtime"
        if self.streams > 1:
            yield (
                f"a pass is {self.streams} concurrent inferences, each on its own stream: its latency ends with the "
                f"last of them"
            )

    def read_layers(
        self, model: Path, recordings: Sequence[Path], plan: RecordingPlan, timings: Sequence[Timing]
    ) -> LayerPass:
        from ndld_flow.runtimes.tensorrt.engine.engine_layers import read_engine_layers

        return read_engine_layers(recordings, model, timings)
