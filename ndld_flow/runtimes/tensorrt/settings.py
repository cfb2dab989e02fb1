"""Settings of a recipe for an engine in TensorRT or TensorRT-RTX, and the checks of the engine that they name."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, ClassVar

from pydantic import Field, ValidationError, model_validator

from ndld_flow.base.errors import BackendError, RequestError
from ndld_flow.machine.description import has_nvidia_gpu
from ndld_flow.records.build import Build, EngineBackend
from ndld_flow.records.document import read_document
from ndld_flow.runtimes.protocol import SessionRequest
from ndld_flow.runtimes.settings import ReadArtifact, RuntimeSettings
from ndld_flow.runtimes.tensorrt.library import TITLES, find_library
from ndld_flow.step import DataFile, Foresight, Reads, RunsCode
from ndld_flow.store.digest import digest_file
from ndld_flow.store.kinds import Engine, Onnx


class TensorrtSettings(RuntimeSettings):
    """Settings of an engine and of its execution."""

    title: ClassVar[str] = "TensorRT"
    synonyms: ClassVar[Mapping[str, str]] = {
        "useCudaGraph": "cuda_graph",
        "useSpinWait": "spin_wait",
        "noDataTransfers": "transfers",
        "infStreams": "streams",
        "loadEngine": "engine_file",
        "device": "gpu",
    }
    in_every_key: ClassVar[bool] = True
    reports_device_times: ClassVar[bool] = True
    reports_tactics: ClassVar[bool] = True

    backend: EngineBackend
    engine: Annotated[str | None, Reads(Engine)] = None
    """TensorRT: the step that builds the engine of the model."""
    engine_file: Annotated[Path | None, DataFile()] = None
    """TensorRT: an existing engine of the same model, instead of `engine`."""
    trust_engine: Annotated[bool, RunsCode()] = False
    """TensorRT: allow code embedded in the engine to run (version compatible engines contain some)."""
    library: Annotated[Path | None, RunsCode()] = None
    """TensorRT: a TensorRT other than the installed one: a virtual environment that has it, or the folder of an
    unpacked TensorRT archive."""
    gpu: Annotated[int, Field(ge=0)] = 0
    """TensorRT: index of the GPU in nvidia-smi."""
    refit: bool = True
    """TensorRT: refit the engine with the model's weights first, if it is refittable and does not have them yet."""
    optimization_profile: Annotated[int, Field(ge=0)] = 0
    """TensorRT: index of the engine's optimization profile, from 0."""
    streams: Annotated[int, Field(ge=1, le=64)] = 1
    """TensorRT: number of concurrent inferences, each on its own CUDA stream; a pass is one inference on each."""
    cuda_graph: bool = False
    """TensorRT: capture a pass in a CUDA graph and launch the graph."""
    transfers: bool = False
    """TensorRT: include the copies of inputs and outputs in the latency; otherwise they are reported separately."""
    spin_wait: bool = True
    """TensorRT: busy-wait for the GPU, as ONNX Runtime does. Otherwise the CPU sleeps, and the latency includes
    waking it."""

    @model_validator(mode="after")
    def _check_engine(self) -> TensorrtSettings:
        if self.engine is None and self.engine_file is None:
            raise ValueError(
                f"`backend: {self.backend}` measures an engine: add a step `engine: {{step: build_engine, backend: "
                f"{self.backend}}}` before this one and name it here with `engine: engine`, or give `engine_file`"
            )
        if self.engine is not None and self.engine_file is not None:
            raise ValueError("give either `engine` or `engine_file`")
        return self

    @property
    def device(self) -> str:
        return f"gpu-{self.gpu}"

    def foresee(self) -> Foresight:
        return Foresight(lacks=tuple(self._find_lacks()))

    def library_versions(self) -> dict[str, str]:
        return {self.backend: find_library(self.backend, self.library).version or "not installed"}

    def request(self, model: Onnx, read: ReadArtifact) -> SessionRequest:
        engine = None if self.engine is None else read("engine")
        assert engine is None or isinstance(engine, Engine)
        return _prepare_request(self, model, engine)

    def _find_lacks(self) -> Iterator[str]:
        try:
            missing = find_library(self.backend, self.library).missing
        except BackendError as error:
            missing = str(error)
        if missing:
            yield missing
        if not has_nvidia_gpu():
            yield (
                f"no NVIDIA GPU here, and profile needs one for {TITLES[self.backend]}: remove the step with "
                "'~steps.NAME', or use `backend: onnxruntime`"
            )


def _prepare_request(settings: TensorrtSettings, model: Onnx, engine: Engine | None) -> SessionRequest:
    """Return the request to open the engine of a step, or if that is None, the engine file of the settings.

    Raises `RequestError` if the engine belongs to another model or another library, or needs something that is not
    allowed; `BackendError` if TensorRT is not installed.
    """
    from ndld_flow.models.files import model_inputs, model_outputs
    from ndld_flow.runtimes.tensorrt.request import EngineRequest

    library = find_library(settings.backend, settings.library)
    if not library.found:
        raise BackendError(f"{library.missing}.")
    build = None if engine is None else _read_build(engine)
    file, weights = settings.engine_file, model.path
    if engine is not None and build is not None:
        _refuse_other(settings, engine, build, model)
        typed = engine.folder / Engine.typed_model
        # The weights of a model with Casts are in the model that the builder received.
        file, weights = engine.path, typed if typed.is_file() else model.path
    assert file is not None  # the settings were validated
    without_weights = build is not None and build.options.get("weights") == "strip"
    return EngineRequest(
        backend=settings.backend,
        engine=file.absolute(),
        model=weights,
        inputs=model_inputs(model.path),
        outputs=model_outputs(model.path),
        built_with="" if build is None else build.version,
        # An engine that a step has just built from this model has its weights, unless they were stripped.
        refit=settings.refit and (build is None or without_weights),
        without_weights=without_weights,
        plugins=() if build is None else _plugins(build),
        trust=settings.trust_engine,
        gpu=settings.gpu,
        optimization_profile=settings.optimization_profile,
        streams=settings.streams,
        cuda_graph=settings.cuda_graph,
        transfers=settings.transfers,
        spin_wait=settings.spin_wait,
        installation=library,
    )


def _read_build(engine: Engine) -> Build:
    try:
        return read_document(Build, engine.folder / Engine.build)
    except (OSError, ValidationError):
        raise RequestError(
            f"the engine of step {engine.label} has no readable record of its build: rebuild it."
        ) from None


def _refuse_other(settings: TensorrtSettings, engine: Engine, build: Build, model: Onnx) -> None:
    step = f"step {engine.label}"
    if build.backend != settings.backend:
        raise RequestError(
            f"{step} built its engine for {TITLES[build.backend]}, and {TITLES[settings.backend]} does not run it: set "
            f"`backend: {build.backend}`."
        )
    if model.digest != build.model_digest:
        # The builder may have received a model with Casts instead of its input.
        typed = engine.folder / Engine.typed_model
        if not typed.is_file() or digest_file(typed) != digest_file(model.path):
            raise RequestError(
                f"{step} built its engine from {build.label}, and {model.label} is another model: set "
                f"`from: {build.label}`, or name an engine of {model.label}."
            )
    if build.options.get("weights") == "strip" and not settings.refit:
        raise RequestError(f"the engine of {step} has no weights: it runs only with `refit: true`.")
    embedded = not build.options.get("exclude_lean_runtime") or bool(build.options.get("plugins"))
    if build.options.get("version_compatible") and embedded and not settings.trust_engine:
        raise RequestError(
            f"the engine of {step} contains embedded code (version_compatible: true), which runs only if it "
            "is allowed: set `trust_engine: true`, or build it with `exclude_lean_runtime: true` and without plugins."
        )


def _plugins(build: Build) -> tuple[Path, ...]:
    """Return the plugins to load with the engine: none for a version compatible engine, which embeds them."""
    named = build.options.get("plugins")
    if not isinstance(named, list) or build.options.get("version_compatible"):
        return ()
    return tuple(Path(str(path)).absolute() for path in named)
