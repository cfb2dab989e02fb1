"""Sessions of engines in TensorRT or TensorRT-RTX, and recordings of their layers, which `engine_layers.py` reads."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from ndld_flow.base.errors import BackendError, ModelError, RequestError
from ndld_flow.base.extras import TITLES
from ndld_flow.base.quantities import counted, seconds, size
from ndld_flow.base.text import short_name
from ndld_flow.machine.gpu_state import visible_gpus
from ndld_flow.machine.hardware import UNKNOWN
from ndld_flow.models.tensors import Array
from ndld_flow.runtimes.protocol import ReportPasses, SessionFacts
from ndld_flow.runtimes.tensorrt.engine.cuda_runtime import CudaRuntime, open_cuda_runtime
from ndld_flow.runtimes.tensorrt.engine.engine_settings import EngineSettings
from ndld_flow.runtimes.tensorrt.engine.engine_tensors import EngineTensor, note_casts, refuse_other_model, tensors_of
from ndld_flow.runtimes.tensorrt.engine.execution import EngineBinding, one_paragraph
from ndld_flow.runtimes.tensorrt.library import import_bindings, make_logger
from ndld_flow.runtimes.tensorrt.plugin_libraries import load_plugins

_OTHER_RELEASE = re.compile(r"expecting library version ([\d.]+) got(?: library version)? ([\d.]+)", re.IGNORECASE)
_OTHER_GPU = re.compile(r"incompatible device|expecting compute|compute capability", re.IGNORECASE)
_HOST_CODE = re.compile(r"host\s?code", re.IGNORECASE)
_CUDA = re.compile(r"cuda ?error|cuda runtime|cuda initialization", re.IGNORECASE)
_VERSION = re.compile(r"version", re.IGNORECASE)


class MessageLog:
    """A logger for TensorRT that collects its warnings and errors."""

    def __init__(self, trt: Any) -> None:  # noqa: ANN401
        self.warnings: list[str] = []
        self.errors: list[str] = []
        self.logger = make_logger(trt, self._take)

    def _take(self, severity: str, message: str) -> None:
        if severity == "WARNING":
            self.warnings.append(message)
        elif severity in ("ERROR", "INTERNAL_ERROR"):
            self.errors.append(message)

    @property
    def text(self) -> str:
        """Return each message once, in order."""
        return "\n".join(dict.fromkeys([*self.warnings, *self.errors]))

    @property
    def last_error(self) -> str:
        return one_paragraph(self.errors[-1]) if self.errors else "TensorRT reports no reason"


def load_engine(trt: Any, request: EngineSettings, messages: MessageLog) -> tuple[Any, Any]:  # noqa: ANN401
    """Return the runtime and the engine; the runtime must outlive it.

    Raises `BackendError` if TensorRT does not start, or a plugin or the engine does not load here; `ModelError` if
    there is no such file.
    """
    try:
        runtime = trt.Runtime(messages.logger)
    except TypeError:  # pybind11: factory function returned nullptr
        raise BackendError(
            f"{TITLES[request.backend]} {trt.__version__} does not start: {messages.last_error}. Check that "
            "`nvidia-smi` works, and that the driver is new enough for the CUDA that this release was built for."
        ) from None
    if request.lean_runtime is not None:
        runtime = _load_lean_runtime(runtime, request.lean_runtime, messages)
    load_plugins(trt, messages.logger, runtime, request.plugins)
    if request.trust:
        runtime.engine_host_code_allowed = True
    if request.dla_core is not None:
        runtime.DLA_core = request.dla_core
        if runtime.DLA_core != request.dla_core:  # it is ignored
            raise BackendError(
                f"dla_core: {request.dla_core} does not exist: this machine has "
                f"{counted(runtime.num_DLA_cores, 'DLA core')}, counted from 0."
            )
    try:
        plan = request.engine.read_bytes()
    except OSError as error:
        raise ModelError(f"the engine {request.engine} cannot be read: {error.strerror}.") from None
    engine = runtime.deserialize_cuda_engine(plan)
    if engine is None:
        raise BackendError(explain_refusal(request, trt.__version__, messages))
    return runtime, engine


def _load_lean_runtime(runtime: Any, library: Path, messages: MessageLog) -> Any:  # noqa: ANN401
    lean = runtime.load_runtime(str(library))
    if lean is None:
        raise BackendError(
            f"lean_runtime: {library} does not load: {messages.last_error}. Name `libnvinfer_lean.so` of the release "
            "that built the engine."
        )
    return lean


def set_weight_budget(engine: Any, request: EngineSettings) -> Mapping[str, int]:  # noqa: ANN401
    """Set how much of an engine's weights stays on the GPU, before it has contexts; return the bytes as facts.

    Raises `RequestError` if the engine was not built for it, `BackendError` if TensorRT does not accept the budget.
    """
    wanted, streamable = request.weight_streaming_budget, int(engine.streamable_weights_size)
    if wanted is None and not streamable:
        return {}
    if not streamable:
        raise RequestError(
            f"weight_streaming_budget: the engine {request.engine} was built without `advanced.weight_streaming: "
            "true`, or has no weights that can be streamed: remove it, or rebuild the engine."
        )
    if wanted == "automatic":
        wanted = int(engine.get_weight_streaming_automatic_budget())
    elif isinstance(wanted, str):
        wanted = int(streamable * float(wanted.rstrip("% ")) / 100)
    if wanted is not None:
        engine.weight_streaming_budget_v2 = wanted
        if engine.weight_streaming_budget_v2 != wanted:  # the bindings do not raise an exception
            raise BackendError(f"TensorRT does not accept a weight streaming budget of {size(wanted)}.")
    return {"streamable_weights_bytes": streamable, "weight_budget_bytes": int(engine.weight_streaming_budget_v2)}


def _note_budget(facts: Mapping[str, int]) -> Iterator[str]:
    """Yield what is streamed of an engine's weights."""
    if not facts:
        return
    streamable, budget = facts["streamable_weights_bytes"], facts["weight_budget_bytes"]
    if budget >= streamable:
        yield "no weights are streamed: the default budget keeps all on the GPU; `weight_streaming_budget` sets another"
    else:
        yield f"{size(streamable - budget)} of {size(streamable)} of the weights are streamed from the host's memory"


def explain_refusal(request: EngineSettings, version: str, messages: MessageLog) -> str:
    """Return the reason why an engine did not load and what to do, in a paragraph."""
    errors, name = "\n".join(messages.errors), TITLES[request.backend]
    called = f"the engine {request.engine}"
    if _HOST_CODE.search(errors) and not request.trust:
        return (
            f"{called} contains embedded code (it is version compatible), which {name} runs only if it is "
            "allowed: check its origin, then set `trust_engine: true`."
        )
    releases = _OTHER_RELEASE.search(errors)
    built = releases[2] if releases else request.built_with
    if releases or (_VERSION.search(errors) and built not in ("", version)):
        return (
            f"{called} was built by {name} {built or 'of another version'}, and this is {version}: rebuild it, "
            "set `library` to the other release, or build it with `version_compatible: true`. "
            f"{name}: {messages.last_error}."
        )
    if _OTHER_GPU.search(errors):
        return f"{called} was built for another GPU: build it for this one. {name}: {messages.last_error}."
    advice = "Rebuild it on this machine"
    if _CUDA.search(errors):
        advice = "Check that `nvidia-smi` works and the driver is new enough"
    return f"{name} {version} does not load {called}: {messages.last_error}. {advice}."


def refit_engine(trt: Any, request: EngineSettings, engine: Any, messages: MessageLog) -> None:  # noqa: ANN401
    """Give an engine the weights of its ONNX model. Raises `BackendError` if they do not fit."""
    refitter = trt.Refitter(engine, messages.logger)
    parser = trt.OnnxParserRefitter(refitter, messages.logger)
    fits = parser.refit_from_file(str(request.model))
    missing = list(refitter.get_missing_weights()) if fits else []
    if fits and not missing and refitter.refit_cuda_engine():
        return
    errors = [str(parser.get_error(number).desc()) for number in range(min(3, parser.num_errors))]
    more = f" and {len(missing) - 3} more" if len(missing) > 3 else ""
    lacks = f"it lacks {', '.join(map(short_name, missing[:3]))}{more}" if missing else messages.last_error
    reason = "; ".join(map(one_paragraph, errors)) or lacks
    raise BackendError(
        f"the engine {request.engine} does not take the weights of {request.model}: {reason}. Build the engine from "
        "this model" + ("." if request.without_weights else ", or keep its own weights with `refit: false`.")
    )


@dataclass
class EngineSession:
    """An open engine."""

    request: EngineSettings
    cuda: CudaRuntime
    engine: Any
    owners: tuple[Any, ...]
    """Objects that must live as long as the engine and its contexts."""
    contexts: Sequence[Any]
    """One for each stream."""
    tensors: Mapping[str, EngineTensor]
    load_ms: float
    """Time to load the engine and to create its contexts, without refitting."""
    messages: MessageLog
    facts: Mapping[str, int | str | bool]
    versions: Mapping[str, str]
    notes: tuple[str, ...]
    captures_graphs: bool
    """TensorRT-RTX captures CUDA graphs itself when it is configured to."""
    _binding: EngineBinding | None = None

    @property
    def log(self) -> str:
        return self.messages.text

    def describe(self) -> SessionFacts:
        specs = [(tensor.is_input, tensor.spec) for tensor in self.tensors.values()]
        gpu, gpus = self.request.gpu, visible_gpus()
        return SessionFacts(
            devices=(TITLES[self.request.backend],),
            inputs=tuple(spec for is_input, spec in specs if is_input),
            outputs=tuple(spec for is_input, spec in specs if not is_input),
            versions=self.versions,
            facts=self.facts,
            notes=self.notes,
            device_name=gpus[gpu].name if gpu < len(gpus) and gpus[gpu].name != UNKNOWN else f"GPU {gpu}",
        )

    def bind(self, feeds: Mapping[str, Array], on_device: bool = False) -> EngineBinding:
        """Copy the inputs to the engine's memory and release the previous binding. Outputs always stay on the device.

        Raises as `EngineBinding` does.
        """
        self._release_binding()
        self._binding = EngineBinding(self.cuda, self.engine, self.request, self.tensors, self.contexts, feeds)
        if self.request.cuda_graph and not self.captures_graphs:
            self._binding.capture()
        return self._binding

    def close(self) -> None:
        self._release_binding()
        self.contexts, self.engine, self.owners = (), None, ()

    def _release_binding(self) -> None:
        if self._binding is not None:
            self._binding.close()
            self._binding = None


def open_engine(request: EngineSettings) -> EngineSession:
    """Load an engine, refit it if requested, and create its execution contexts.

    Raises `BackendError` if there is no GPU, TensorRT or CUDA, or the engine does not load here; `RequestError` if
    it is not of the request's model.
    """
    trt = import_bindings(request.backend)
    cuda = open_cuda_runtime()
    devices, _ = cuda.count_devices()
    if request.gpu >= devices:
        raise BackendError(f"gpu: {request.gpu} does not exist: this machine has {devices}, counted from 0.")
    cuda.select(request.gpu, spin=request.spin_wait)
    before, messages, started = cuda.read_memory(), MessageLog(trt), time.perf_counter()
    runtime, engine = load_engine(trt, request, messages)
    load_ms = (time.perf_counter() - started) * 1e3
    tensors = tensors_of(trt, engine)
    refuse_other_model(tensors, request.inputs, request.outputs, f"the engine {request.engine}", request.marked)
    _refuse_profile(engine, request)
    notes = [*note_casts(tensors, request.inputs)]
    if (request.refit or request.without_weights) and engine.refittable:
        started = time.perf_counter()
        refit_engine(trt, request, engine, messages)
        took = seconds(time.perf_counter() - started)
        notes.append(f"the engine was refitted with the model's weights before it ran, in {took}")
    budget = set_weight_budget(engine, request)
    notes += _note_budget(budget)
    started = time.perf_counter()
    config = _runtime_config(trt, engine, request)
    if config is not None:
        notes.append("kernels were compiled for the shapes of the inputs before measuring (EAGER), not during it")
    if request.runtime_cache is not None:
        notes.append(f"kernels in the runtime cache {request.runtime_cache.name} were loaded, not compiled")
    contexts = [_create_context(engine, config, messages) for _ in range(request.streams)]
    load_ms += (time.perf_counter() - started) * 1e3
    after = cuda.read_memory()
    facts = (
        _describe(engine, request)
        | dict(budget)
        | {
            "device_used_bytes": max(0, before.free_bytes - after.free_bytes),
            "device_free_bytes": after.free_bytes,
            "device_total_bytes": after.total_bytes,
        }
    )
    return EngineSession(
        request=request,
        cuda=cuda,
        engine=engine,
        owners=(runtime, config),
        contexts=contexts,
        tensors=tensors,
        load_ms=load_ms,
        messages=messages,
        facts=facts,
        versions={request.backend: trt.__version__},
        notes=tuple(notes),
        captures_graphs=hasattr(config, "cuda_graph_strategy"),
    )


def _refuse_profile(engine: Any, request: EngineSettings) -> None:  # noqa: ANN401
    count = engine.num_optimization_profiles
    if request.optimization_profile >= count:
        raise RequestError(
            f"optimization_profile: {request.optimization_profile} is not in the engine {request.engine}: it has "
            f"{count}, counted from 0."
        )


def _runtime_config(trt: Any, engine: Any, request: EngineSettings) -> Any:  # noqa: ANN401
    """Return the configuration of TensorRT-RTX, which otherwise compiles kernels for new shapes while it runs
    others."""
    strategies = getattr(trt, "DynamicShapesKernelSpecializationStrategy", None)
    if strategies is None or not hasattr(engine, "create_runtime_config"):
        return None
    config = engine.create_runtime_config()
    config.dynamic_shapes_kernel_specialization_strategy = strategies.EAGER
    if request.cuda_graph and hasattr(config, "cuda_graph_strategy"):
        config.cuda_graph_strategy = trt.CudaGraphStrategy.WHOLE_GRAPH_CAPTURE
    if request.runtime_cache is not None:
        cache = config.create_runtime_cache()
        if not (cache.deserialize(request.runtime_cache.read_bytes()) and config.set_runtime_cache(cache)):
            raise BackendError(
                f"runtime_cache: TensorRT-RTX does not accept {request.runtime_cache}: it is damaged, or of another "
                "release, GPU or driver. Write it again on this machine with `tensorrt_rtx --runtimeCacheFile`, or "
                "remove `runtime_cache`."
            )
    return config


def _create_context(engine: Any, config: Any, messages: MessageLog) -> Any:  # noqa: ANN401
    context = engine.create_execution_context() if config is None else engine.create_execution_context(config)
    if context is None:
        raise BackendError(
            f"TensorRT cannot create an execution context: {messages.last_error}. It may need more memory than the GPU "
            "has free; fewer streams and smaller shapes need less."
        )
    return context


def _describe(engine: Any, request: EngineSettings) -> dict[str, int | str | bool]:  # noqa: ANN401
    return {
        "activation_bytes": engine.get_device_memory_size_for_profile_v2(request.optimization_profile),
        "activation_largest_profile_bytes": engine.device_memory_size_v2,
        "layers": engine.num_layers,
        "aux_streams": engine.num_aux_streams,
        "optimization_profiles": engine.num_optimization_profiles,
        "verbosity": engine.profiling_verbosity.name.lower(),
        "refittable": engine.refittable,
    }


INSPECTED = "engine.json"
"""The output of the engine inspector at these shapes, in the folder of a recording."""
WARMUP_PASSES = 2


@dataclass
class Recording:
    """Passes with the profiler on, in order."""

    names: list[str] = field(default_factory=list)
    """Names of layers, each once."""
    passes: list[list[tuple[int, float]]] = field(default_factory=list)
    """The profiler's reports of each pass, in order: the index of a layer in `names`, and ms."""
    pass_ms: list[float] = field(default_factory=list)
    """Latency of each pass by the host's clock."""

    def add(self, reports: Sequence[tuple[str, float]], took_ms: float) -> None:
        """Add the profiler's reports of one pass."""
        indices = {name: index for index, name in enumerate(self.names)}
        for name, _ in reports:
            if name not in indices:
                indices[name] = len(indices)
                self.names.append(name)
        self.passes.append([(indices[name], ms) for name, ms in reports])
        self.pass_ms.append(took_ms)

    def write(self, path: Path) -> None:
        path.write_text(json.dumps(asdict(self)), encoding="utf-8")

    @classmethod
    def read(cls, path: Path) -> Recording:
        raw = json.loads(path.read_text(encoding="utf-8"))
        passes = [[(int(name), float(ms)) for name, ms in each] for each in raw["passes"]]
        return cls(raw["names"], passes, raw["pass_ms"])


def record_engine_layers(
    request: EngineSettings,
    feeds: Mapping[str, Array],
    passes: int,
    folder: Path,
    report: ReportPasses = lambda done, total: None,
) -> Path:
    """Run passes with the profiler on, and return the file of the `Recording`.

    CUDA graph, parallel streams, queue and copies are off: they would hide when a layer begins and ends. Raises as
    `open_engine` does.
    """
    plain = replace(request, cuda_graph=False, streams=1, queue=0, transfers=False)
    trt, session = import_bindings(request.backend), open_engine(plain)
    binding, context = session.bind(feeds), session.contexts[0]
    recording, reports = Recording(), list[tuple[str, float]]()
    profiler = _attach_profiler(trt, context, reports)
    for done in range(-WARMUP_PASSES, passes):
        started = time.perf_counter()
        binding.run()
        took_ms = (time.perf_counter() - started) * 1e3
        if not context.report_to_profiler():
            raise BackendError(
                f"TensorRT's profiler reports nothing about the engine {request.engine}: "
                f"{session.messages.last_error}. Skip the layers with `layer_passes: 0`."
            )
        if done >= 0:
            recording.add(reports, took_ms)
            report(done + 1, passes)
        reports.clear()
    context.profiler = None
    del profiler  # it had to outlive its use by the context
    inspector = session.engine.create_engine_inspector()
    inspector.execution_context = context  # so that it knows the shapes
    inspected = inspector.get_engine_information(trt.LayerInformationFormat.JSON)
    (folder / INSPECTED).write_text(inspected, encoding="utf-8")
    path = folder / "layers.json"
    recording.write(path)
    return path


def _attach_profiler(trt: Any, context: Any, reports: list[tuple[str, float]]) -> Any:  # noqa: ANN401
    """Attach a profiler that adds to `reports`, and return it."""

    class Profiler(trt.IProfiler):  # type: ignore[misc]
        def __init__(self) -> None:
            trt.IProfiler.__init__(self)  # the bindings require this explicit call

        def report_layer_time(self, layer_name: str, ms: float) -> None:
            reports.append((layer_name, ms))

    profiler = context.profiler = Profiler()
    context.enqueue_emits_profile = False  # it would be computed within the pass
    return profiler
