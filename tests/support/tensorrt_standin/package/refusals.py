"""Networks that the builder refuses."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

from .bindings import IS_RTX

_PRECISIONS = ("FP16", "BF16", "INT8", "FP8", "INT4", "FP4")
_CONSTRAINTS = ("OBEY_PRECISION_CONSTRAINTS", "PREFER_PRECISION_CONSTRAINTS")


def refusals(network: Any, config: Any) -> Iterator[str]:
    """Return all reasons why a network cannot be built."""
    if not network._outputs:
        yield "Network must have at least one output."
    if network._is_strong:
        yield from _of_strong_typing(config)
    else:
        yield from _of_weak_typing(network, config)
    yield from _of_profiles(network, config)
    yield from _of_device(config)


def _of_strong_typing(config: Any) -> Iterator[str]:
    for flag in (*_PRECISIONS, *_CONSTRAINTS):
        if config._has(flag):
            yield f"BuilderFlag::k{flag} cannot be used with a strongly typed network."


def _of_weak_typing(network: Any, config: Any) -> Iterator[str]:
    if config._has("WEIGHT_STREAMING"):
        yield "BuilderFlag::kWEIGHT_STREAMING requires a strongly typed network."
    if config._has("INT8") and config._has("FP8"):
        yield "BuilderFlag::kINT8 and BuilderFlag::kFP8 cannot be used together."
    if all(map(config._has, _CONSTRAINTS)):
        yield "kOBEY_PRECISION_CONSTRAINTS and kPREFER_PRECISION_CONSTRAINTS are exclusive."
    if config._has("INT8") and not _has_ranges(network, config):
        yield (
            "Calibration failure occurred with no scaling factors detected. This could be due to no int8 calibrator or "
            "insufficient custom scales for network layers."
        )


def _has_ranges(network: Any, config: Any) -> bool:
    if config._calibrator is not None or any(layer._type == "QUANTIZE" for layer in network._layers):
        return True
    tensors = [tensor for layer in network._layers for tensor in layer._outputs if tensor._type in ("FLOAT", "HALF")]
    return bool(tensors) and all(tensor._range is not None for tensor in (*tensors, *network._inputs))


def _of_profiles(network: Any, config: Any) -> Iterator[str]:
    needing = [tensor for tensor in network._inputs if -1 in tensor._dims or tensor._is_shape]
    if needing and not config._profiles:
        yield "Network has dynamic or shape inputs, but no optimization profile has been defined."
    for at, profile in enumerate(config._profiles):
        for tensor in network._inputs:
            if tensor._is_shape:
                if tensor._name not in profile._shape_values:
                    yield f"Shape input tensor {tensor._name} is missing values in profile {at}."
            else:
                yield from _of_shapes(tensor, profile._shapes.get(tensor._name), at)


def _of_shapes(tensor: Any, shapes: Any, at: int) -> Iterator[str]:
    if shapes is None:
        if -1 in tensor._dims:
            yield f"Dynamic input tensor {tensor._name} is missing dimensions in profile {at}."
        return
    low, _, high = shapes
    if len(low) != len(tensor._dims):
        yield (
            f"Dynamic-shaped input tensor {tensor._name} has {len(tensor._dims)} dimensions but profile {at} has "
            f"{len(low)} dimensions."
        )
        return
    for axis, size in enumerate(tensor._dims):
        if size != -1 and (low[axis], high[axis]) != (size, size):
            yield (
                f"Dimension mismatch for tensor {tensor._name} and profile {at}. At dimension axis {axis}, profile has "
                f"min={low[axis]}, max={high[axis]} but tensor has {size}."
            )


def _of_device(config: Any) -> Iterator[str]:
    if config.default_device_type.name == "DLA" and not config._has("GPU_FALLBACK"):
        yield "Default device type is DLA, not all layers run there, and GPU fallback is not enabled."
    if IS_RTX and os.environ.get("STANDIN_NO_GPU") == "1":
        for flag in ("REFIT", "REFIT_IDENTICAL", "STRIP_PLAN"):
            if config._has(flag):
                yield f"cudaError 35: BuilderFlag::k{flag} needs a GPU."
    if any(target.name == "NONE" for target in config._targets):
        yield "Unexpected exception bad optional access: a compute capability is not set."
    if IS_RTX and config._has("VERSION_COMPATIBLE") and not config._has("EXCLUDE_LEAN_RUNTIME"):
        yield "Unable to load library: libnvinfer_lean.so.1: cannot open shared object file."
