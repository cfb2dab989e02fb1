"""The builder's configuration and its optimization profiles."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from .bindings import IS_RTX, Bound, Setting, expect, has_bit, member, require_initialized
from .logs import Log
from .timing import ITimingCache, is_usable, read_cache
from .values import Dims

_MEMORY = {
    "DLA_MANAGED_SRAM": 0,
    "DLA_LOCAL_DRAM": 1 << 30,
    "DLA_GLOBAL_DRAM": 1 << 29,
    "TACTIC_SHARED_MEMORY": 1 << 30,
}
"""Limits that are not all of the device's memory."""
_ROUTES = "default,fast"


def dla_cores() -> int:
    """The number of DLA cores here, by STANDIN_DLA_CORES."""
    return int(os.environ.get("STANDIN_DLA_CORES", "0"))


class IOptimizationProfile(Bound):
    """Shapes of inputs: smallest, best, largest."""

    profile_stream = Setting(int, 0)

    def _begin(self, *arguments: Any) -> None:
        (self._log,) = arguments
        self._shapes: dict[str, list[tuple[int, ...]]] = {}
        self._shape_values: dict[str, list[tuple[int, ...]]] = {}
        self._memory_target = 1.0

    @property
    def extra_memory_target(self) -> float:
        return float(self._memory_target)

    @extra_memory_target.setter
    def extra_memory_target(self, value: float) -> None:
        if not 0 <= expect(float, value, "extra_memory_target") <= 1:
            self._log.error("IOptimizationProfile::setExtraMemoryTarget: condition: target >= 0.F && target <= 1.F.", 3)
            return
        self._memory_target = value

    def set_shape(self, input: str, min: Any, opt: Any, max: Any) -> None:
        self._shapes[expect(str, input, "input")] = [tuple(Dims(shape)) for shape in (min, opt, max)]

    def get_shape(self, input: str) -> list[Any]:
        if input not in self._shapes:
            self._log.error(f"IOptimizationProfile::getDimensions: Cannot get dimensions for input: {input}.")
        return [Dims(shape) for shape in self._shapes.get(input, [])]

    def set_shape_input(self, input: str, min: Sequence[int], opt: Sequence[int], max: Sequence[int]) -> None:
        self._shape_values[expect(str, input, "input")] = [tuple(values) for values in (min, opt, max)]

    def get_shape_input(self, input: str) -> list[list[int]]:
        return [list(values) for values in self._shape_values.get(input, [])]

    def __bool__(self) -> bool:
        wrong = [
            name for name, shapes in (*self._shapes.items(), *self._shape_values.items()) if not _in_order(*shapes)
        ]
        for name in wrong:
            self._log.error(
                f"IOptimizationProfile::isValid: Invalid optimization profiles for input tensors {name}, please ensure "
                "that the optimization profiles satisfy MIN<=OPT<=MAX."
            )
        return not wrong


class IBuilderConfig(Bound):
    """Holds what is set, and gives it back."""

    avg_timing_iterations = Setting(int, 1)
    max_num_tactics = Setting(int, -1)
    builder_optimization_level = Setting(int, 3).within(0, 5)
    max_aux_streams = Setting(int, -1).within(-1, None)
    l2_limit_for_tiling = Setting(int, 0)
    profile_stream = Setting(int, 0)
    profiling_verbosity = Setting("ProfilingVerbosity", "LAYER_NAMES_ONLY")
    tiling_optimization_level = Setting("TilingOptimizationLevel", "NONE")
    hardware_compatibility_level = Setting("HardwareCompatibilityLevel", "NONE")
    engine_capability = Setting("EngineCapability", "STANDARD")
    default_device_type = Setting("DeviceType", "GPU")
    runtime_platform = Setting("RuntimePlatform", "SAME_AS_BUILD")
    plugins_to_serialize = Setting(list, [])
    remote_auto_tuning_config = Setting(str, "")
    algorithm_selector = Setting(object)

    def _begin(self, *arguments: Any) -> None:
        log: Log = arguments[0]
        self._log = log
        self._flags = 1 << int(member("BuilderFlag", "TF32"))
        self._profiles: list[Any] = []
        self._cache: Any = None
        self._sources = sum(
            1 << int(found)
            for name in ("EDGE_MASK_CONVOLUTIONS", "JIT_CONVOLUTIONS")
            if (found := member("TacticSource", name)) is not None
        )
        self._pools: dict[str, int] = {}
        self._previews: dict[str, bool] = {"RUNTIME_ACTIVATION_RESIZE_10_10": True}
        self._quantization = 0
        self._targets: list[Any] = []
        self._devices: dict[str, Any] = {}
        self._calibrator: Any = None
        self._calibration_profile: Any = None
        self._monitor: Any = None
        self._route = ""
        self._core = -1

    def reset(self) -> None:
        kept = self._log
        self.__dict__.clear()
        self._begin(kept)

    @property
    def flags(self) -> int:
        return int(self._flags)

    @flags.setter
    def flags(self, value: int) -> None:
        self._flags = expect(int, value, "flags")

    def set_flag(self, flag: Any) -> None:
        expect("BuilderFlag", flag, "flag")
        if flag.name == "EXCLUDE_LEAN_RUNTIME" and not self._has("VERSION_COMPATIBLE"):
            self._log.error(
                "IBuilderConfig::setFlag: kEXCLUDE_LEAN_RUNTIME can only be set if kVERSION_COMPATIBLE is set.", 3
            )
            return
        self._flags |= 1 << int(flag)

    def clear_flag(self, flag: Any) -> None:
        self._flags &= ~(1 << int(expect("BuilderFlag", flag, "flag")))

    def get_flag(self, flag: Any) -> bool:
        return has_bit(self._flags, expect("BuilderFlag", flag, "flag"))

    def _has(self, flag: str) -> bool:
        return has_bit(self._flags, member("BuilderFlag", flag))

    @property
    def num_optimization_profiles(self) -> int:
        return len(self._profiles)

    def add_optimization_profile(self, profile: Any) -> int:
        if not expect("IOptimizationProfile", profile, "profile"):
            self._log.error("IBuilderConfig::addOptimizationProfile: condition: profile->isValid().", 3)
            return -1
        self._profiles.append(profile)
        return len(self._profiles) - 1

    def create_timing_cache(self, serialized_timing_cache: Any) -> Any:
        return read_cache(bytes(memoryview(serialized_timing_cache)))

    def set_timing_cache(self, cache: Any, ignore_mismatch: bool) -> bool:
        expect("ITimingCache", cache, "cache")
        if not is_usable(cache) and not expect(bool, ignore_mismatch, "ignore_mismatch"):
            self._log.error("IBuilderConfig::setTimingCache: the timing cache is of another release or device", 3)
            return False
        self._cache = cache
        return True

    def get_timing_cache(self) -> ITimingCache | None:
        found: ITimingCache | None = self._cache
        return found

    def set_tactic_sources(self, tactic_sources: int) -> bool:
        self._sources = expect(int, tactic_sources, "tactic_sources")
        return True

    def get_tactic_sources(self) -> int:
        return int(self._sources)

    def set_memory_pool_limit(self, pool: Any, pool_size: int) -> None:
        self._pools[expect("MemoryPoolType", pool, "pool").name] = expect(int, pool_size, "pool_size")

    def get_memory_pool_limit(self, pool: Any) -> int:
        expect("MemoryPoolType", pool, "pool")
        return self._pools.get(pool.name, _MEMORY.get(pool.name, 1 << 36))

    def set_preview_feature(self, feature: Any, enable: bool) -> None:
        self._previews[expect("PreviewFeature", feature, "feature").name] = expect(bool, enable, "enable")

    def get_preview_feature(self, feature: Any) -> bool:
        return self._previews.get(expect("PreviewFeature", feature, "feature").name, False)

    @property
    def progress_monitor(self) -> Any:
        return self._monitor

    @progress_monitor.setter
    def progress_monitor(self, value: Any) -> None:
        self._monitor = None if value is None else require_initialized(value, "IProgressMonitor")

    @property
    def DLA_core(self) -> int:
        return int(self._core)

    @DLA_core.setter
    def DLA_core(self, value: int) -> None:
        if 0 <= expect(int, value, "DLA_core") < dla_cores():
            self._core = value
        else:
            self._log.error(f"IBuilderConfig::setDLACore: {value} is none of {dla_cores()} DLA cores", 3)

    def can_run_on_DLA(self, layer: Any) -> bool:
        expect("ILayer", layer, "layer")
        return False

    def set_device_type(self, layer: Any, device_type: Any) -> None:
        self._devices[layer._name] = expect("DeviceType", device_type, "device_type")

    def get_device_type(self, layer: Any) -> Any:
        return self._devices.get(layer._name, self.default_device_type)

    def is_device_type_set(self, layer: Any) -> bool:
        return layer._name in self._devices

    def reset_device_type(self, layer: Any) -> None:
        self._devices.pop(layer._name, None)

    @property
    def build_route(self) -> str:
        return str(self._route)

    @build_route.setter
    def build_route(self, value: str) -> None:
        if expect(str, value, "build_route") not in ("", *self.all_build_routes.split(",")):
            self._log.error(f"IBuilderConfig::setBuildRoute: unknown build route {value}", 3)
            return
        self._route = value

    @property
    def all_build_routes(self) -> str:
        return "" if IS_RTX else _ROUTES

    # Where networks can be weakly typed
    @property
    def int8_calibrator(self) -> Any:
        return self._calibrator

    @int8_calibrator.setter
    def int8_calibrator(self, value: Any) -> None:
        self._calibrator = None if value is None else require_initialized(value, "IInt8Calibrator")

    def set_calibration_profile(self, profile: Any) -> bool:
        self._calibration_profile = expect("IOptimizationProfile", profile, "profile")
        return True

    def get_calibration_profile(self) -> Any:
        return self._calibration_profile

    @property
    def quantization_flags(self) -> int:
        return int(self._quantization)

    @quantization_flags.setter
    def quantization_flags(self, value: int) -> None:
        self._quantization = expect(int, value, "quantization_flags")

    def set_quantization_flag(self, flag: Any) -> None:
        self._quantization |= 1 << int(expect("QuantizationFlag", flag, "flag"))

    def clear_quantization_flag(self, flag: Any) -> None:
        self._quantization &= ~(1 << int(expect("QuantizationFlag", flag, "flag")))

    def get_quantization_flag(self, flag: Any) -> bool:
        return has_bit(self._quantization, expect("QuantizationFlag", flag, "flag"))

    # In TensorRT-RTX
    @property
    def num_compute_capabilities(self) -> int:
        return len(self._targets)

    @num_compute_capabilities.setter
    def num_compute_capabilities(self, value: int) -> None:
        wanted = expect(int, value, "num_compute_capabilities")
        self._targets = (self._targets + [member("ComputeCapability", "NONE")] * wanted)[:wanted]

    def set_compute_capability(self, compute_capability: Any, index: int) -> bool:
        expect("ComputeCapability", compute_capability, "compute_capability")
        if not 0 <= index < len(self._targets):
            self._log.error("IBuilderConfig::setComputeCapability: Index is not in a valid range.", 3)
            return False
        self._targets[index] = compute_capability
        return True

    def get_compute_capability(self, index: int) -> Any:
        return self._targets[index] if 0 <= index < len(self._targets) else member("ComputeCapability", "NONE")


def _in_order(low: Sequence[int], best: Sequence[int], high: Sequence[int]) -> bool:
    if not len(low) == len(best) == len(high):
        return False
    return all(a <= b <= c for a, b, c in zip(low, best, high, strict=True))
