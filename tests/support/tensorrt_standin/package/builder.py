"""The builder."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from .bindings import CLASSES, IS_RTX, RELEASE, Bound, Setting, expect
from .compiling import CompiledLayer, Compiler, told_log
from .config import IBuilderConfig, IOptimizationProfile, dla_cores
from .logs import open_log
from .network import INetworkDefinition
from .plan import digests_of, packed, write_plan
from .plugins import IPluginRegistry, operators_in
from .refusals import refusals
from .timing import key_of, measured, time_of
from .values import BITS, IHostMemory

_REFIT_FLAGS = ("REFIT", "REFIT_IDENTICAL", "REFIT_INDIVIDUAL")


class Refused(Exception):
    """The engine was not built; the log has the reason."""


class Builder(Bound):
    """Builds engines. With STANDIN_NO_DRIVER=1 there is no CUDA: TensorRT's builder then cannot be made at all.

    Each step of a build takes STANDIN_STEP_S longer. Builds that share the file STANDIN_CHURN are counted in it, and do
    not all time the same: those after the first come to other tactics for a part of the layers.
    """

    error_recorder = Setting(object)
    gpu_allocator = Setting(object)
    max_threads = Setting(int, 1)

    def __init__(self, logger: Any) -> None:
        self._log = open_log(logger)
        if os.environ.get("STANDIN_NO_DRIVER") == "1" and not IS_RTX:
            self._log.say("ERROR", "[checkMacros.cpp::catchCudaError::212] CUDA initialization failure with error: 35")
            raise TypeError("pybind11::init(): factory function returned nullptr")
        self._logger = logger
        self._registry = IPluginRegistry._make()

    @property
    def logger(self) -> Any:
        return self._logger

    @property
    def num_DLA_cores(self) -> int:
        return dla_cores()

    @property
    def max_DLA_batch_size(self) -> int:
        return 0

    @property
    def platform_has_tf32(self) -> bool:
        return True

    @property
    def platform_has_fast_fp16(self) -> bool:
        return True

    @property
    def platform_has_fast_int8(self) -> bool:
        return True

    def reset(self) -> None:
        """Forget everything."""

    def get_plugin_registry(self) -> Any:
        return self._registry

    def create_network(self, flags: int = 0) -> Any:
        return INetworkDefinition._make(self, expect(int, flags, "flags"), self._log)

    def create_builder_config(self) -> Any:
        return IBuilderConfig._make(self._log)

    def create_optimization_profile(self) -> Any:
        return IOptimizationProfile._make(self._log)

    def is_network_supported(self, network: Any, config: Any) -> bool:
        return not list(refusals(network, config))

    def build_serialized_network(self, network: Any, config: Any) -> Any:
        expect("INetworkDefinition", network, "network")
        expect("IBuilderConfig", config, "config")
        try:
            return IHostMemory(Build(network, config, self._log).run())
        except Refused as refused:
            code, _, what = str(refused).rpartition("|")
            self._log.error(f"IBuilder::buildSerializedNetwork: {what}", int(code or 4))
            return None

    def build_serialized_network_to_stream(self, network: Any, config: Any, writer: Any) -> bool:
        built = self.build_serialized_network(network, config)
        return built is not None and writer.write(bytes(built)) == built.nbytes

    def build_engine_with_config(self, network: Any, config: Any) -> Any:
        built = self.build_serialized_network(network, config)
        return None if built is None else CLASSES["Runtime"](self._logger).deserialize_cuda_engine(built)


class Build:
    """One build."""

    def __init__(self, network: Any, config: Any, log: Any) -> None:
        self.network, self.config, self.log = network, config, log
        self.started = time.monotonic()
        self.number = _count_builds()

    def run(self) -> bytes:
        for refusal in refusals(self.network, self.config):
            raise Refused(refusal)
        self._phase("Building engine", None, 3)
        self._calibrate()
        self._step("Building engine", 0)
        compiler = Compiler(self.network, self.config)
        layers = compiler.compile()
        if compiler.refused:
            raise Refused(compiler.refused)
        self.log.say(
            "INFO",
            f"Detected {len(self.network._inputs)} inputs and {len(self.network._outputs)} output network tensors.",
        )
        self._time(layers)
        self._step("Building engine", 1)
        engine = self._engine(layers)
        self._tell(engine)
        self._step("Building engine", 2)
        self._finish("Building engine")
        return write_plan(engine, self.network._model.weights)

    def _calibrate(self) -> None:
        calibrator = self.config._calibrator
        if not self.config._has("INT8") or calibrator is None:
            return
        calibrator.get_batch_size()
        cache = calibrator.read_calibration_cache()
        algorithm = calibrator.get_algorithm().name.title().replace("_", "").replace("Minmax", "MinMax")
        if cache is not None and bytes(cache).partition(b"\n")[0].endswith(f"-{algorithm}".encode()):
            self.log.say("INFO", "Read calibration cache.")
            return
        names = [tensor._name for tensor in self.network._inputs]
        batches = 0
        while calibrator.get_batch(names):
            batches += 1
        if not batches:
            raise Refused("Calibration failure occurred with no scaling factors detected.")
        lines = [f"{name}: 3c010a14" for name in names]
        calibrator.write_calibration_cache("\n".join([f"TRT-{_digits()}-EntropyCalibration2", *lines, ""]).encode())

    def _time(self, layers: list[CompiledLayer]) -> None:
        cache = None if self.config._has("DISABLE_TIMING_CACHE") else self.config._cache
        known = {} if cache is None or IS_RTX else cache._entries
        scope = "Global" if cache is not None else "Local"
        will = "will" if cache is not None else "will not"
        self.log.say(
            "INFO",
            f"{scope} timing cache in use. Profiling results in this builder pass {will} be stored.",
        )
        self._phase("Timing graph nodes", "Building engine", len(layers))
        for at, layer in enumerate(layers):
            key = key_of(RELEASE["release"], layer.kind, layer.type, [tensor.dims for tensor in layer.inputs])
            if key not in known:
                if self.config._has("ERROR_ON_TIMING_CACHE_MISS") and not IS_RTX:
                    raise Refused(f"10|Timing cache miss for {layer.name}, and kERROR_ON_TIMING_CACHE_MISS is set.")
                self.log.say("VERBOSE", f"{layer.name} ({layer.kind}[{layer.tactic}]) profiling completed")
                known[key] = measured(key, self.number)
            if known[key] != time_of(key):
                layer.tactic += "_splitk"
            self._step("Timing graph nodes", at)
        self._finish("Timing graph nodes")

    def _engine(self, layers: list[CompiledLayer]) -> dict[str, Any]:
        refit = [flag for flag in _REFIT_FLAGS if self.config._has(flag)]
        model = self.network._model
        return {
            "backend": RELEASE["backend"],
            "release": RELEASE["release"],
            "name": self.network._name,
            "flags": [name for name in CLASSES["BuilderFlag"].__members__ if self.config._has(name)],
            "refit": refit,
            "stripped": self.config._has("STRIP_PLAN"),
            "verbosity": self.config.profiling_verbosity.name,
            "hardware_compatibility": self.config.hardware_compatibility_level.name,
            "capability": self.config.engine_capability.name,
            "on_dla": self.config.default_device_type.name == "DLA",
            "targets": [target.name for target in self.config._targets],
            "aux_streams": max(0, self.config.max_aux_streams),
            "tactic_sources": self.config._sources,
            "tensors": [*self._io("INPUT"), *self._io("OUTPUT")],
            "profiles": self._profiles(),
            "layers": [layer.as_dict() for layer in layers],
            "weights": digests_of(model.weights),
            "ranges": self._ranges(),
            "marked": sorted(self.network._refittable),
            "plugins": list(self.config.plugins_to_serialize),
            "operators": sorted(self._plugin_operators()),
            "kernels": [plugin.compile() for plugin in self._python_plugins() if plugin.compiled],
            "debug": {"marked": [tensor._name for tensor in self.network._debug], "unfused": self.network._unfused},
            "model": packed(model.graph),
            "memory": self._memory(layers),
        }

    def _io(self, mode: str) -> list[dict[str, Any]]:
        held = self.network._inputs if mode == "INPUT" else self.network._outputs
        return [
            {
                "name": tensor._name,
                "mode": mode,
                "dims": list(tensor._dims),
                "type": tensor._type,
                "is_shape": tensor._is_shape,
                "location": tensor.location.name if hasattr(tensor, "location") else "DEVICE",
                "formats": tensor.allowed_formats,
            }
            for tensor in held
        ]

    def _ranges(self) -> dict[str, float]:
        """Tensor -> the largest magnitude that INT8 represents there."""
        tensors = [tensor for layer in self.network._layers for tensor in layer._outputs]
        return {tensor._name: max(map(abs, tensor._range)) for tensor in tensors if tensor._range is not None}

    def _python_plugins(self) -> list[Any]:
        return [layer._plugin for layer in self.network._layers if layer._plugin is not None]

    def _plugin_operators(self) -> set[str]:
        """The operators of plugins that the engine does not hold itself, those in Python as `namespace::name`."""
        plugins = [layer for layer in self.network._layers if layer._type == "PLUGIN_V3"]
        opened = [layer for layer in plugins if layer._plugin is None or not layer._plugin.compiled]
        used = {layer._op if layer._plugin is None else layer._plugin.plugin_id for layer in opened}
        return used.difference(*map(operators_in, self.config.plugins_to_serialize))

    def _profiles(self) -> list[dict[str, Any]]:
        """Without a profile there is one, of the network's fixed shapes."""
        fixed = {tensor._name: [list(tensor._dims)] * 3 for tensor in self.network._inputs}
        given = [
            {"shapes": {**fixed, **profile._shapes}, "values": profile._shape_values}
            for profile in self.config._profiles
        ]
        return given or [{"shapes": fixed, "values": {}}]

    def _memory(self, layers: list[CompiledLayer]) -> dict[str, int]:
        outputs = [_bytes_of(tensor.dims, tensor.type) for layer in layers for tensor in layer.outputs]
        weights = sum(map(len, self.network._model.weights.values()))
        return {"activation": max(outputs, default=0) * 2, "weights": weights, "scratch": 512 * len(layers)}

    def _tell(self, engine: dict[str, Any]) -> None:
        memory = engine["memory"]
        self.log.say("INFO", "Total Host Persistent Memory: 80 bytes")
        self.log.say("INFO", f"Max Scratch Memory: {memory['scratch']} bytes")
        self.log.say("INFO", f"Total Activation Memory: {memory['activation']} bytes")
        self.log.say("INFO", f"Total Weights Memory: {memory['weights']} bytes")
        self.log.say("INFO", f"Engine generation completed in {time.monotonic() - self.started:.5f} seconds.")
        if engine["verbosity"] == "DETAILED":
            self.log.say("VERBOSE", told_log(engine))
        if IS_RTX:
            self.log.say("VERBOSE", f"Number of target compute capabilities: {len(engine['targets'])}")
        self.log.say(
            "INFO",
            "[MemUsageStats] Peak memory usage of TRT CPU/GPU memory allocators: "
            f"CPU {memory['weights'] >> 20} MiB, GPU {memory['activation'] >> 20} MiB",
        )

    def _phase(self, name: str, parent: str | None, steps: int) -> None:
        for monitor in self._monitors():
            monitor.phase_start(name, parent, steps)

    def _step(self, name: str, at: int) -> None:
        for monitor in self._monitors():
            if not monitor.step_complete(name, at):
                raise Refused("7|Build canceled by user")
        time.sleep(float(os.environ.get("STANDIN_STEP_S", "0")))

    def _finish(self, name: str) -> None:
        for monitor in self._monitors():
            monitor.phase_finish(name)

    def _monitors(self) -> Iterator[Any]:
        if self.config._monitor is not None:
            yield self.config._monitor


def _count_builds() -> int:
    """Number of this build among those that have STANDIN_CHURN; 1 without it."""
    file = os.environ.get("STANDIN_CHURN")
    if not file:
        return 1
    with Path(file).open("ab") as builds:
        builds.write(b".")
    return Path(file).stat().st_size


def _bytes_of(dims: list[int], kind: str) -> int:
    count = 1
    for size in dims:
        count *= 64 if size < 0 else size
    return count * BITS.get(kind, 8) // 8


def _digits() -> str:
    return "".join(RELEASE["release"].split(".")[:3])
