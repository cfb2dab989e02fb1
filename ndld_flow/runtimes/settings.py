"""Settings of runtimes in a recipe: one class for each; `backend` chooses one."""

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, get_args

from ndld_flow.base.errors import RequestError
from ndld_flow.base.extras import EXTRAS
from ndld_flow.base.settings import Settings
from ndld_flow.machine.versions import NOT_INSTALLED, read_version
from ndld_flow.step import Context, Foresight
from ndld_flow.store.kinds import Artifact, Onnx

if TYPE_CHECKING:
    from ndld_flow.runtimes.protocol import SessionRequest

ReadArtifact = Callable[[str], Artifact]
"""Returns the artifact of the step that a setting names."""


@dataclass(frozen=True)
class Builder:
    """The step that builds what a runtime runs instead of the model."""

    step: str
    """The type of the step. It has a setting `backend` too; the runtime's setting `engine` names the step."""
    file_setting: str
    """The runtime's setting that names a built file instead."""
    shared_settings: tuple[str, ...] = ()
    """Settings of the runtime that the step must have too."""


class RuntimeSettings(Settings, defer_build=False):
    """Settings of a runtime. A subclass has a setting `backend`, a `Literal` of the names by which it is chosen."""

    title: ClassVar[str]
    """The library, as its documentation calls it."""
    libraries: ClassVar[tuple[str, ...]] = ()
    """Distributions that determine a measurement, the library itself first."""
    reports_device_times: ClassVar[bool] = False
    """Its sessions report times by the device's own clock, and the device's memory."""
    reports_tactics: ClassVar[bool] = False
    """Its layers have tactics, from which the use of Tensor Cores is known."""

    quantize_target: ClassVar[str] = ""
    """The `target` of `quantize` for models that it runs; empty for the default one."""
    own_precision: ClassVar[str] = ""
    """The setting with which it chooses the types in which layers compute; empty if these are always the model's."""
    concurrency: ClassVar[str] = ""
    """The setting with which a pass is as many concurrent inferences as the throughput needs; empty for none."""
    extra: ClassVar[str] = ""
    """The extra of ndld_flow that installs the library; empty for another."""
    builder: ClassVar[Builder | None] = None
    """How `ndld-flow profile` builds what it runs; None if it runs models."""

    @property
    def device(self) -> str:
        """Return the device that is measured and held exclusively: `cpu`, or `gpu-0`."""
        return "cpu"

    @classmethod
    def backends(cls) -> tuple[str, ...]:
        """Return the values of `backend` that choose this runtime."""
        return get_args(cls.model_fields["backend"].annotation)

    @classmethod
    def lack(cls, task: str) -> str:
        """Return why a task cannot run, with the command that installs the libraries; empty if they are installed."""
        if cls.extra:
            return EXTRAS[cls.extra].lack(task)
        missing = [name for name in cls.libraries if read_version(name) == NOT_INSTALLED]
        return f"{task} needs {cls.title}: run `pip install {' '.join(missing)}`" if missing else ""

    @classmethod
    def find_own_precision(cls) -> str:
        """Return the type in which it computes layers of float32 on this machine with `own_precision`."""
        return "float32"

    def opening(self, model: str) -> str:
        """Return Python that opens a model with these settings; empty if nothing but its path is to be given."""
        return ""

    def foresee(self) -> Foresight:
        """Return what is missing on this machine; by default the libraries."""
        lack = self.lack(f"`backend: {self.backends()[0]}`")
        return Foresight(lacks=(lack,) if lack else ())

    def with_engine(self, step: str) -> "RuntimeSettings":
        """Return the settings with the engine of another step. Raises `RequestError` for a runtime without engines."""
        raise RequestError(f"{self.title} runs no engine, but the one of step {step} is named for it.")

    def library_versions(self) -> dict[str, str]:
        """Return the libraries that determine a measurement -> their versions."""
        return {name: read_version(name) for name in self.libraries}

    def request_in(self, model: Onnx, context: Context, key: str) -> "SessionRequest":
        """Return the request to open the model in a step whose setting `key` holds these settings."""
        return self.request(model, lambda setting: context.read(f"{key}.{setting}"))

    @abstractmethod
    def request(self, model: Onnx, read: ReadArtifact) -> "SessionRequest":
        """Return the request to open the model. Raises `RequestError` if these settings do not fit it."""
