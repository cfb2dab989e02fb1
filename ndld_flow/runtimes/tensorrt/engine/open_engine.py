"""Engines opened in TensorRT or TensorRT-RTX, on the GPU that was asked for."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ndld_flow.base.errors import BackendError, RequestError
from ndld_flow.base.quantities import seconds
from ndld_flow.models.tensors import Array
from ndld_flow.runtimes.onnxruntime.device_facts import DeviceFacts
from ndld_flow.runtimes.tensorrt.engine.bound_engine import BoundEngine
from ndld_flow.runtimes.tensorrt.engine.cuda_runtime import CudaRuntime, open_cuda_runtime
from ndld_flow.runtimes.tensorrt.engine.engine_session import EngineSession
from ndld_flow.runtimes.tensorrt.engine.engine_tensors import EngineTensor, note_casts, refuse_other_model, tensors_of
from ndld_flow.runtimes.tensorrt.engine.load_engine import Messages, load_engine, refit_engine
from ndld_flow.runtimes.tensorrt.library import SPOKEN, import_bindings

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
        return (SPOKEN[self.session.backend],)

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
