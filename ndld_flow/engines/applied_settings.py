"""The contents of a builder's configuration, read back to verify what was set."""

from __future__ import annotations

from collections.abc import Mapping

from pydantic import JsonValue

from ndld_flow.runtimes.tensorrt.library import Bindings, Bound

_PLAIN = (
    "avg_timing_iterations",
    "build_route",
    "builder_optimization_level",
    "engine_capability",
    "hardware_compatibility_level",
    "l2_limit_for_tiling",
    "max_aux_streams",
    "max_num_tactics",
    "num_optimization_profiles",
    "plugins_to_serialize",
    "profiling_verbosity",
    "remote_auto_tuning_config",
    "runtime_platform",
    "tiling_optimization_level",
)
_UNTOLD_BY_RTX = ("hardware_compatibility_level",)
"""Attributes whose reading makes TensorRT-RTX warn."""


def read_flags(trt: Bindings, config: Bound) -> tuple[str, ...]:
    """Return the builder flags that are on, in TensorRT's names."""
    return tuple(name for name, flag in trt.BuilderFlag.__members__.items() if config.get_flag(flag))


def read_network_flags(trt: Bindings, network: Bound) -> tuple[str, ...]:
    """Return the flags of the network. EXPLICIT_BATCH has no effect since TensorRT 10."""
    flags = trt.NetworkDefinitionCreationFlag.__members__.items()
    return tuple(name for name, flag in flags if name != "EXPLICIT_BATCH" and network.get_flag(flag))


def read_applied(trt: Bindings, builder: Bound, config: Bound, parser: Bound) -> dict[str, JsonValue]:
    """Return all other settings, in TensorRT's names; those that this release lacks are left out."""
    untold = _UNTOLD_BY_RTX if hasattr(trt, "ComputeCapability") else ()
    applied: dict[str, JsonValue] = {
        name: _json_value(getattr(config, name)) for name in _PLAIN if name not in untold and hasattr(config, name)
    }
    pools = trt.MemoryPoolType.__members__.items()
    applied["memory_pool_limits"] = {name: config.get_memory_pool_limit(pool) for name, pool in _told_pools(pools)}
    sources = config.get_tactic_sources()
    applied["tactic_sources"] = [
        name for name, source in trt.TacticSource.__members__.items() if sources >> int(source) & 1
    ]
    applied["preview_features"] = {
        name: config.get_preview_feature(feature) for name, feature in trt.PreviewFeature.__members__.items()
    }
    applied["parser_flags"] = [name for name, flag in trt.OnnxParserFlag.__members__.items() if parser.get_flag(flag)]
    if config.default_device_type == trt.DeviceType.DLA:
        applied["default_device_type"], applied["DLA_core"] = "DLA", config.DLA_core
    applied["max_threads"] = builder.max_threads
    return {**applied, **_read_quantization_flags(trt, config), **_read_capabilities(config)}


def _told_pools(pools: Bound) -> list[tuple[str, Bound]]:
    return [(name, pool) for name, pool in pools if not name.startswith("DLA_")]


def _read_quantization_flags(trt: Bindings, config: Bound) -> Mapping[str, JsonValue]:
    if not hasattr(config, "get_quantization_flag"):
        return {}
    members = trt.QuantizationFlag.__members__.items()
    return {"quantization_flags": [name for name, flag in members if config.get_quantization_flag(flag)]}


def _read_capabilities(config: Bound) -> Mapping[str, JsonValue]:
    if not hasattr(config, "get_compute_capability"):
        return {}
    count = config.num_compute_capabilities
    return {"compute_capabilities": [config.get_compute_capability(index).name for index in range(count)]}


def _json_value(value: Bound) -> JsonValue:
    if isinstance(value, str | int | float | None):
        return value
    if isinstance(value, list | tuple):
        return [_json_value(each) for each in value]
    return str(getattr(value, "name", value))
