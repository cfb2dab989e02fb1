"""TensorRT as the runtime of steps that run changed models: each model is built into an engine of its own, and run."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from pydantic import model_validator

from ndld_flow.base.errors import BackendError, ModelError
from ndld_flow.base.extras import TITLES, EngineBackend
from ndld_flow.engines.build_settings import BuildSettings
from ndld_flow.machine.description import has_nvidia_gpu
from ndld_flow.runtimes.protocol import RuntimeNames, Session, SessionRequest
from ndld_flow.runtimes.settings import ReadArtifact, RuntimeSettings
from ndld_flow.runtimes.tensorrt.settings import TensorrtSettings, describe_missing_gpu
from ndld_flow.step import Context, Foresight
from ndld_flow.store.kinds import Engine, Onnx

if TYPE_CHECKING:
    from ndld_flow.inputs import InputSpec


@dataclass(frozen=True)
class TrialEngineRequest(SessionRequest):
    """A model to build into an engine and to run. Used in the process of the step, which starts those of TensorRT."""

    runtime: ClassVar[str] = "tensorrt"

    backend: EngineBackend
    settings: BuildSettings
    inputs: Mapping[str, InputSpec]
    """The recipe's `inputs:`, whose shapes the engines allow."""
    caches: Path
    scratch: Path

    def names(self) -> RuntimeNames:
        title = TITLES[self.backend]
        return RuntimeNames(self.backend, title, f"GPU {self.settings.gpu}", "Use another runtime")

    def open(self, model: Path) -> Session:
        """Build an engine, which is deleted when it is open.

        Raises `ModelError` too if TensorRT cannot build one: another model of the same step may have one.
        """
        from ndld_flow.runtimes.session_process import open_session

        folder = Path(tempfile.mkdtemp(prefix="engine-", dir=self.scratch))
        try:
            source = Onnx(model, model.stem, "")
            engine = self._build(source, folder)
            run = TensorrtSettings(
                backend=self.backend,
                engine="trial",
                library=self.settings.library,
                release=self.settings.release,
                gpu=self.settings.gpu,
                trust_engine=self.settings.version_compatible,  # built here a moment ago
            )
            return open_session(run.request(source, lambda _: engine), model, self.scratch)
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def _build(self, source: Onnx, folder: Path) -> Engine:
        from ndld_flow.engines.building import BuildRequest, build_engine
        from ndld_flow.models.files import model_inputs

        out, scratch = folder / "out", folder / "scratch"
        out.mkdir()
        scratch.mkdir()
        dynamic = {
            spec.name
            for spec in model_inputs(source.path)
            if spec.shape is None or not all(isinstance(size, int) for size in spec.shape)
        }
        shapes = {name: given.shapes for name, given in self.inputs.items() if name in dynamic}
        request = BuildRequest(
            source.path, source.label, source.digest, shapes, self.settings, out, self.caches, scratch
        )
        try:
            build_engine(request, lambda done, total, what: None)
        except BackendError as error:
            raise ModelError(str(error)) from None
        return Engine(out / Engine.main, "trial", "")


_REFUSED = {
    "lock": "a lock is of one model",
    "mark_outputs": "the step marks the tensors that it reads itself",
    "debug_tensors": "the step marks the tensors that it reads itself",
    "weights": "the engines of trials have weights",
    "compute_capabilities": "trials run on this machine's GPU",
}
"""Settings of `build_engine` that have no meaning for trials -> why."""


class TrialEngineSettings(BuildSettings, RuntimeSettings):
    """Settings by which each model of a step is built into an engine, as in `build_engine`."""

    title: ClassVar[str] = "TensorRT"

    backend: EngineBackend
    """TensorRT or TensorRT-RTX."""

    @model_validator(mode="after")
    def _check_trials(self) -> TrialEngineSettings:
        for name, why in _REFUSED.items():
            if getattr(self, name) != type(self).model_fields[name].default:
                raise ValueError(f"remove `{name}`: {why}")
        return self

    @property
    def device(self) -> str:
        return f"gpu-{self.gpu}"

    @property
    def built_as(self) -> BuildSettings:
        """Return the settings of the builds."""
        return BuildSettings.model_validate(self.model_dump())

    def foresee(self) -> Foresight:
        from ndld_flow.engines.foresight import foresee_build

        seen = foresee_build(self.built_as)
        missing = () if has_nvidia_gpu() else (describe_missing_gpu(self.backend),)
        lacks = tuple(text for text in seen.lacks if "no NVIDIA GPU" not in text or not missing)
        return Foresight(seen.notes, seen.problems, (*lacks, *missing))

    def library_versions(self) -> dict[str, str]:
        from ndld_flow.engines.foresight import find_build_library

        try:
            library = find_build_library(self.built_as)
        except BackendError:  # `foresee` reports it in more detail
            return {}
        return {library.backend: library.version or "not installed"}

    def request(self, model: Onnx, read: ReadArtifact) -> SessionRequest:
        raise NotImplementedError("trials need the step's context: `request_in`")

    def request_in(self, model: Onnx, context: Context, key: str) -> SessionRequest:
        return TrialEngineRequest(self.backend, self.built_as, context.inputs, context.caches, context.scratch)
