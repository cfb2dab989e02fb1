"""Collect the memory footprint of a model: weights, and live activations at each layer."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate

from ndld_flow.base.dtype_names import bits_of_dtype, dtype_of_ort_element, dtype_of_tensorrt
from ndld_flow.records.profile import Layer, Profile, TensorInfo

_SHOWN = 10
_CURVE_POINTS = 240


@dataclass(frozen=True)
class BigTensor:
    """One of the largest activations."""

    tensor: TensorInfo
    size_bytes: int
    written_by: int
    """Position of the layer that writes it."""


@dataclass(frozen=True)
class FootprintView:
    """Memory of one profiled model, from the shapes of its tensors."""

    weight_bytes: int
    """Total over all layers; a weight shared by two layers counts twice."""
    activation_bytes: int
    """Total of all outputs of layers."""
    peak_bytes: int
    """Maximum of live activations at a layer: written and still to be read."""
    peak: int
    """Position of that layer."""
    curve: tuple[tuple[float, float], ...]
    """(position in the pass, part of the peak), each 0 to 1: the maximum of each segment of layers."""
    tensors: tuple[BigTensor, ...]
    """The largest first."""
    weights: tuple[int, ...]
    """Positions of the layers with the most weights, those with most first."""


def collect_footprint(profile: Profile) -> FootprintView | None:
    """Return the footprint; None if shapes are unknown."""
    layers = profile.layers
    written = _first_written(layers)
    weight_bytes = sum(layer.weight_bytes for layer in layers)
    if not weight_bytes and not any(size for _, size, _ in written.values()):
        return None
    alive = _alive(profile, written)
    peak = max(alive)
    stretch = max(1, math.ceil(len(alive) / _CURVE_POINTS))
    largest = sorted(written.values(), key=lambda entry: -entry[1])[:_SHOWN]
    order = sorted(range(len(layers)), key=lambda index: -layers[index].weight_bytes)[:_SHOWN]
    return FootprintView(
        weight_bytes=weight_bytes,
        activation_bytes=sum(size for _, size, _ in written.values()),
        peak_bytes=peak,
        peak=alive.index(peak),
        curve=tuple(
            (start / max(len(alive) - 1, 1), max(alive[start : start + stretch]) / (peak or 1))
            for start in range(0, len(alive), stretch)
        ),
        tensors=tuple(BigTensor(tensor, size, index) for index, size, tensor in largest if size),
        weights=tuple(index for index in order if layers[index].weight_bytes),
    )


def tensor_bytes(tensor: TensorInfo) -> int:
    """Return the size of a dense tensor in bytes; 0 for types such as `string` and for dynamic dimensions."""
    return _dense_bytes(tensor.dtype, tensor.shape)


@lru_cache(maxsize=4096)
def _dense_bytes(dtype: str, shape: tuple[int, ...]) -> int:
    if any(dim < 0 for dim in shape):
        return 0
    name = dtype.lower()
    bits = bits_of_dtype(dtype_of_ort_element(name)) or bits_of_dtype(dtype_of_tensorrt(name)) or 0
    return math.prod(shape) * bits // 8


_Written = tuple[int, int, TensorInfo]
"""Position of the layer that writes it, bytes, tensor."""


def _first_written(layers: Sequence[Layer]) -> dict[str, _Written]:
    """Return tensor -> first writer; empty for dynamic dimensions or unnamed tensors, because partial sizes would
    mislead.
    """
    if any(not tensor.name or min(tensor.shape, default=0) < 0 for layer in layers for tensor in layer.outputs):
        return {}
    written: dict[str, _Written] = {}
    for index, layer in enumerate(layers):
        for tensor in layer.outputs:
            if tensor.name not in written:
                written[tensor.name] = (index, max(tensor_bytes(tensor), 0), tensor)
    return written


def _alive(profile: Profile, written: dict[str, _Written]) -> list[int]:
    """Return the bytes of live activations at each layer."""
    layers = profile.layers
    last = {name: index for name, (index, _, _) in written.items()}
    for index, layer in enumerate(layers):
        for tensor in layer.inputs:
            if tensor.name in last:
                last[tensor.name] = max(index, last[tensor.name])
    last |= {tensor.name: len(layers) - 1 for tensor in profile.outputs if tensor.name in last}
    steps = [0] * (len(layers) + 1)
    for name, (index, size, _) in written.items():
        steps[index] += size
        steps[last[name] + 1] -= size
    return list(accumulate(steps))[:-1]
