"""Settings of a recipe for an engine in TensorRT or TensorRT-RTX, and the checks of the engine that they name."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from pydantic import Field, ValidationError, model_validator

from ndld_flow.base.errors import BackendError, RequestError
from ndld_flow.base.extras import ENGINE_LIBRARIES, TITLES, EngineBackend
from ndld_flow.base.quantities import Bytes
from ndld_flow.machine.hardware import UNKNOWN
from ndld_flow.machine.host import has_nvidia_gpu
from ndld_flow.records.document import read_document
from ndld_flow.runtimes.settings import Builder, ReadArtifact, RuntimeSettings
from ndld_flow.runtimes.tensorrt.release_names import Release
from ndld_flow.step import DataFile, Foresight, Reads, RunsCode
from ndld_flow.store.digest import digest_file
from ndld_flow.store.kinds import Engine, Onnx

if TYPE_CHECKING:
    from ndld_flow.records.build import Build
    from ndld_flow.records.execution import BuiltFile
    from ndld_flow.runtimes.protocol import SessionRequest
    from ndld_flow.runtimes.tensorrt.library import Library


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
        "useDLACore": "dla_core",
        "staticPlugins": "plugins",
        "dynamicPlugins": "plugins",
        "leanDLLPath": "lean_runtime",
        "runtimeCacheFile": "runtime_cache",
        "weightStreamingBudget": "weight_streaming_budget",
    }
    quantize_target: ClassVar[str] = "tensorrt"
    reports_device_times: ClassVar[bool] = True
    reports_tactics: ClassVar[bool] = True
    builder: ClassVar[Builder | None] = Builder("build_engine", "engine_file", ("library", "gpu"))

    backend: EngineBackend
    engine: Annotated[str | None, Reads(Engine)] = None
    """TensorRT: the step that builds the engine of the model."""
    engine_file: Annotated[Path | None, DataFile()] = None
    """TensorRT: an existing engine of the same model, instead of `engine`."""
    trust_engine: Annotated[bool, RunsCode()] = False
    """TensorRT: allow code embedded in the engine to run (version compatible engines contain some)."""
    plugins: Annotated[tuple[Path, ...], DataFile(), RunsCode()] = ()
    """TensorRT: plugins to load before the engine: libraries, or `.py` files with `tensorrt.plugin`. By default those
    with which a step built it."""
    lean_runtime: Annotated[Path | None, DataFile(), RunsCode()] = None
    """TensorRT: the library of the lean runtime, such as `libnvinfer_lean.so.10`, of the release that built an engine
    with `exclude_lean_runtime: true`."""
    runtime_cache: Annotated[Path | None, DataFile(), RunsCode()] = None
    """TensorRT: the runtime cache of TensorRT-RTX that an application ships, as `tensorrt_rtx --runtimeCacheFile`
    writes it for the GPU: `load_ms` is then that of a start which compiles no kernel that is in it."""
    library: Annotated[Path | None, RunsCode()] = None
    """TensorRT: a TensorRT other than the installed one: a virtual environment that has it, or the folder of an
    unpacked archive."""
    release: Release = ""
    """TensorRT: the required release, as in `build_engine`; an engine needs the release that built it."""
    gpu: Annotated[int, Field(ge=0)] = 0
    """TensorRT: index of the GPU in nvidia-smi."""
    dla_core: Annotated[int, Field(ge=0)] | None = None
    """TensorRT: the DLA core that runs an engine built for a DLA; by default that of the build."""
    weight_streaming_budget: (
        Literal["automatic"] | Annotated[str, Field(pattern=r"^(100|\d{1,2})(\.\d+)? ?%$")] | Bytes | None
    ) = None
    """TensorRT: how much of the weights stays on the GPU, for an engine with `advanced.weight_streaming`: bytes
    (`512 MiB`), a part (`50 %`) or `automatic`, from the free memory. By default all of them: nothing is streamed."""
    refit: bool = True
    """TensorRT: refit the engine with the model's weights first, if it is refittable and does not have them yet."""
    optimization_profile: Annotated[int, Field(ge=0)] = 0
    """TensorRT: index of the engine's optimization profile, from 0."""
    streams: Annotated[int, Field(ge=1, le=64)] = 1
    """TensorRT: number of concurrent inferences, each on its own CUDA stream; a pass is one inference on each."""
    queue: Annotated[int, Field(ge=0, le=1)] = 0
    """TensorRT: passes enqueued ahead. With 1, as in trtexec, the next pass is enqueued while one runs: the latency is
    the time from the end of a pass to the end of the next one, the inverse of trtexec's throughput."""
    cuda_graph: bool = False
    """TensorRT: capture a pass in a CUDA graph and launch the graph."""
    transfers: bool = False
    """TensorRT: include the copies of inputs and outputs in the latency; otherwise they are reported separately."""
    spin_wait: bool = True
    """TensorRT: busy-wait for the GPU, as ONNX Runtime does. Otherwise the CPU sleeps, and the latency includes
    waking it."""

    @model_validator(mode="after")
    def _check_engine(self) -> "TensorrtSettings":
        if self.engine is None and self.engine_file is None:
            raise ValueError(
                f"`backend: {self.backend}` runs an engine: add a step `engine: {{step: build_engine, backend: "
                f"{self.backend}}}` before this one and name it here with `engine: engine`, or give `engine_file`"
            )
        if self.engine is not None and self.engine_file is not None:
            raise ValueError("give either `engine` or `engine_file`")
        if self.runtime_cache is not None and not ENGINE_LIBRARIES[self.backend].compiles_on_load:
            raise ValueError(
                "`runtime_cache` is for TensorRT-RTX, which compiles kernels when it loads an engine: remove it"
            )
        return self

    @property
    def device(self) -> str:
        return f"gpu-{self.gpu}"

    def foresee(self) -> Foresight:
        try:
            missing = self.find_lack(self.choose_library())
        except BackendError as error:
            missing = str(error)
        gpu = "" if has_nvidia_gpu() else describe_missing_gpu(self.backend)
        return Foresight(lacks=tuple(filter(None, (missing, gpu))))

    def library_versions(self) -> dict[str, str]:
        return {self.backend: self.choose_library().version or "not installed"}

    def with_engine(self, step: str) -> "TensorrtSettings":
        return self.model_copy(update={"engine": step, "engine_file": None})

    def choose_library(self) -> "Library":
        """Return the TensorRT that runs the engine, which may have to be created. Raises BackendError if `library` has
        none.
        """
        from ndld_flow.runtimes.tensorrt.required_library import choose_library

        return choose_library(self.backend, self.release, self.library)

    def find_lack(self, library: "Library") -> str:
        """Return why a library cannot run the engine and how to get the right one; empty if it can."""
        from ndld_flow.runtimes.tensorrt.required_library import describe_other_release

        return describe_other_release(library, self.release) if self.release else library.missing

    def request(self, model: Onnx, read: ReadArtifact) -> "SessionRequest":
        engine = None if self.engine is None else read("engine")
        assert engine is None or isinstance(engine, Engine)
        return _prepare_request(self, model, engine)


_HOW_IT_RUNS = {
    *("backend", "gpu", "weight_streaming_budget", "optimization_profile"),
    *("streams", "queue", "cuda_graph", "transfers", "spin_wait"),
}
"""Settings that are those of the session."""


def describe_missing_gpu(backend: EngineBackend) -> str:
    """Return why an engine does not run on a machine without a GPU, and the remedies."""
    return (
        f"no NVIDIA GPU here, and {TITLES[backend]} needs one to run an engine: run the step on a machine "
        "that has one (`on: TARGET`), remove it with '~steps.NAME', or use ONNX Runtime"
    )


def _prepare_request(settings: TensorrtSettings, model: Onnx, engine: Engine | None) -> "SessionRequest":
    """Return the request to open the engine of a step, or if that is None, the engine file of the settings.

    Raises `RequestError` if the engine belongs to another model or another library, or needs something that is not
    allowed; `BackendError` if TensorRT is not installed, or the engine is known not to run in this release or on this
    GPU.
    """
    from ndld_flow.models.files import model_inputs, model_outputs
    from ndld_flow.runtimes.tensorrt.request import EngineRequest
    from ndld_flow.runtimes.tensorrt.required_library import provide_library

    library = settings.choose_library()
    if missing := settings.find_lack(library):
        raise BackendError(f"{missing}.")
    file = settings.engine_file if engine is None else engine.path
    assert file is not None  # the settings were validated
    build = None if engine is None else _read_build(engine)
    weights = model.path
    if engine is not None and build is not None:
        typed = engine.folder / Engine.typed_model
        _refuse_other(settings, engine, build, model, typed)
        _refuse_elsewhere(settings, engine, build, library)
        # The weights of a model with Casts are in the model that the builder received.
        weights = typed if typed.is_file() else model.path
    without_weights = build is not None and build.options.get("weights") == "strip"
    profiles = () if build is None else build.profiles
    return EngineRequest(
        **settings.model_dump(include=_HOW_IT_RUNS),
        engine=file.absolute(),
        model=weights,
        inputs=model_inputs(model.path),
        outputs=model_outputs(model.path),
        marked=() if build is None else build.marked_outputs,
        has_debug_tensors=build is not None and bool(build.options.get("debug_tensors")),
        built_with="" if build is None else build.version,
        # An engine that a step has just built from this model has its weights, unless they were stripped.
        refit=settings.refit and (build is None or without_weights),
        without_weights=without_weights,
        plugins=_plugins(settings, build),
        trust=settings.trust_engine,
        lean_runtime=None if settings.lean_runtime is None else settings.lean_runtime.absolute(),
        runtime_cache=None if settings.runtime_cache is None else settings.runtime_cache.absolute(),
        dla_core=_built_core(build) if settings.dla_core is None else settings.dla_core,
        installation=provide_library(library, lambda _: None),
        origin=_describe_file(file, engine, build),
        profile=profiles[settings.optimization_profile] if settings.optimization_profile < len(profiles) else None,
    )


def _describe_file(file: Path, engine: Engine | None, build: "Build | None") -> "BuiltFile":
    from ndld_flow.records.execution import BuiltFile

    name = str(file) if engine is None else engine.label
    if build is None:
        return BuiltFile(name=name, digest=digest_file(file))
    return BuiltFile(
        name=name,
        digest=build.engine_digest,
        model=build.label,
        built_with=build.library,
        precision=build.typing,
        marked=build.marked_outputs,
    )


def _read_build(engine: Engine) -> "Build":
    from ndld_flow.records.build import Build

    try:
        return read_document(Build, engine.folder / Build.file_name)
    except (OSError, ValidationError):
        raise RequestError(
            f"the engine of step {engine.label} has no readable record of its build: rebuild it."
        ) from None


def _refuse_other(settings: TensorrtSettings, engine: Engine, build: "Build", model: Onnx, typed: Path) -> None:
    """Refuse an engine of another library or model; `typed` is the model with Casts that the builder may have got."""
    step = f"step {engine.label}"
    if build.backend != settings.backend:
        raise RequestError(
            f"{step} built its engine for {TITLES[build.backend]}, and {TITLES[settings.backend]} does not run it: set "
            f"`backend: {build.backend}`."
        )
    if model.digest != build.model_digest and (not typed.is_file() or digest_file(typed) != digest_file(model.path)):
        raise RequestError(
            f"{step} built its engine from {build.label}, and {model.label} is another model: read {build.label} "
            f"(`from: {build.label}`), or name an engine of {model.label}."
        )
    if build.options.get("weights") == "strip" and not settings.refit:
        raise RequestError(f"the engine of {step} has no weights: it runs only with `refit: true`.")
    embedded = not build.options.get("exclude_lean_runtime") or bool(build.options.get("plugins"))
    if build.options.get("version_compatible") and embedded and not settings.trust_engine:
        raise RequestError(
            f"the engine of {step} contains embedded code (version_compatible: true), which runs only if it "
            "is allowed: set `trust_engine: true`, or build it with `exclude_lean_runtime: true` and without plugins."
        )


def _refuse_elsewhere(settings: TensorrtSettings, engine: Engine, build: "Build", library: "Library") -> None:
    """Refuse an engine that its record shows not to run in this release, or on this GPU, before it is opened."""
    from ndld_flow.machine.gpu_state import visible_gpus

    called, title = f"the engine of step {engine.label}", TITLES[settings.backend]
    if build.version != library.version and not build.options.get("version_compatible"):
        raise BackendError(
            f"{called} was built by {title} {build.version}, and this is {library.version}: rebuild it, set `library` "
            "or `release` to the other release, or build it with `version_compatible: true`."
        )
    if build.version != library.version and build.options.get("exclude_lean_runtime") and not settings.lean_runtime:
        raise BackendError(
            f"{called} was built by {title} {build.version} without its lean runtime, and this is {library.version}: "
            "set `lean_runtime` to that release's library (`libnvinfer_lean.so`), or build it without "
            "`exclude_lean_runtime`."
        )
    gpus = visible_gpus()
    capability = gpus[settings.gpu].compute_capability if settings.gpu < len(gpus) else UNKNOWN
    if build.compute_capabilities and capability not in (UNKNOWN, *build.compute_capabilities):
        raise BackendError(
            f"{called} was built for compute capability {' or '.join(build.compute_capabilities)}, and GPU "
            f"{settings.gpu} ({gpus[settings.gpu].name}) has {capability}: add it to `compute_capabilities`."
        )


def _built_core(build: "Build | None") -> int | None:
    """Return the DLA core for which an engine was built."""
    advanced = {} if build is None else build.options.get("advanced")
    core = advanced.get("dla_core") if isinstance(advanced, dict) else None
    return core if isinstance(core, int) else None


def _plugins(settings: TensorrtSettings, build: "Build | None") -> tuple[Path, ...]:
    """Return the plugins to load with the engine: by default those of its build, unless it embeds them."""
    if settings.plugins or build is None or build.options.get("version_compatible"):
        return tuple(path.absolute() for path in settings.plugins)
    named = build.options.get("plugins")
    return tuple(Path(str(path)).absolute() for path in named) if isinstance(named, list) else ()
