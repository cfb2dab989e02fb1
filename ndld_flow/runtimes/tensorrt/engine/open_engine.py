"""Engines opened in TensorRT or TensorRT-RTX, on the GPU that was asked for."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ndld_flow.base.errors import BackendError, ModelError, RequestError
from ndld_flow.base.quantities import seconds
from ndld_flow.base.text import short_name
from ndld_flow.models.tensors import Array
from ndld_flow.runtimes.device_facts import DeviceFacts
from ndld_flow.runtimes.tensorrt.engine.bound_engine import BoundEngine, one_paragraph
from ndld_flow.runtimes.tensorrt.engine.cuda_runtime import CudaRuntime, open_cuda_runtime
from ndld_flow.runtimes.tensorrt.engine.engine_session import EngineSession
from ndld_flow.runtimes.tensorrt.engine.engine_tensors import EngineTensor, note_casts, refuse_other_model, tensors_of
from ndld_flow.runtimes.tensorrt.library import TITLES, import_bindings
from ndld_flow.runtimes.tensorrt.plugin_libraries import load_plugins

_OTHER_RELEASE = re.compile(r"expecting library version ([\d.]+) got(?: library version)? ([\d.]+)", re.IGNORECASE)
_OTHER_GPU = re.compile(r"incompatible device|expecting compute|compute capability", re.IGNORECASE)
_HOST_CODE = re.compile(r"host\s?code", re.IGNORECASE)
_CUDA = re.compile(r"cuda ?error|cuda runtime|cuda initialization", re.IGNORECASE)
_VERSION = re.compile(r"version", re.IGNORECASE)


class Messages:
    """A logger for TensorRT that collects its warnings and errors."""

    def __init__(self, trt: Any) -> None:  # noqa: ANN401
        self.warnings: list[str] = []
        self.errors: list[str] = []
        severity = trt.ILogger
        kept = {
            severity.INTERNAL_ERROR: self.errors,
            severity.ERROR: self.errors,
            severity.WARNING: self.warnings,
        }

        class Logger(trt.ILogger):  # type: ignore[misc]
            def __init__(self) -> None:
                trt.ILogger.__init__(self)  # bindings need it called in full

            def log(self, severity: Any, message: str) -> None:  # noqa: ANN401
                if severity in kept:
                    kept[severity].append(message)

        self.logger = Logger()

    @property
    def text(self) -> str:
        """Each once, in order."""
        return "\n".join(dict.fromkeys([*self.warnings, *self.errors]))

    @property
    def last_error(self) -> str:
        return one_paragraph(self.errors[-1]) if self.errors else "TensorRT gives no reason"


def load_engine(trt: Any, session: EngineSession, messages: Messages) -> tuple[Any, Any]:  # noqa: ANN401
    """The runtime and the engine; the runtime must outlive it.

    Raises `BackendError` when TensorRT does not start, or a plugin or the engine does not load here; `ModelError` when
    there is no such file.
    """
    runtime = _make_runtime(trt, session, messages)
    load_plugins(trt, messages.logger, runtime, session.plugins)
    if session.trust:
        runtime.engine_host_code_allowed = True
    try:
        plan = session.engine.read_bytes()
    except OSError as error:
        raise ModelError(f"the engine {session.engine} cannot be read: {error.strerror}.") from None
    engine = runtime.deserialize_cuda_engine(plan)
    if engine is None:
        raise BackendError(explain_refusal(session, trt.__version__, messages))
    return runtime, engine


def _make_runtime(trt: Any, session: EngineSession, messages: Messages) -> Any:  # noqa: ANN401
    try:
        return trt.Runtime(messages.logger)
    except TypeError:  # pybind11: factory function returned nullptr
        raise BackendError(
            f"{TITLES[session.backend]} {trt.__version__} does not start: {messages.last_error}. Check that "
            "`nvidia-smi` works, and that the driver is new enough for the CUDA that this release was built for."
        ) from None


def explain_refusal(session: EngineSession, version: str, messages: Messages) -> str:
    """Why an engine did not load and what to do, in a paragraph."""
    said, name = "\n".join(messages.errors), TITLES[session.backend]
    called = f"the engine {session.engine}"
    if _HOST_CODE.search(said) and not session.trust:
        return (
            f"{called} has code of its own embedded (it is version compatible), and {name} runs that only when it is "
            "allowed: make sure of where it comes from, then set `trust_engine: true`."
        )
    told = _OTHER_RELEASE.search(said)
    built = told[2] if told else session.built_with
    if told or (_VERSION.search(said) and built not in ("", version)):
        return (
            f"{called} was built by {name} {built or 'of another version'}, and here is {version}: build it anew, "
            "name the other release by `library`, or build it with `version_compatible: true`. "
            f"{name}: {messages.last_error}."
        )
    if _OTHER_GPU.search(said):
        return f"{called} was built for another GPU: build it for the one that is here. {name}: {messages.last_error}."
    broken = _CUDA.search(said)
    advice = "Check that `nvidia-smi` works and the driver is new enough" if broken else "Build it anew on this machine"
    return f"{name} {version} does not load {called}: {messages.last_error}. {advice}."


def refit_engine(trt: Any, session: EngineSession, engine: Any, messages: Messages) -> None:  # noqa: ANN401
    """Give an engine the weights of its ONNX model. Raises `BackendError` when they do not fit."""
    refitter = trt.Refitter(engine, messages.logger)
    parser = trt.OnnxParserRefitter(refitter, messages.logger)
    fits = parser.refit_from_file(str(session.model))
    missing = list(refitter.get_missing_weights()) if fits else []
    if fits and not missing and refitter.refit_cuda_engine():
        return
    why = _parser_errors(parser) or (f"it lacks {_some(missing)}" if missing else messages.last_error)
    raise BackendError(
        f"the engine {session.engine} does not take the weights of {session.model}: {why}. Build the engine from this "
        "model" + ("." if session.without_weights else ", or leave its own weights in with `refit: false`.")
    )


def _parser_errors(parser: Any) -> str:  # noqa: ANN401
    found = [str(parser.get_error(number).desc()) for number in range(min(3, parser.num_errors))]
    return "; ".join(map(one_paragraph, found))


def _some(names: Sequence[str]) -> str:
    shown = ", ".join(map(short_name, names[:3]))
    return shown if len(names) <= 3 else f"{shown} and {len(names) - 3} more"


Facts = dict[str, int | str | bool]


@dataclass
class OpenEngine:
    """An engine ready to run."""

    session: EngineSession
    cuda: CudaRuntime
    engine: Any
    keeps: tuple[Any, ...]
    """What must live as long as the engine and its contexts."""
    contexts: Sequence[Any]
    """One for each stream."""
    tensors: Mapping[str, EngineTensor]
    load_ms: float
    """Loading and making contexts; refitting is told apart."""
    messages: Messages
    device: DeviceFacts
    captures_by_itself: bool
    """TensorRT-RTX makes CUDA graphs when told to."""
    _bound: BoundEngine | None = None

    @property
    def providers(self) -> tuple[str, ...]:
        return (TITLES[self.session.backend],)

    @property
    def log(self) -> str:
        """What TensorRT warned of so far."""
        return self.messages.text

    def bind(self, feeds: Mapping[str, Array], on_device: bool = True) -> BoundEngine:
        """Put the inputs where the engine reads them; what was bound before is given back.

        Raises as `BoundEngine` does.
        """
        if self._bound is not None:
            self._bound.close()
        self._bound = BoundEngine(self.cuda, self.engine, self.session, self.tensors, self.contexts, feeds)
        if self.session.cuda_graph and not self.captures_by_itself:
            self._bound.capture()
        return self._bound


def open_engine(session: EngineSession) -> OpenEngine:
    """Load an engine, refit it where that was asked for, and make its execution contexts.

    Raises `BackendError` when there is no GPU, TensorRT or CUDA, or the engine does not load here; `RequestError` when
    it is not of the session's model.
    """
    trt = import_bindings(session.backend)
    cuda = open_cuda_runtime()
    _select_gpu(cuda, session)
    before, messages, started = cuda.read_memory(), Messages(trt), time.perf_counter()
    runtime, engine = load_engine(trt, session, messages)
    load_ms = (time.perf_counter() - started) * 1e3
    tensors = tensors_of(trt, engine)
    refuse_other_model(tensors, session.inputs, session.outputs, f"the engine {session.engine}")
    _refuse_profile(engine, session)
    notes = [*note_casts(tensors, session.inputs), *_refit(trt, session, engine, messages)]
    started = time.perf_counter()
    config = _runtime_config(trt, engine, session)
    contexts = [_make_context(engine, config, messages) for _ in range(session.streams)]
    load_ms += (time.perf_counter() - started) * 1e3
    after = cuda.read_memory()
    facts = _describe(engine, session) | {
        "device_used_bytes": max(0, before.free_bytes - after.free_bytes),
        "device_free_bytes": after.free_bytes,
        "device_total_bytes": after.total_bytes,
    }
    return OpenEngine(
        session=session,
        cuda=cuda,
        engine=engine,
        keeps=(runtime, config),
        contexts=contexts,
        tensors=tensors,
        load_ms=load_ms,
        messages=messages,
        device=DeviceFacts(facts, {session.backend: trt.__version__}, (*notes, *_about_kernels(config))),
        captures_by_itself=hasattr(config, "cuda_graph_strategy"),
    )


def _select_gpu(cuda: CudaRuntime, session: EngineSession) -> None:
    devices, _ = cuda.count_devices()
    if session.gpu >= devices:
        raise BackendError(f"gpu: {session.gpu} is not here: this machine has {devices}, counted from 0.")
    cuda.select(session.gpu, spin=session.spin_wait)


def _refuse_profile(engine: Any, session: EngineSession) -> None:  # noqa: ANN401
    there = engine.num_optimization_profiles
    if session.optimization_profile >= there:
        raise RequestError(
            f"optimization_profile: {session.optimization_profile} is not in the engine {session.engine}: it has "
            f"{there}, counted from 0."
        )


def _refit(trt: Any, session: EngineSession, engine: Any, messages: Messages) -> Sequence[str]:  # noqa: ANN401
    """Sentences on what was done."""
    if not session.refit and not session.without_weights:
        return ()
    if not engine.refittable:
        return ()
    started = time.perf_counter()
    refit_engine(trt, session, engine, messages)
    took = seconds(time.perf_counter() - started)
    return (f"the engine was refitted with the model's weights before it ran, in {took}",)


def _runtime_config(trt: Any, engine: Any, session: EngineSession) -> Any:  # noqa: ANN401
    """TensorRT-RTX compiles kernels for the shapes it meets, while it runs others: measure when that is done."""
    strategies = getattr(trt, "DynamicShapesKernelSpecializationStrategy", None)
    if strategies is None or not hasattr(engine, "create_runtime_config"):
        return None
    config = engine.create_runtime_config()
    config.dynamic_shapes_kernel_specialization_strategy = strategies.EAGER
    if session.cuda_graph and hasattr(config, "cuda_graph_strategy"):
        config.cuda_graph_strategy = trt.CudaGraphStrategy.WHOLE_GRAPH_CAPTURE
    return config


def _make_context(engine: Any, config: Any, messages: Messages) -> Any:  # noqa: ANN401
    context = engine.create_execution_context() if config is None else engine.create_execution_context(config)
    if context is None:
        raise BackendError(
            f"TensorRT cannot make an execution context: {messages.last_error}. It may need more memory than the GPU "
            "has free; fewer streams and smaller shapes need less."
        )
    return context


def _about_kernels(config: Any) -> Sequence[str]:  # noqa: ANN401
    if config is None:
        return ()
    return ("kernels were compiled for the shapes of the inputs before measuring (EAGER), not while it went on",)


def _describe(engine: Any, session: EngineSession) -> Facts:  # noqa: ANN401
    return {
        "activation_bytes": engine.get_device_memory_size_for_profile_v2(session.optimization_profile),
        "activation_largest_profile_bytes": engine.device_memory_size_v2,
        "layers": engine.num_layers,
        "aux_streams": engine.num_aux_streams,
        "optimization_profiles": engine.num_optimization_profiles,
        "verbosity": engine.profiling_verbosity.name.lower(),
        "refittable": engine.refittable,
    }
