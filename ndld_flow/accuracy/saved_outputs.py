"""Outputs that Polygraphy saved on another machine, in another runtime or release, in place of a model that runs."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from ndld_flow.base.errors import RequestError
from ndld_flow.base.text import one_paragraph, short_name
from ndld_flow.runtimes.protocol import HostBinding, RuntimeNames, SessionFacts, SessionRequest
from ndld_flow.runtimes.settings import ReadArtifact, RuntimeSettings
from ndld_flow.step import DataFile
from ndld_flow.store.kinds import Onnx

if TYPE_CHECKING:
    from ndld_flow.models.tensors import Array


class SavedOutputsSettings(RuntimeSettings):
    """Settings of outputs that `polygraphy run` saved."""

    title: ClassVar[str] = "Polygraphy's saved outputs"
    libraries: ClassVar[tuple[str, ...]] = ("polygraphy",)

    backend: Literal["polygraphy"]
    outputs: Annotated[Path, DataFile()]
    """Polygraphy: the file of `--save-outputs`."""
    inputs: Annotated[Path, DataFile()]
    """Polygraphy: the file of `--save-inputs` of the same run. A sample has the outputs of the same inputs there."""
    runner: str = ""
    """Polygraphy: the beginning of the runner's name, such as `trt`, if the file has the outputs of several."""

    def request(self, model: Onnx, read: ReadArtifact) -> SessionRequest:
        return SavedOutputsRequest.of(self)


@dataclass(frozen=True)
class SavedOutputsRequest(SessionRequest):
    """Saved outputs to read."""

    runtime: ClassVar[str] = "polygraphy"
    libraries: ClassVar[tuple[str, ...]] = ("polygraphy",)

    outputs: Path
    inputs: Path
    runner: str = ""

    def names(self) -> RuntimeNames:
        return RuntimeNames("polygraphy", "outputs saved in", "", "Save them again")

    def open(self, model: Path) -> "_SavedOutputs":
        return _SavedOutputs(self, model)

    def library_versions(self, reported: Mapping[str, str]) -> dict[str, str]:
        return {"outputs": short_name(self.outputs.name)}  # what computed them is not recorded


class _SavedOutputs(HostBinding):
    """Saved outputs by the inputs from which they were computed; it is its own binding."""

    log = ""
    load_ms = 0.0

    def __init__(self, request: SavedOutputsRequest, model: Path) -> None:
        from ndld_flow.models.files import model_inputs, model_outputs

        self._request, self._inputs = request, model_inputs(model)
        inputs = _read(request.inputs, "--save-inputs")
        runner, outputs = self._choose(_read(request.outputs, "--save-outputs"))
        if not isinstance(inputs, list) or len(inputs) != len(outputs):
            raise RequestError(
                f"{request.outputs} has {len(outputs)} iterations, and {request.inputs} has not: name the files of one "
                "run of Polygraphy."
            )
        self._known = {self._digest(feeds): dict(each.items()) for feeds, each in zip(inputs, outputs, strict=True)}
        self._outputs: dict[str, Array | None] = {}
        self._facts = SessionFacts((runner,), self._inputs, model_outputs(model))

    def _choose(self, results: Any) -> tuple[str, Any]:  # noqa: ANN401 - of Polygraphy, which has no types
        names = list(getattr(results, "keys", list)())
        fitting = [name for name in names if name.startswith(self._request.runner)]
        if len(fitting) != 1:
            listed = ", ".join(map(short_name, names)) or "none"
            raise RequestError(f"{self._request.outputs}: choose one runner with `runner`; the file has: {listed}.")
        return fitting[0], results[fitting[0]]

    def _digest(self, feeds: Mapping[str, Any]) -> str:
        import numpy as np
        from blake3 import blake3

        from ndld_flow.models.tensors import identifying_bytes

        hasher = blake3()
        for part in identifying_bytes({spec.name: np.asarray(feeds.get(spec.name, ())) for spec in self._inputs}):
            hasher.update(part)
        return hasher.hexdigest()

    def describe(self) -> SessionFacts:
        return self._facts

    def bind(self, feeds: Mapping[str, "Array"], on_device: bool = False) -> "_SavedOutputs":
        found = self._known.get(self._digest(feeds))
        if found is None:
            raise RequestError(
                f"{self._request.outputs} has no outputs of these inputs, which {self._request.inputs} lacks: give the "
                "check the samples of that run, by a `loader`, and `made: off`."
            )
        self._outputs = found
        return self

    def run(self) -> None:
        """Do nothing: the outputs are known."""

    def outputs(self) -> dict[str, "Array | None"]:
        return self._outputs

    def close(self) -> None:
        self._known, self._outputs = {}, {}


def _read(path: Path, option: str) -> Any:  # noqa: ANN401 - whatever Polygraphy reads from it
    from polygraphy.json import load_json
    from polygraphy.logger import G_LOGGER

    try:
        with G_LOGGER.verbosity(G_LOGGER.CRITICAL):
            return load_json(str(path))
    except Exception as error:  # Polygraphy raises errors of any type for a file that is not its own
        raise RequestError(f"{path} is no file of `polygraphy run {option}`: {one_paragraph(str(error))}") from None
