"""Evidence for matching layers from TensorRT's inspector: sizes of weights and the window of convolutions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from ndld_flow.profiles.read.json_values import objects_in, shape_of, whole_of
from ndld_flow.profiles.read.work_of_layers import elements
from ndld_flow.records.profile import LayerWeight

_WINDOW = {"Kernel": "kernel_shape", "Stride": "strides", "Dilation": "dilations"}
"""The inspector's name -> ONNX's name."""


def weights_of(entry: Mapping[str, object]) -> tuple[LayerWeight, ...]:
    """Return the sizes of a layer's constants, `{"Count": 9408}` or `{"Dimensions": [64, 3, 7, 7]}`."""
    return tuple(LayerWeight(shape=shape) for shape in _sizes(entry))


def _sizes(entry: Mapping[str, object]) -> Iterator[tuple[int, ...]]:
    for name in ("Weights", "ConvWeights"):
        constant = entry.get(name)
        count = whole_of(constant.get("Count")) if isinstance(constant, dict) else None
        if count is not None and count > 0:
            yield (count,)
    for constant in objects_in(entry.get("Constants")):
        shape = shape_of(constant.get("Dimensions"))
        if shape is not None and elements(shape):
            yield shape


def window_of(entry: Mapping[str, object]) -> tuple[tuple[str, tuple[int, ...]], ...]:
    """Return the window of a convolution by ONNX's names of its parts; empty for other layers."""
    found: list[tuple[str, tuple[int, ...]]] = []
    for name, attribute in _WINDOW.items():
        part = shape_of(entry.get(name, entry.get(f"Conv{name}")))
        if part is not None:
            found.append((attribute, part))
    groups = whole_of(entry.get("Groups", entry.get("ConvGroups")))
    if found and groups is not None:
        found.append(("group", (groups,)))
    return tuple(found)
