"""Sessions in ONNX Runtime on the requested execution provider, without silent fallbacks."""

from __future__ import annotations

import contextlib
import ctypes
import io
import re
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
import onnxruntime as ort

from ndld_flow.base.dtype_names import bits_of_dtype
from ndld_flow.base.errors import BackendError, ModelError
from ndld_flow.base.text import shortened
from ndld_flow.models.tensors import (
    Array,
    TensorSpec,
    dtype_of_ort,
    dtype_text,
    named_tensors,
    numpy_dtype,
    pack_elements,
    shape_text,
    unpack_elements,
)
from ndld_flow.runtimes.native_output import catch_native_output
from ndld_flow.runtimes.onnxruntime.execution_providers import (
    CPU,
    find_plugin_devices,
    full_name,
    memory_of,
    provider_advice,
    short_name,
    with_fallbacks,
)
from ndld_flow.runtimes.protocol import DeviceTimes, HostBinding, SessionFacts

Optimization = Literal["disabled", "basic", "extended", "layout", "all"]
Execution = Literal["sequential", "parallel"]

_SILENT = 4
"""Severity of fatal messages. Errors that ONNX Runtime logs are raised too."""
_WARNING = 2
_MOST_LETTERS = 600
"""Maximum number of characters of a message of ONNX Runtime; names in it may be of any length."""
_BOUNDS_SPINNING = (1, 26)
_TURN_SPIN_US = 1000
"""Longest busy-waiting in turns: passes of one turn follow each other at once, and it must not slow the next turn."""
"""First release that limits the time of busy-waiting."""
_DATA_FOLDER = "session.model_external_initializers_file_folder_path"
_UNREGISTERED = "is not a registered function/op"
_ABOUT_THE_MODEL = ("InvalidProtobuf", "InvalidGraph", "NoModel", "NoSuchFile")
"""ONNX Runtime's exceptions that are not caused by an execution provider."""


@dataclass(frozen=True)
class SessionSettings:
    """Settings of a session."""

    provider: str = "cpu"
    """`cpu`, `cuda`, `tensorrt`, ..., or ONNX Runtime's full name."""
    provider_options: Mapping[str, str | int | float | bool] = field(default_factory=dict)
    optimization: Optimization = "all"
    threads: int = 0
    """Threads within an operator; 0 lets ONNX Runtime choose (one for each physical core)."""
    inter_op_threads: int = 0
    """Threads between operators, with parallel execution; 0 lets ONNX Runtime choose."""
    execution: Execution = "sequential"
    memory_arena: bool = True
    memory_reuse: bool = True
    """Plan the sharing of memory by tensors when the model is opened. Without it, a model of a thousand nodes and
    dynamic dimensions opens in a fifth of the time, which is worthwhile for few runs."""
    memory_pattern: bool = True
    """Allocate the memory of all tensors at once, as traced in the first pass of the same shapes."""
    integer_kernels: bool = True
    """Replace floats between Q/DQ pairs by integer kernels. Without, weights of DQ nodes are computed once."""
    prepacking: bool = True
    """Rearrange weights for the kernels when the model is opened."""
    flush_denormals: bool = False
    """Compute with 0 in place of denormal numbers."""
    block_base: int = 0
    """Base of the shrinking blocks into which the work of an operator is divided; 0 for equal parts."""
    gelu_approximation: bool = False
    affinity: str = ""
    """Processors of each thread but the first, as ONNX Runtime writes them; empty lets it choose."""
    provider_library: str | None = None
    """Absolute path of the plugin library with the provider."""
    spinning: bool = True
    """Threads busy-wait for the next operator: fast, but it occupies all processors."""
    spin_duration: int | None = None
    """Microseconds for which they do; None lets ONNX Runtime choose."""
    spins: Literal["never", "in turns", "always"] = "never"
    """When threads busy-wait, if `spinning` lets them. Measured sessions do as ONNX Runtime does by default, about 40
    ms after a pass too, or 1 ms if passes of another session come next. For all others, sleeping is as fast on a quiet
    machine, and twice as fast on a busy one."""
    free_dimensions: Mapping[str, int] = field(default_factory=dict)
    """Dimension name -> its size, fixed before optimization."""
    custom_ops: Sequence[str] = ()
    """Absolute paths of libraries with custom operators."""
    profile_prefix: Path | None = None
    """Path prefix of ONNX Runtime's profile; None disables profiling."""
    optimized_model: Path | None = None
    """File for the optimized model, its weights in a separate file in the same folder."""


@dataclass(frozen=True)
class OnnxruntimeSession:
    """An open model."""

    path: Path
    session: ort.InferenceSession
    memory: tuple[str, int]
    """Device type and index of the memory of its inputs and outputs."""
    load_ms: float
    log: str
    """Messages of ONNX Runtime while loading."""

    @property
    def providers(self) -> tuple[str, ...]:
        """Return the execution providers in use, preferred one first."""
        return tuple(self.session.get_providers())

    def describe(self) -> SessionFacts:
        inputs, outputs = (
            tuple(TensorSpec(each.name, dtype_of_ort(each.type), tuple(each.shape)) for each in declared)
            for declared in (self.session.get_inputs(), self.session.get_outputs())
        )
        return SessionFacts(self.providers, inputs, outputs)

    def close(self) -> None:
        """Do nothing: ONNX Runtime releases the model with the last reference to this session and its bindings."""

    def bind(self, feeds: Mapping[str, Array], on_device: bool = False) -> OnnxruntimeBinding | UnboundInputs:
        """Copy the inputs to the provider's memory; ONNX Runtime cannot bind strings, and gets them in each run.

        With `on_device` the outputs stay there too, so that a run copies nothing between host and device.
        """
        if self._needs_copies(feeds, for_values=not on_device):
            return UnboundInputs(self, feeds)
        return OnnxruntimeBinding(self, feeds, self.memory if on_device else ("cpu", 0))

    def _needs_copies(self, feeds: Mapping[str, Array], for_values: bool = True) -> bool:
        """Return whether a run without a binding is needed: strings cannot be bound, an optional output without a value
        crashes, and the values of other non-tensors are not handed out. It takes numpy's own types only.
        """
        types = [output.type for output in self.session.get_outputs() if not output.type.startswith("tensor(")]
        if any(array.dtype.kind in "UO" for array in feeds.values()) or any(t.startswith("optional(") for t in types):
            return True
        return for_values and bool(types) and all(array.dtype.isbuiltin == 1 for array in feeds.values())

    def run_within(self, names: Sequence[str], feeds: Mapping[str, Array], seconds: float) -> dict[str, Array | None]:
        """Run once, and return these outputs as tensors, as `named_tensors` does. ONNX Runtime stops after `seconds`.

        Raises `ModelError` if the run fails or is stopped.
        """
        options = ort.RunOptions()
        stop = threading.Timer(seconds, setattr, (options, "terminate", True))
        stop.daemon = True
        stop.start()
        try:
            if self._needs_copies(feeds):
                return named_tensors(zip(names, self.session.run(list(names), dict(feeds), options), strict=True))
            values = {name: _ort_value(name, array, self) for name, array in feeds.items()}
            computed = self.session.run_with_ort_values(list(names), values, options)
            return dict(zip(names, map(_array, computed), strict=True))
        except ModelError:
            raise
        except Exception as error:  # ONNX Runtime raises both RuntimeError and its own classes
            raise ModelError(f"{self.path} fails at run time: {one_paragraph(error)}.") from None
        finally:
            stop.cancel()


class OnnxruntimeBinding:
    """A model with its inputs bound."""

    def __init__(self, model: OnnxruntimeSession, feeds: Mapping[str, Array], outputs_to: tuple[str, int]) -> None:
        self._model = model
        self._session = model.session
        self._binding = model.session.io_binding()
        # A model may name an output twice; the binding has each name once.
        self._names = list(dict.fromkeys(output.name for output in model.session.get_outputs()))
        # Bound values must outlive the binding that refers to them.
        self._values = {name: _ort_value(name, array, model) for name, array in feeds.items()}
        for name, value in self._values.items():
            self._binding.bind_ortvalue_input(name, value)
        self._outputs_to = outputs_to
        self._bind_outputs()
        self._has_run = self._is_misdeclared = False
        self._waits = outputs_to[0] != "cpu"
        # Host copies are kept only if they are copied again.
        self._feeds = {name: np.asarray(array, order="C") for name, array in feeds.items()} if self._waits else {}
        self._fed = _facts_of(feeds)

    def run(self) -> None:
        """Run the model once and wait for its outputs. Raises `ModelError` if it fails."""
        if self._is_misdeclared:
            self._bind_outputs()
        try:
            self._session.run_with_iobinding(self._binding)
        except Exception as error:  # ONNX Runtime raises both RuntimeError and its own classes
            raise _failed(self._model.path, self._fed, error) from None
        if self._waits:
            self._binding.synchronize_outputs()
        if not self._has_run:
            # ONNX Runtime computes outputs of other shapes than declared, but refuses to write them into the memory of
            # the last run.
            declared = {output.name: output.shape for output in self._session.get_outputs()}
            values = zip(self._names, self._binding.get_outputs(), strict=True)
            self._is_misdeclared = any(
                value.is_tensor() and _contradicts(value.shape(), declared[name]) for name, value in values
            )
            self._has_run = True

    def _bind_outputs(self) -> None:
        """Let the next run allocate the outputs."""
        for name in self._names:
            self._binding.bind_output(name, *self._outputs_to)

    @property
    def can_copy(self) -> bool:
        """Return True if inputs and outputs are in a device's memory, and `copy_in` and `copy_out` can copy them."""
        on_device = (value.device_name() != "cpu" for value in self._values.values())
        tensors = (output.type.startswith("tensor(") for output in self._session.get_outputs())
        return self._waits and all(on_device) and all(tensors)

    def copy_in(self) -> None:
        """Copy the inputs to the device again; small copies may still be in progress on return."""
        for name, array in self._feeds.items():
            self._values[name].update_inplace(array)

    def copy_out(self) -> None:
        """Copy the last pass's outputs to new arrays on the host."""
        self._binding.copy_outputs_to_cpu()

    def device_times(self) -> DeviceTimes:
        """Return no times: ONNX Runtime does not report those of the device's clock."""
        return DeviceTimes()

    def outputs(self) -> dict[str, Array | None]:
        """Return the outputs of the last pass by name; None for a non-tensor, which a binding does not hand out."""
        return dict(zip(self._names, map(_array, self._binding.get_outputs()), strict=True))

    def output_shapes(self) -> dict[str, tuple[str, tuple[int, ...]]]:
        """Return name -> dtype and shape of the outputs of the last pass, on any device."""
        values = self._binding.get_outputs()
        return {
            name: (dtype_of_ort(value.data_type()), tuple(value.shape()) if value.is_tensor() else ())
            for name, value in zip(self._names, values, strict=True)
        }


class UnboundInputs(HostBinding):
    """A model whose inputs and outputs are copied in each run: strings, non-tensors, and those next to them."""

    def __init__(self, model: OnnxruntimeSession, feeds: Mapping[str, Array]) -> None:
        self._model, self._feeds = model, feeds
        self._names = list(dict.fromkeys(output.name for output in model.session.get_outputs()))
        self._outputs: list[Any] = []

    def run(self) -> None:
        """Run the model once. Raises `ModelError` if it fails."""
        try:
            self._outputs = self._model.session.run(self._names, self._feeds)
        except Exception as error:  # ONNX Runtime raises both RuntimeError and its own classes
            raise _failed(self._model.path, _facts_of(self._feeds), error) from None

    def outputs(self) -> dict[str, Array | None]:
        """Return the outputs of the last pass as tensors by name, as `named_tensors` does."""
        return named_tensors(zip(self._names, self._outputs, strict=True))

    def output_shapes(self) -> dict[str, tuple[str, tuple[int, ...]]]:
        """Return name -> dtype and shape of the outputs of the last pass."""
        tensors = self.outputs()
        shapes = {name: () if (value := tensors.get(name)) is None else tuple(value.shape) for name in self._names}
        return {each.name: (dtype_of_ort(each.type), shapes[each.name]) for each in self._model.session.get_outputs()}


_Fed = Mapping[str, tuple[np.dtype[Any], tuple[int, ...]]]
"""Input -> dtype and shape of its values."""


def _facts_of(feeds: Mapping[str, Array]) -> _Fed:
    return {name: (array.dtype, tuple(array.shape)) for name, array in feeds.items()}


def _failed(path: Path, given: _Fed, error: Exception) -> ModelError:
    from ndld_flow.samples.likely_inputs import suggest_shapes  # a second of imports, which each measuring process has

    fed = ", ".join(f"{name} {dtype_text(dtype)} {shape_text(shape)}" for name, (dtype, shape) in given.items())
    shapes = {name: shape for name, (_, shape) in given.items()}
    return ModelError(
        f"{path} fails at run time: {one_paragraph(error)}. Its inputs were {fed}; {suggest_shapes(path, shapes)}"
    )


def _contradicts(shape: Sequence[int], declared: Sequence[int | str | None]) -> bool:
    """Return whether a shape contradicts a declared one, which is empty if nothing is declared."""
    if len(shape) != len(declared):
        return bool(declared)
    return any(isinstance(size, int) and size != actual for actual, size in zip(shape, declared, strict=True))


def open_model(path: Path, settings: SessionSettings, changed: bytes | None = None) -> OnnxruntimeSession:
    """Open a model on the requested provider.

    `changed` is opened instead of the file: a modified model whose external data are in the file's folder. Raises
    `BackendError` with the loader's reason when the provider is unknown, missing, or does not load (ONNX Runtime would
    silently fall back to the CPU); `ModelError` when ONNX Runtime refuses the model.
    """
    if settings.provider_library is not None:
        provider, devices = find_plugin_devices(settings.provider, settings.provider_library)
    else:
        provider, devices = full_name(settings.provider), []
    options = {
        name: str(int(value)) if isinstance(value, bool) else str(value)
        for name, value in settings.provider_options.items()
    }
    memory = memory_of(provider, options)
    session_options = _session_options(settings)
    if devices:
        session_options.add_provider_for_devices(devices[:1], options)
    if changed is not None:
        session_options.add_session_config_entry(_DATA_FOLDER, str(path.parent.resolve()))
    started = time.perf_counter()
    try:
        with _watched(provider) as caught:
            session = ort.InferenceSession(
                path if changed is None else changed,
                session_options,
                # A plugin is named by the session's options, which ONNX Runtime ignores next to a list of providers.
                providers=[] if devices else with_fallbacks(provider, options),
                enable_fallback=0,
            )
    except Exception as error:
        raise _refused(path, provider, error, "\n".join(caught)) from None
    load_ms = (time.perf_counter() - started) * 1e3
    log = "\n".join(caught)
    if session.get_providers()[0] != provider:
        reason = _loader_reason(log) or "ONNX Runtime reports no reason"
        raise BackendError(
            f"{provider} was requested, but ONNX Runtime loaded {session.get_providers()[0]} instead: {reason}. "
            f"{provider_advice(provider)}"
        )
    return OnnxruntimeSession(path, session, memory, load_ms, log)


@contextlib.contextmanager
def _watched(provider: str) -> Iterator[list[str]]:
    """Keep ONNX Runtime's messages off the terminal; for other providers than the CPU, collect them."""
    collected: list[str] = []
    ort.set_default_logger_severity(_SILENT)
    if provider == CPU:
        yield collected
        return
    ort.set_default_logger_severity(_WARNING)
    try:
        with catch_native_output() as caught:
            # CUDA and cuDNN may be installed as NVIDIA's wheels.
            preload = getattr(ort, "preload_dlls", None)
            if preload is not None:
                with contextlib.redirect_stdout(io.StringIO()):  # it prints each missing library
                    preload()
            yield collected
    finally:
        ort.set_default_logger_severity(_SILENT)
        collected.append(caught.text)


def _session_options(settings: SessionSettings) -> Any:  # noqa: ANN401
    options = ort.SessionOptions()
    options.log_severity_level = _SILENT
    options.graph_optimization_level = _level(settings.optimization)
    options.intra_op_num_threads = settings.threads
    options.inter_op_num_threads = settings.inter_op_threads
    parallel = settings.execution == "parallel"
    options.execution_mode = ort.ExecutionMode.ORT_PARALLEL if parallel else ort.ExecutionMode.ORT_SEQUENTIAL
    options.enable_cpu_mem_arena = settings.memory_arena
    options.enable_mem_reuse = settings.memory_reuse
    options.enable_mem_pattern = settings.memory_pattern
    for name, value in _entries(settings).items():
        options.add_session_config_entry(name, value)
    for library in settings.custom_ops:
        _load_custom_ops(options, library)
    for name, size in settings.free_dimensions.items():
        options.add_free_dimension_override_by_name(name, size)
    if settings.profile_prefix is not None:
        options.enable_profiling = True
        options.profile_file_prefix = str(settings.profile_prefix)
    if settings.optimized_model is not None:
        options.optimized_model_filepath = str(settings.optimized_model)
        # Weights in a separate file: the graph is read quickly, and a protobuf is limited to 2 GB.
        keys = "session.optimized_model_external_initializers"
        options.add_session_config_entry(f"{keys}_file_name", f"{settings.optimized_model.name}.data")
        options.add_session_config_entry(f"{keys}_min_size_in_bytes", "1024")
    return options


def _entries(settings: SessionSettings) -> dict[str, str]:
    """Return the entries of the session's configuration that differ from ONNX Runtime's defaults.

    Raises BackendError for one that this release would ignore.
    """
    duration, in_turns = settings.spin_duration, settings.spins == "in turns"
    bounds_spinning = tuple(map(int, re.findall(r"\d+", version())[:2])) >= _BOUNDS_SPINNING
    if duration is not None and not bounds_spinning:
        raise BackendError(
            f"`spin_duration`: ONNX Runtime {version()} ignores it; it needs 1.26 or later. Remove it, or update."
        )
    if in_turns and bounds_spinning:
        duration = min(duration or _TURN_SPIN_US, _TURN_SPIN_US)
    spins = settings.spinning and settings.spins != "never"
    changed = {
        "session.disable_quant_qdq": "" if settings.integer_kernels else "1",
        "session.disable_prepacking": "" if settings.prepacking else "1",
        "session.set_denormal_as_zero": "1" if settings.flush_denormals else "",
        "session.dynamic_block_base": str(settings.block_base or ""),
        "optimization.enable_gelu_approximation": "1" if settings.gelu_approximation else "",
        "session.intra_op_thread_affinities": settings.affinity,
        # Threads then sleep between the passes of a turn too, which takes a quick one 10 to 20 % more time.
        "session.force_spinning_stop": "1" if in_turns and not bounds_spinning else "",
        **{f"session.{pool}_op.allow_spinning": "" if spins else "0" for pool in ("intra", "inter")},
        **{f"session.{pool}_op.spin_duration_us": str(duration or "") for pool in ("intra", "inter") if spins},
    }
    return {name: value for name, value in changed.items() if value}


def version() -> str:
    """Return the release of the imported ONNX Runtime."""
    return str(ort.__version__)


def _load_custom_ops(options: Any, library: str) -> None:  # noqa: ANN401
    """Register the operators of a library. Raises `BackendError` with the loader's reason."""
    try:
        with catch_native_output() as caught:
            options.register_custom_ops_library(library)
    except Exception as error:  # ONNX Runtime raises its own classes
        reason = " ".join(f"{one_paragraph(error)} {caught.text}".split())
        raise BackendError(
            f"`custom_ops`: ONNX Runtime {ort.__version__} does not load {library}: "
            f"{shortened(reason, _MOST_LETTERS)}. The library must export `RegisterCustomOps`, and be built for this "
            "system with headers of this release of ONNX Runtime or an older one."
        ) from None


def _level(optimization: Optimization) -> Any:  # noqa: ANN401
    name = "ORT_DISABLE_ALL" if optimization == "disabled" else f"ORT_ENABLE_{optimization.upper()}"
    if not hasattr(ort.GraphOptimizationLevel, name):
        raise BackendError(
            f"ONNX Runtime {ort.__version__} has no optimization level {optimization}: use extended or all."
        )
    return getattr(ort.GraphOptimizationLevel, name)


def _refused(path: Path, provider: str, error: Exception, log: str) -> Exception:
    if not path.is_file():
        return ModelError(f"there is no model file {path}.")
    if provider == CPU or type(error).__name__ in _ABOUT_THE_MODEL:
        message = one_paragraph(error)
        hint = " `custom_ops` loads a library with operators of your own." if _UNREGISTERED in message else ""
        return ModelError(f"ONNX Runtime {ort.__version__} rejects {path}: {message}.{hint}")
    reason = _loader_reason(log) or one_paragraph(error)
    return BackendError(f"{provider} cannot run {path}: {reason}. {provider_advice(provider)}")


def _loader_reason(log: str) -> str:
    """Return `Failed to load library libonnxruntime_providers_cuda.so with error: libcublasLt.so.13: cannot ...`."""
    lines = [line for line in log.splitlines() if "Failed to load" in line or "[E:onnxruntime" in line]
    if not lines:
        return ""
    reason = lines[0].rpartition("[ONNXRuntimeError]")[2].partition("FAIL : ")[2] or lines[0]
    words = [Path(word).name if word.startswith("/") else word for word in reason.split()]
    return " ".join(words).rstrip(".")


def one_paragraph(error: Exception) -> str:
    """Return ONNX Runtime's message without its code, source lines and line breaks, shortened."""
    text = str(error)
    if text.startswith("[ONNXRuntimeError]"):
        text = text.split(" : ", 3)[-1]
    return shortened(" ".join(text.split()).rstrip("."), _MOST_LETTERS)


def _ort_value(name: str, array: Array, model: OnnxruntimeSession) -> ort.OrtValue:
    packed = np.asarray(array, order="C")
    try:
        if packed.dtype.isbuiltin == 1:
            return ort.OrtValue.ortvalue_from_numpy(packed, *model.memory)
        import onnx_ir as ir  # imported lazily: measuring processes import this module, and few models need it

        element = ir.DataType.from_numpy(packed.dtype).value
        if bits_of_dtype(packed.dtype.name) == 8 * packed.itemsize:
            return ort.OrtValue.ortvalue_from_numpy_with_onnx_type(packed, element)
        value = ort.OrtValue.ortvalue_from_shape_and_type(packed.shape, element)
        data = pack_elements(packed)
        ctypes.memmove(value.data_ptr(), data, len(data))
        return value
    except Exception as error:
        raise ModelError(
            f'input "{name}" of {model.path}: ONNX Runtime on {short_name(model.providers[0])} does not accept '
            f"{packed.dtype.name} from memory: {one_paragraph(error)}."
        ) from None


def _array(value: ort.OrtValue) -> Array | None:
    if not value.is_tensor():
        return None
    dtype = numpy_dtype(dtype_of_ort(value.data_type()))
    if dtype is None or dtype.isbuiltin == 1:
        return np.asarray(value.numpy())
    # numpy has no such dtype, so ONNX Runtime returns no array: copy the bytes and reinterpret them.
    shape: Sequence[int] = value.shape()
    count, bits = int(np.prod(shape, dtype=np.int64)), bits_of_dtype(dtype.name) or 8 * dtype.itemsize
    data = ctypes.string_at(value.data_ptr(), -(-count * bits // 8))
    if bits < 8:
        return unpack_elements(data, count, dtype).reshape(shape)
    return np.frombuffer(data, dtype).reshape(shape)
