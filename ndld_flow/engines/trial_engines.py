"""TensorRT as the runtime of steps that run changed models: each model is built into an engine of its own, and run."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from ndld_flow.base.errors import BackendError, ModelError
from ndld_flow.base.extras import TITLES, EngineBackend
from ndld_flow.engines.build_settings import BuildSettings
from ndld_flow.runtimes.protocol import RuntimeNames, Session, SessionRequest
from ndld_flow.runtimes.tensorrt.settings import TensorrtSettings
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
