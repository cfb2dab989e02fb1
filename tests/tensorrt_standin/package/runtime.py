"""What opens engines, and what they tell of themselves. With STANDIN_NO_GPU=1 none can be opened."""

from __future__ import annotations

import json
import os
from typing import Any

from .bindings import IS_STRONG_ONLY, RELEASE, Bound, Setting, expect, has_bit, member
from .compiling import told_binding, told_layer
from .execution import IExecutionContext
from .logs import Log, open_log
from .plan import MAGIC, read_plan, write_plan
from .plugins import get_plugin_registry
from .values import BITS, Dims, IHostMemory

_HEADER = 64
_NO_GPU = "cudaError 35: CUDA driver version is insufficient for CUDA runtime version"


class Runtime(Bound):
    """Opens engines."""

    DLA_core = Setting(int, -1)
    defer_weights_loading = Setting(bool, False)
    dla_workspace_allocation_strategy = Setting("DLAWorkspaceAllocationStrategy", "DEFAULT")
    engine_host_code_allowed = Setting(bool, False)
    error_recorder = Setting(object)
    gpu_allocator = Setting(object)
    max_threads = Setting(int, 1)
    tempfile_control_flags = Setting(int, 3)
    temporary_directory = Setting(str, "/tmp")

    def __init__(self, logger: Any) -> None:
        self._log = open_log(logger)
        self._logger = logger

    @property
    def logger(self) -> Any:
        return self._logger

    @property
    def num_DLA_cores(self) -> int:
        return 0

    @property
    def engine_header_size(self) -> int:
        return _HEADER

    def get_plugin_registry(self) -> Any:
        return get_plugin_registry()

    def load_runtime(self, path: str) -> Any:
        expect(str, path, "path")
        return type(self)(self._logger)

    def deserialize_cuda_engine(self, serialized_engine: Any) -> Any:
        """The engine; None, and an error in the log, for what cannot be opened here."""
        try:
            engine = read_plan(_all_of(serialized_engine))
        except ValueError as error:
            self._log.error(f"IRuntime::deserializeCudaEngine: {error}", 1, "Serialization")
            return None
        refusal = self._refusal(engine)
        if refusal:
            self._log.error(f"IRuntime::deserializeCudaEngine: {refusal}", 6)
            return None
        self._log.say("INFO", f"Loaded engine size: {engine['memory']['weights'] >> 20} MiB")
        return ICudaEngine._make(engine, self._log, _all_of(serialized_engine))

    def get_engine_validity(self, buffer: Any) -> tuple[Any, int]:
        is_ours = bytes(buffer).startswith(MAGIC)
        if is_ours and os.environ.get("STANDIN_NO_GPU") != "1":
            return member("EngineValidity", "VALID"), 0
        reason = member("EngineInvalidityDiagnostics", "CUDA_ERROR" if is_ours else "MALFORMED_ENGINE")
        return member("EngineValidity", "INVALID"), 1 << int(reason)

    def _refusal(self, engine: dict[str, Any]) -> str:
        if os.environ.get("STANDIN_NO_GPU") == "1":
            return _NO_GPU
        targets = [] if "CURRENT" in engine["targets"] else engine["targets"]
        if targets and _gpu() not in targets:
            return f"The engine is for {', '.join(targets)}, and this GPU is {_gpu()}."
        if engine["backend"] != RELEASE["backend"]:
            return f"The engine was built by {engine['backend']}."
        has_code = "VERSION_COMPATIBLE" in engine["flags"] and "EXCLUDE_LEAN_RUNTIME" not in engine["flags"]
        if (has_code or engine["plugins"]) and not self.engine_host_code_allowed:
            return "The engine holds host code, and engine_host_code_allowed is not set."
        if engine["release"] != RELEASE["release"] and not _is_compatible(engine):
            return (
                "The engine plan file is not compatible with this version of TensorRT, expecting library version "
                f"{RELEASE['release']} got {engine['release']}, please rebuild."
            )
        return ""


class ICudaEngine(Bound):
    """An opened engine."""

    error_recorder = Setting(object)
    weight_streaming_budget = Setting(int, 0)
    weight_streaming_budget_v2 = Setting(int, 0)

    def _begin(self, *arguments: Any) -> None:
        engine, log, data = arguments
        self._engine: dict[str, Any] = engine
        self._log: Log = log
        self._data: bytes = data
        self._refitted: dict[str, bytes] = {}

    def __getitem__(self, at: int) -> str:
        return str(self._engine["tensors"][at]["name"])

    @property
    def name(self) -> str:
        return str(self._engine["name"])

    @property
    def num_layers(self) -> int:
        return len(self._engine["layers"])

    @property
    def num_io_tensors(self) -> int:
        return len(self._engine["tensors"])

    @property
    def num_optimization_profiles(self) -> int:
        return len(self._engine["profiles"])

    @property
    def num_aux_streams(self) -> int:
        return int(self._engine["aux_streams"])

    @property
    def tactic_sources(self) -> int:
        return int(self._engine["tactic_sources"])

    @property
    def refittable(self) -> bool:
        return bool(self._engine["refit"] or self._engine["stripped"])

    @property
    def profiling_verbosity(self) -> Any:
        return member("ProfilingVerbosity", self._engine["verbosity"])

    @property
    def hardware_compatibility_level(self) -> Any:
        return member("HardwareCompatibilityLevel", self._engine["hardware_compatibility"])

    @property
    def engine_capability(self) -> Any:
        return member("EngineCapability", self._engine["capability"])

    @property
    def has_implicit_batch_dimension(self) -> bool:
        return False

    @property
    def device_memory_size(self) -> int:
        return int(self._engine["memory"]["activation"])

    @property
    def device_memory_size_v2(self) -> int:
        return int(self._engine["memory"]["activation"])

    def get_device_memory_size_for_profile(self, profile_index: int) -> int:
        return self.get_device_memory_size_for_profile_v2(profile_index)

    def get_device_memory_size_for_profile_v2(self, profile_index: int) -> int:
        expect(int, profile_index, "profile_index")
        return int(self._engine["memory"]["activation"])

    @property
    def streamable_weights_size(self) -> int:
        return int(self._engine["memory"]["weights"]) if "WEIGHT_STREAMING" in self._engine["flags"] else 0

    @property
    def minimum_weight_streaming_budget(self) -> int:
        return 0

    @property
    def weight_streaming_scratch_memory_size(self) -> int:
        return 0

    def get_weight_streaming_automatic_budget(self) -> int:
        return self.streamable_weights_size

    def get_engine_stat(self, stat: Any = None) -> int:
        kept = sum(self._engine["weights_kept"].values())
        total = int(self._engine["memory"]["weights"])
        return total - kept if stat is not None and stat.name == "STRIPPED_WEIGHTS_SIZE" else total

    def get_tensor_name(self, index: int) -> str | None:
        if 0 <= expect(int, index, "index") < self.num_io_tensors:
            return self[index]
        self._log.error(f"ICudaEngine::getIOTensorName: index {index} is not in [0, {self.num_io_tensors})", 3)
        return None

    def get_tensor_mode(self, name: str) -> Any:
        return member("TensorIOMode", self._tensor(name).get("mode", "NONE"))

    def get_tensor_dtype(self, name: str) -> Any:
        return member("DataType", self._tensor(name).get("type", "FLOAT"))

    def get_tensor_shape(self, name: str) -> Any:
        return Dims(self._tensor(name).get("dims", ()))

    def get_tensor_location(self, name: str) -> Any:
        return member("TensorLocation", "HOST" if self._tensor(name).get("is_shape") else "DEVICE")

    def is_shape_inference_io(self, name: str) -> bool:
        return bool(self._tensor(name).get("is_shape"))

    def is_debug_tensor(self, name: str) -> bool:
        self._tensor(name)
        return False

    def get_aliased_input_tensor(self, name: str) -> str | None:
        self._tensor(name)
        return None

    def get_tensor_format(self, name: str, profile_index: int = 0) -> Any:
        self._tensor(name)
        return member("TensorFormat", "LINEAR")

    def get_tensor_format_desc(self, name: str, profile_index: int = 0) -> str:
        return f"Row major linear {self._tensor(name).get('type', '')} format (kLINEAR)"

    def get_tensor_bytes_per_component(self, name: str, profile_index: int = 0) -> int:
        return BITS.get(self._tensor(name).get("type", "FLOAT"), 8) // 8

    def get_tensor_components_per_element(self, name: str, profile_index: int = 0) -> int:
        self._tensor(name)
        return 1

    def get_tensor_vectorized_dim(self, name: str, profile_index: int = 0) -> int:
        self._tensor(name)
        return -1

    def get_tensor_profile_shape(self, name: str, profile_index: int) -> list[Any]:
        return [Dims(shape) for shape in self._profile(profile_index)["shapes"].get(name, [])]

    def get_tensor_profile_values(self, name: Any, profile_index: Any) -> list[list[int]]:
        """In releases before 11 the name comes first, later bindings document the contrary and take both."""
        at, named = (name, profile_index) if isinstance(name, int) else (profile_index, name)
        return [list(values) for values in self._profile(at)["values"].get(named, [])]

    def _profile(self, at: int) -> dict[str, Any]:
        profiles: list[dict[str, Any]] = self._engine["profiles"]
        if 0 <= expect(int, at, "profile_index") < len(profiles):
            return profiles[at]
        self._log.error(f"ICudaEngine::getProfileShape: there is no profile {at}", 3)
        return {"shapes": {}, "values": {}}

    def _tensor(self, name: str) -> dict[str, Any]:
        for tensor in self._engine["tensors"]:
            if tensor["name"] == expect(str, name, "name"):
                return dict(tensor)
        self._log.error(f"ICudaEngine: there is no input or output tensor {name}", 3)
        return {}

    def create_execution_context(self, strategy: Any = None, runtime_config: Any = None) -> Any:
        missing = self._engine["stripped"] and set(self._engine["weights"]) - set(self._refitted)
        if missing:
            self._log.error("ICudaEngine::createExecutionContext: the engine is stripped of weights: refit it first", 3)
            return None
        return IExecutionContext._make(self, self._engine, self._log, strategy or runtime_config)

    def create_execution_context_without_device_memory(self) -> Any:
        return self.create_execution_context()

    def create_runtime_config(self) -> Any:
        return IRuntimeConfig._make()

    def create_engine_inspector(self) -> Any:
        return EngineInspector._make(self._engine)

    def create_serialization_config(self) -> Any:
        return ISerializationConfig._make(self._engine["stripped"])

    def serialize(self) -> Any:
        return IHostMemory(self._data)

    def serialize_with_config(self, config: Any) -> Any:
        without_weights = has_bit(
            expect("ISerializationConfig", config, "config")._flags, member("SerializationFlag", "EXCLUDE_WEIGHTS")
        )
        if without_weights:
            return IHostMemory(write_plan({**self._engine, "stripped": True}, {}))
        if not self._engine["stripped"]:
            return IHostMemory(self._data)
        return IHostMemory(write_plan({**self._engine, "stripped": False}, self._refitted))


class EngineInspector(Bound):
    """What an engine tells of its layers, as much as the verbosity it was built with.

    Free dimensions are told where it has an execution context that knows them.
    """

    error_recorder = Setting(object)
    execution_context = Setting("IExecutionContext", optional=True)

    def _begin(self, *arguments: Any) -> None:
        (self._engine,) = arguments

    def get_layer_information(self, layer_index: int, format: Any) -> str:
        layer = self._engine["layers"][expect(int, layer_index, "layer_index")]
        return self._written(self._told(layer), expect("LayerInformationFormat", format, "format"))

    def get_engine_information(self, format: Any) -> str:
        expect("LayerInformationFormat", format, "format")
        shown = [] if self._engine["verbosity"] == "NONE" else self._engine["layers"]
        told: dict[str, Any] = {"Layers": [self._told(layer) for layer in shown]}
        if IS_STRONG_ONLY:
            told["I/O Tensors"] = [told_binding(tensor) for tensor in self._engine["tensors"]]
        else:
            told["Bindings"] = [tensor["name"] for tensor in self._engine["tensors"]]
        return self._written(told, format)

    def _told(self, layer: dict[str, Any]) -> Any:
        if self._engine["verbosity"] != "DETAILED":
            return layer["name"]
        context = self.execution_context
        known = {} if context is None else context._shapes_of_all()
        sides = {
            side: [{**tensor, "dims": known.get(tensor["name"], tensor["dims"])} for tensor in layer[side]]
            for side in ("inputs", "outputs")
        }
        return told_layer({**layer, **sides})

    def _written(self, told: Any, format: Any) -> str:
        return json.dumps(told) if format.name == "JSON" else str(told)


class ISerializationConfig(Bound):
    """What is written of an engine."""

    def _begin(self, *arguments: Any) -> None:
        self._flags = 1 << int(member("SerializationFlag", "EXCLUDE_WEIGHTS")) if arguments[0] else 0

    @property
    def flags(self) -> int:
        return int(self._flags)

    @flags.setter
    def flags(self, value: int) -> None:
        self._flags = expect(int, value, "flags")

    def set_flag(self, flag: Any) -> bool:
        self._flags |= 1 << int(expect("SerializationFlag", flag, "flag"))
        return True

    def clear_flag(self, flag: Any) -> bool:
        self._flags &= ~(1 << int(expect("SerializationFlag", flag, "flag")))
        return True

    def get_flag(self, flag: Any) -> bool:
        return has_bit(self._flags, expect("SerializationFlag", flag, "flag"))


class IRuntimeCache(Bound):
    """Code that TensorRT-RTX compiled for this GPU."""

    def _begin(self, *arguments: Any) -> None:
        self._blob = b"STANDIN-RUNTIME-CACHE"

    def serialize(self) -> Any:
        return IHostMemory(self._blob)

    def deserialize(self, blob: Any) -> bool:
        return bytes(blob).startswith(b"STANDIN-RUNTIME-CACHE")

    def reset(self) -> bool:
        return True


class IRuntimeConfig(Bound):
    """How an engine runs."""

    cuda_graph_strategy = Setting("CudaGraphStrategy", "DISABLED")
    dynamic_shapes_kernel_specialization_strategy = Setting("DynamicShapesKernelSpecializationStrategy", "LAZY")

    def _begin(self, *arguments: Any) -> None:
        self._strategy = member("ExecutionContextAllocationStrategy", "STATIC")
        self._cache: Any = None

    def set_execution_context_allocation_strategy(self, strategy: Any) -> None:
        self._strategy = expect("ExecutionContextAllocationStrategy", strategy, "strategy")

    def get_execution_context_allocation_strategy(self) -> Any:
        return self._strategy

    def create_runtime_cache(self) -> Any:
        return IRuntimeCache._make()

    def set_runtime_cache(self, cache: Any = None) -> bool:
        self._cache = None if cache is None else expect("IRuntimeCache", cache, "cache")
        return True

    def get_runtime_cache(self) -> Any:
        return self._cache


def _is_compatible(engine: dict[str, Any]) -> bool:
    """A version compatible engine runs on later releases of its major version, and later ones."""
    return "VERSION_COMPATIBLE" in engine["flags"] and _minor(engine["release"]) <= _minor(RELEASE["release"])


def _gpu() -> str:
    """The GPU that is here, by STANDIN_GPU, such as 8.9."""
    return "SM" + os.environ.get("STANDIN_GPU", "8.9").replace(".", "")


def _minor(release: str) -> tuple[int, ...]:
    return tuple(map(int, release.split(".")[:2]))


def _all_of(source: Any) -> bytes:
    """Bytes, or what a stream reader gives."""
    if not hasattr(source, "read"):
        return bytes(memoryview(source))
    stream = (0,) if hasattr(source, "seek") else ()
    found = b""
    while piece := source.read(1 << 20, *stream):
        found += bytes(piece)
    return found
