"""Precision constraints and INT8 ranges of weakly typed networks."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from ndld_flow.base.errors import RequestError
from ndld_flow.base.text import short_name
from ndld_flow.engines.configuration import DATA_TYPES
from ndld_flow.engines.network import ParsedNetwork
from ndld_flow.engines.optimization_profiles import make_profile
from ndld_flow.profiles.read.engine_layers import nodes_of_metadata
from ndld_flow.records.build import BuiltProfile, Constraint
from ndld_flow.runtimes.tensorrt.library import Bindings, Bound

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
