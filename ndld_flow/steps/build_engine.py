"""Build a TensorRT engine."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar

from ndld_flow.base.extras import ENGINE_LIBRARIES
from ndld_flow.base.quantities import counted, seconds, size
from ndld_flow.engines.build_settings import BuildSettings
from ndld_flow.inputs import InputSpec
from ndld_flow.records.build import BuildMemory
from ndld_flow.step import Context, Foresight, Result, Returns, Reuse, Step, metrics
from ndld_flow.store.kinds import Engine, Onnx


class BuildEngine(BuildSettings, Step[Onnx, Engine]):
    """Build a TensorRT or TensorRT-RTX engine of a model.

    The engine is built in a separate process, and a record of the build is kept with it: every setting and its effect
    in TensorRT, layers and the source of their details, memory, and the builder's log.
    """

    also_called: ClassVar[tuple[str, ...]] = ("engine", "trt", "tensorrt", "trtexec", "rtx", "converttensorrt", "build")
    synonyms: ClassVar[Mapping[str, str]] = {
        "builderOptimizationLevel": "optimization_level",
        "memPoolSize": "workspace",
        "max_workspace_size": "workspace",
        "minShapes": "profiles",
        "optShapes": "profiles",
        "maxShapes": "profiles",
        "stronglyTyped": "typing",
        "precisionConstraints": "typing",
        "maxAuxStreams": "max_aux_streams",
        "hardwareCompatibilityLevel": "hardware_compatibility",
        "versionCompatible": "version_compatible",
        "excludeLeanRuntime": "exclude_lean_runtime",
        "timingCacheFile": "timing_cache_file",
        "errorOnTimingCacheMiss": "error_on_timing_cache_miss",
        "noTF32": "tf32",
        "calib": "calibration_cache",
        "sparsity": "sparse_weights",
        "tacticSources": "tactic_sources",
        "staticPlugins": "plugins",
        "dynamicPlugins": "plugins",
        "device": "gpu",
        "profilingVerbosity": "verbosity",
        "stripWeights": "weights",
        "refit": "weights",
        "useDLACore": "advanced.dla_core",
        "inputIOFormats": "advanced.io_formats",
        "outputIOFormats": "advanced.io_formats",
        "avgRuns": "advanced.timing_iterations",
    }

    version: ClassVar[int] = 2
    reuse: ClassVar[Reuse] = Reuse.THIS_MACHINE
    keeps_inputs: ClassVar[bool] = True
    uses_inputs: ClassVar[bool] = True
    returns: ClassVar[tuple[Returns, ...]] = (
        *metrics("layers"),
        *metrics("engine_bytes", unit="bytes"),
        *metrics("build_s", "parse_s", unit="s"),
        *metrics(*(f"memory.{name}" for name in BuildMemory.model_fields), unit="bytes", when="the builder reports it"),
    )

    def run(self, source: Onnx, out: Path, context: Context) -> Result:
        from ndld_flow.engines.building import BuildRequest, build_engine

        request = BuildRequest(
            model=source.path,
            label=source.label,
            digest=source.digest,
            inputs=context.inputs,
            settings=self._settings(),
            out=out,
            caches=context.caches,
            scratch=context.scratch,
        )
        build = build_engine(request, context.progress)
        context.log_lines(*build.notes, *build.warnings)
        where = f" for SM {', '.join(build.compute_capabilities)}" if build.compute_capabilities else ""
        layers = len(build.layers)
        count = sum(constraint.is_ignored for constraint in build.constraints)
        ignored = f", {count} of {len(build.constraints)} constraints ignored" if count else ""
        ignored += f", {counted(len(build.marked_outputs), 'tensor')} marked as outputs" if build.marked_outputs else ""
        return Result(
            f"{size(build.engine_bytes)} engine{where} in {seconds(build.build_s)}: "
            f"{layers} layer{'' if layers == 1 else 's'}, {build.typing}{ignored}",
            metrics={
                "engine_bytes": build.engine_bytes,
                "build_s": build.build_s,
                "parse_s": build.parse_s,
                "layers": len(build.layers),
                **{f"memory.{name}": value for name, value in build.memory.model_dump().items() if value},
            },
        )

    def used_input(self, spec: InputSpec) -> InputSpec | None:
        """Return the shapes, and the value of a shape tensor; None if `profiles` gives all shapes."""
        if self.profiles:
            return None
        return spec.shapes.model_copy(update={"data": spec.data}) if isinstance(spec.data, int) else spec.shapes

    def foresee(self) -> Foresight:
        from ndld_flow.engines.foresight import foresee_build

        return foresee_build(self._settings())

    def foresee_model(self, model: Path, requested: frozenset[str]) -> tuple[str, ...]:
        from ndld_flow.engines.foresight import foresee_ranges

        return foresee_ranges(self._settings(), model, requested)

    @property
    def for_inspection(self) -> bool:
        return bool(self.mark_outputs)

    @property
    def examines_model(self) -> bool:
        return self.int8 or self.typing in ("obey", "prefer")

    def reused_where(self) -> Reuse:
        """Return where the engine may be reused. TensorRT-RTX times nothing during a build: its engines do not depend
        on the machine.
        """
        return Reuse.ANYWHERE if self._is_built_ahead else Reuse.THIS_MACHINE

    def library_versions(self) -> dict[str, str]:
        from ndld_flow.engines.foresight import build_versions

        return build_versions(self._settings())

    @property
    def device(self) -> str:
        """Return the GPU on which tactics are timed, held exclusively; none for engines built ahead of time."""
        return "" if self._is_built_ahead else f"gpu-{self.gpu}"

    @property
    def _is_built_ahead(self) -> bool:
        ahead = self.backend is not None and ENGINE_LIBRARIES[self.backend].compiles_on_load
        return ahead or bool(self.compute_capabilities)

    def _settings(self) -> BuildSettings:
        return BuildSettings.model_validate(self.model_dump())
