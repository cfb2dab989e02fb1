"""Settings of runtimes in a recipe: one class for each; `backend` chooses one."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from typing import ClassVar

from ndld_flow.base.settings import Settings
from ndld_flow.runtimes.protocol import SessionRequest
from ndld_flow.step import Foresight
from ndld_flow.store.kinds import Artifact, Onnx

ReadArtifact = Callable[[str], Artifact]
"""Returns the artifact of the step that a setting names."""


class RuntimeSettings(Settings):
    """Settings of a runtime. A subclass has a setting `backend`, a `Literal` of the names by which it is chosen."""

    title: ClassVar[str]
    """The library, as its documentation calls it."""
    in_every_key: ClassVar[bool] = False
    """Keys of profiles in other runtimes contain these settings too, with their defaults. True for the first two
    runtimes, whose settings were once in one class, so that their keys do not change."""
    reports_device_times: ClassVar[bool] = False
    """Its sessions report times by the device's own clock, and the device's memory."""
    reports_tactics: ClassVar[bool] = False
    """Its layers have tactics, from which the use of Tensor Cores is known."""

    @property
    def device(self) -> str:
        """Return the device that is measured and held exclusively: `cpu`, or `gpu-0`."""
        return "cpu"

    def foresee(self) -> Foresight:
        """Return what is missing on this machine."""
        return Foresight()

    @abstractmethod
    def library_versions(self) -> dict[str, str]:
        """Return the libraries that determine a measurement -> their versions."""

    @abstractmethod
    def request(self, model: Onnx, read: ReadArtifact) -> SessionRequest:
        """Return the request to open the model. Raises `RequestError` if these settings do not fit it."""
