"""Opened engines and their descriptions."""

from __future__ import annotations

import json
import weakref
from typing import Any

from .bindings import IS_STRONG_ONLY, Bound, Setting, expect, has_bit, member
from .compiling import told_binding, told_layer
from .execution import IExecutionContext
from .logs import Log
from .plan import write_plan
from .running import IRuntimeConfig
from .values import BITS, Dims, IHostMemory


class ICudaEngine(Bound):
    """An opened engine."""

    error_recorder = Setting(object)
    weight_streaming_budget = Setting(int, 0)

    def _begin(self, *arguments: Any) -> None:
        engine, log, data = arguments
        self._engine: dict[str, Any] = engine
        self._log: Log = log
        self._data: bytes = data
        self._refitted: dict[str, bytes] = {}
        self._contexts: weakref.WeakSet[IExecutionContext] = weakref.WeakSet()
        self._budget = self.streamable_weights_size

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
    def weight_streaming_budget_v2(self) -> int:
        return self._budget

    @weight_streaming_budget_v2.setter
    def weight_streaming_budget_v2(self, value: int) -> None:
        """What is refused is logged, and the old budget stays: a budget of all weights disables streaming."""
        wanted = expect(int, value, "weight_streaming_budget_v2")
        if not self.streamable_weights_size or wanted < 0 or self._contexts:
            self._log.error("ICudaEngine::setWeightStreamingBudgetV2: the budget cannot be set", 3)
            return
        self._budget = min(wanted, self.streamable_weights_size)

    @property
    def minimum_weight_streaming_budget(self) -> int:
        return 0

    @property
    def weight_streaming_scratch_memory_size(self) -> int:
        return 0

    def get_weight_streaming_automatic_budget(self) -> int:
        return self.streamable_weights_size // 2

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
        tensor = self._tensor(name)
        return member("TensorLocation", "HOST" if tensor.get("is_shape") else tensor.get("location", "DEVICE"))

    def is_shape_inference_io(self, name: str) -> bool:
        return bool(self._tensor(name).get("is_shape"))

    def is_debug_tensor(self, name: str) -> bool:
        return name in self._engine["debug"]["marked"]

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
        if not self._tensor(named).get("is_shape"):
            raise RuntimeError(f"get_tensor_profile_values: {named} is not a shape tensor")
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
        made = IExecutionContext._make(self, self._engine, self._log, strategy or runtime_config)
        self._contexts.add(made)
        return made

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
    """Descriptions of the layers of an engine, as detailed as the verbosity of its build.

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
    """Settings of the serialization of an engine."""

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
