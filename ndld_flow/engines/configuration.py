"""The settings of an engine as TensorRT's IBuilderConfig, and those of weakly typed layers.

What was set is read back afterwards, and recorded.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from pydantic import JsonValue

from ndld_flow.base.errors import RequestError, UnknownNameError
from ndld_flow.base.text import short_name
from ndld_flow.engines.build_settings import BuildSettings, TensorFormatSetting, TypingPlan
from ndld_flow.engines.foresight import FLAG_SETTINGS, WEIGHTS_FLAGS, as_written
from ndld_flow.engines.network import ParsedNetwork
from ndld_flow.engines.optimization_profiles import make_profile
from ndld_flow.profiles.read.engine_layers import nodes_of_metadata
from ndld_flow.records.build import BuiltProfile, Constraint
from ndld_flow.runtimes.tensorrt.library import Bindings, Bound

VERBOSITIES = {"none": "NONE", "layer_names": "LAYER_NAMES_ONLY", "detailed": "DETAILED"}
DATA_TYPES = {
    "fp32": "FLOAT",
    "fp16": "HALF",
    "bf16": "BF16",
    "fp8": "FP8",
    "int64": "INT64",
    "int32": "INT32",
    "int8": "INT8",
    "int4": "INT4",
    "uint8": "UINT8",
    "bool": "BOOL",
}
"""Names of element types in recipes -> members of TensorRT's DataType."""


def configure(trt: Bindings, parsed: ParsedNetwork, settings: BuildSettings, plan: TypingPlan, monitor: Bound) -> Bound:
    """Return an IBuilderConfig with everything but optimization profiles, calibration and timing cache.

    The settings are those that this release has: `unsupported_settings` has checked them.
    """
    config, advanced = parsed.builder.create_builder_config(), settings.advanced
    config.progress_monitor = monitor
    _set_flags(trt, config, settings, plan)
    _set_values(trt, config, settings)
    if advanced.dla_core is not None:
        config.default_device_type = trt.DeviceType.DLA
        config.DLA_core = advanced.dla_core
    for name, is_on in advanced.preview_features.items():
        config.set_preview_feature(getattr(trt.PreviewFeature, name), is_on)
    for name in advanced.quantization_flags:
        config.set_quantization_flag(getattr(trt.QuantizationFlag, name))
    if settings.version_compatible and settings.plugins:
        config.plugins_to_serialize = [str(plugin.absolute()) for plugin in settings.plugins]
    if advanced.max_threads is not None:
        parsed.builder.max_threads = advanced.max_threads
    _set_tensor_formats(trt, parsed, advanced.io_formats)
    for name in settings.refittable_weights:
        if not parsed.network.mark_weights_refittable(name):
            raise RequestError(
                f'refittable_weights: "{short_name(name)}" names no weights of the network; they have the names of the '
                "model's initializers"
            )
    return config


def _set_flags(trt: Bindings, config: Bound, settings: BuildSettings, plan: TypingPlan) -> None:
    wanted = [*settings.advanced.flags, *WEIGHTS_FLAGS[settings.weights]]
    wanted += [flag for flag, setting in FLAG_SETTINGS.items() if as_written(settings, setting)]
    if plan.layer_precisions:
        wanted.append(f"{settings.typing.upper()}_PRECISION_CONSTRAINTS")
    if not settings.timing_cache and settings.timing_cache_file is None:
        wanted.append("DISABLE_TIMING_CACHE")
    for name in wanted:
        config.set_flag(getattr(trt.BuilderFlag, name))
    if not settings.tf32:  # it is on by default
        config.clear_flag(trt.BuilderFlag.TF32)


def _set_values(trt: Bindings, config: Bound, settings: BuildSettings) -> None:
    """Set values, which keep TensorRT's defaults unless the recipe gives them."""
    advanced, hardware = settings.advanced, settings.hardware_compatibility
    given = {
        "profiling_verbosity": getattr(trt.ProfilingVerbosity, VERBOSITIES[settings.verbosity]),
        "builder_optimization_level": settings.optimization_level,
        "max_aux_streams": settings.max_aux_streams,
        "hardware_compatibility_level": _member(
            trt, "HardwareCompatibilityLevel", None if hardware == "none" else hardware
        ),
        "tiling_optimization_level": _member(trt, "TilingOptimizationLevel", advanced.tiling),
        "l2_limit_for_tiling": advanced.l2_limit,
        "engine_capability": _member(trt, "EngineCapability", advanced.engine_capability),
        "runtime_platform": _member(trt, "RuntimePlatform", advanced.runtime_platform),
        "avg_timing_iterations": advanced.timing_iterations,
        "max_num_tactics": advanced.max_tactics,
        "build_route": advanced.build_route,
        "remote_auto_tuning_config": advanced.remote_auto_tuning,
    }
    for name, value in given.items():
        if value is not None:
            setattr(config, name, value)
    for pool, size in {**advanced.memory_pools, "workspace": settings.workspace}.items():
        if size is not None:
            config.set_memory_pool_limit(_member(trt, "MemoryPoolType", pool), size)
    if settings.tactic_sources is not None:
        config.set_tactic_sources(sum(1 << int(_member(trt, "TacticSource", name)) for name in settings.tactic_sources))
    if settings.compute_capabilities:
        config.num_compute_capabilities = len(settings.compute_capabilities)
        for index, capability in enumerate(settings.compute_capabilities):
            sm = getattr(trt.ComputeCapability, f"SM{capability.replace('.', '')}")
            config.set_compute_capability(sm, index)


def _member(trt: Bindings, enum: str, word: str | None) -> Bound:
    return None if word is None else getattr(getattr(trt, enum), word.upper())


def _set_tensor_formats(trt: Bindings, parsed: ParsedNetwork, formats: Mapping[str, TensorFormatSetting]) -> None:
    tensors = {tensor.name: tensor for tensor in (*parsed.inputs(), *parsed.outputs())}
    for name, wanted in formats.items():
        if name not in tensors:
            what = f'advanced.io_formats: "{short_name(name)}" is not an input or output of the model'
            raise UnknownNameError(what, name, tensors)
        if wanted.dtype:
            tensors[name].dtype = getattr(trt.DataType, DATA_TYPES[wanted.dtype])
        if wanted.formats:
            tensors[name].allowed_formats = _format_mask(trt, name, wanted.formats)


def _format_mask(trt: Bindings, name: str, formats: tuple[str, ...]) -> int:
    mask = 0
    for word in formats:
        member = getattr(trt.TensorFormat, word.upper(), None)
        if member is None:
            known = [each.lower() for each in trt.TensorFormat.__members__]
            what = f'advanced.io_formats.{short_name(name)}: "{short_name(word)}" is not a format'
            raise UnknownNameError(what, word, known)
        mask |= 1 << int(member)
    return mask


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
_UNREAD_OF_RTX = ("hardware_compatibility_level",)
"""Attributes that make TensorRT-RTX print a warning when they are read."""


def read_flags(trt: Bindings, config: Bound) -> tuple[str, ...]:
    """Return the builder flags that are on, by TensorRT's names."""
    return tuple(name for name, flag in trt.BuilderFlag.__members__.items() if config.get_flag(flag))


def read_network_flags(trt: Bindings, network: Bound) -> tuple[str, ...]:
    """Return the flags of the network. EXPLICIT_BATCH has no effect since TensorRT 10."""
    flags = trt.NetworkDefinitionCreationFlag.__members__.items()
    return tuple(name for name, flag in flags if name != "EXPLICIT_BATCH" and network.get_flag(flag))


def read_applied(trt: Bindings, builder: Bound, config: Bound, parser: Bound) -> dict[str, JsonValue]:
    """Return all other settings by TensorRT's names, except those that this release lacks."""
    unread = _UNREAD_OF_RTX if hasattr(trt, "ComputeCapability") else ()
    applied: dict[str, JsonValue] = {
        name: _json_value(getattr(config, name)) for name in _PLAIN if name not in unread and hasattr(config, name)
    }
    applied["memory_pool_limits"] = {
        name: config.get_memory_pool_limit(pool)
        for name, pool in trt.MemoryPoolType.__members__.items()
        if not name.startswith("DLA_")
    }
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
    if hasattr(config, "get_quantization_flag"):
        members = trt.QuantizationFlag.__members__.items()
        applied["quantization_flags"] = [name for name, flag in members if config.get_quantization_flag(flag)]
    if hasattr(config, "get_compute_capability"):
        count = config.num_compute_capabilities
        applied["compute_capabilities"] = [config.get_compute_capability(index).name for index in range(count)]
    return applied


def _json_value(value: Bound) -> JsonValue:
    if isinstance(value, str | int | float | None):
        return value
    if isinstance(value, list | tuple):
        return [_json_value(each) for each in value]
    return str(getattr(value, "name", value))


_FLAGS: Mapping[str, str] = {"fp16": "FP16", "bf16": "BF16", "int8": "INT8", "fp8": "FP8", "int4": "INT4"}
"""Precisions that a builder must be allowed to use, as members of BuilderFlag."""
_NO_LAYER = "no layer of the network comes from this node"
"""The node was fused into others or has no effect, so that it has no layer whose precision could be set."""
_FLOATS = ("FLOAT", "HALF", "BF16", "FP8", "FP4")
_INTEGERS = ("INT32", "INT64", "INT8", "INT4", "UINT8", "BOOL")


def allow_precisions(trt: Bindings, config: Bound, precisions: Iterable[str]) -> tuple[str, ...]:
    """Set the flags of the constraints' precisions, without which the constraints have no effect; return a note."""
    needed = dict.fromkeys(filter(None, map(_FLAGS.get, precisions)))
    lacking = [name for name in needed if not config.get_flag(getattr(trt.BuilderFlag, name))]
    for name in lacking:
        config.set_flag(getattr(trt.BuilderFlag, name))
    if not lacking:
        return ()
    words = " and ".join(lacking)
    return (f"{words} allowed, since nodes are constrained to it: the builder may choose it for other layers too",)


def set_layer_precisions(
    trt: Bindings, parsed: ParsedNetwork, constraints: Mapping[str, str]
) -> tuple[Constraint, ...]:
    """Set precision and output types of every layer of a constrained ONNX node, and return the outcome of each
    constraint.

    Constants keep their type, because the layers that use them determine the precision; so do layers that compute
    shapes.
    """
    layers: dict[str, list[Bound]] = defaultdict(list)
    for layer in parsed.layers():
        for node in nodes_of_metadata(layer.metadata or "") or (layer.name,):
            layers[node].append(layer)
    return tuple(
        Constraint(node=node, precision=precision, outcome=_set(trt, layers[node], precision))
        for node, precision in constraints.items()
    )


def _set(trt: Bindings, layers: Sequence[Bound], precision: str) -> str:
    if precision == "none":
        return "no precision constraint"
    if not layers:
        return _NO_LAYER
    wanted = DATA_TYPES[precision]
    count = sum(_set_layer(trt, layer, wanted) for layer in layers)
    if not count:
        return f"ignored: its layers have no output that could be {precision}"
    return f"set on {count} layer{'' if count == 1 else 's'}"


def _set_layer(trt: Bindings, layer: Bound, wanted: str) -> bool:
    """Return True if one of its outputs could have that type."""
    first = layer.get_input(0) if layer.num_inputs else None
    if layer.type == trt.LayerType.CONSTANT or (first is not None and first.is_shape_tensor):
        return False
    outputs = [(index, layer.get_output(index)) for index in range(layer.num_outputs)]
    fitting = [
        index for index, tensor in outputs if _can_become(tensor.dtype.name, wanted) and not tensor.is_shape_tensor
    ]
    if fitting:
        layer.precision = getattr(trt.DataType, wanted)
    for index in fitting:
        layer.set_output_type(index, getattr(trt.DataType, wanted))
    return bool(fitting)


def _can_become(own: str, wanted: str) -> bool:
    """Return True for a float that becomes another float or, quantized, INT8, and an integer that becomes another."""
    if wanted == "INT8":
        return own in (*_FLOATS, "INT8")
    return own in (_INTEGERS if wanted in _INTEGERS else _FLOATS)


_HEADER = re.compile(rb"TRT-\d+-(\w+)\r?\n")
_CALIBRATORS = {b"EntropyCalibration2": "IInt8EntropyCalibrator2", b"MinMaxCalibration": "IInt8MinMaxCalibrator"}
_INPUT_RANGE = 2.0
_LAYER_RANGE = 4.0
"""Placeholder range of trtexec."""


def calibrate_from_cache(
    trt: Bindings, parsed: ParsedNetwork, config: Bound, cache: Path, profile: BuiltProfile
) -> Bound:
    """Use an INT8 calibration cache. The calibrator that is returned must live as long as the configuration.

    Raises RequestError if the file cannot be read, or is not a calibration cache.
    """
    try:
        ranges = cache.read_bytes()
    except OSError as error:
        raise RequestError(f"calibration_cache: {short_name(str(cache))} cannot be read ({error.strerror})") from None
    base = getattr(trt, _calibrator_of(cache, ranges))

    class CachedCalibrator(base):  # type: ignore[misc,valid-type]
        """A calibrator that takes ranges only from the cache."""

        def __init__(self) -> None:
            base.__init__(self)

        def get_batch_size(self) -> int:
            return 1

        def get_batch(self, names: list[str]) -> None:
            return None

        def read_calibration_cache(self) -> bytes:
            return ranges

        def write_calibration_cache(self, cache: bytes) -> None:
            """Keep the file unchanged."""

    calibrator = CachedCalibrator()
    config.int8_calibrator = calibrator
    config.set_calibration_profile(make_profile(parsed.builder, profile))
    return calibrator


def _calibrator_of(cache: Path, ranges: bytes) -> str:
    """Return the calibrator class that wrote the cache: TensorRT does not read a cache of another class."""
    header = _HEADER.match(ranges)
    if header is None or header[1] not in _CALIBRATORS:
        known = " or ".join(f"`TRT-...-{kind.decode()}`" for kind in _CALIBRATORS)
        raise RequestError(
            f"calibration_cache: {short_name(str(cache))} is not an INT8 calibration cache: its first line is not "
            f"{known}"
        )
    return _CALIBRATORS[header[1]]


def make_up_ranges(parsed: ParsedNetwork) -> None:
    """Give every tensor a placeholder range, only for measuring speed: the engine's outputs are wrong."""
    for tensor in parsed.inputs():
        tensor.set_dynamic_range(-_INPUT_RANGE, _INPUT_RANGE)
    for layer in parsed.layers():
        for index in range(layer.num_outputs):
            layer.get_output(index).set_dynamic_range(-_LAYER_RANGE, _LAYER_RANGE)
