"""Settings of TensorRT as the runtime of steps that run changed models."""

from typing import TYPE_CHECKING, ClassVar

from pydantic import model_validator

from ndld_flow.base.errors import BackendError
from ndld_flow.base.extras import EngineBackend
from ndld_flow.engines.build_settings import BuildSettings
from ndld_flow.machine.description import has_nvidia_gpu
from ndld_flow.runtimes.settings import ReadArtifact, RuntimeSettings
from ndld_flow.runtimes.tensorrt.settings import describe_missing_gpu
from ndld_flow.step import Context, Foresight
from ndld_flow.store.kinds import Onnx

if TYPE_CHECKING:
    from ndld_flow.runtimes.protocol import SessionRequest

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
    def _check_trials(self) -> "TrialEngineSettings":
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

    def request(self, model: Onnx, read: ReadArtifact) -> "SessionRequest":
        raise NotImplementedError("trials need the step's context: `request_in`")

    def request_in(self, model: Onnx, context: Context, key: str) -> "SessionRequest":
        from ndld_flow.engines.trial_engines import TrialEngineRequest

        return TrialEngineRequest(self.backend, self.built_as, context.inputs, context.caches, context.scratch)
