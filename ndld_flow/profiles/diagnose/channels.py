"""Channel counts of convolutions and matrix products, against the multiples that tensor cores take."""

from __future__ import annotations

import re
from dataclasses import dataclass

from ndld_flow.records.profile import Layer, TensorInfo

_MULTIPLES = {"float32": 4, "float16": 8, "bfloat16": 8, "int8": 16, "uint8": 16, "float8_e4m3fn": 16}
"""https://docs.nvidia.com/deeplearning/tensorrt/latest/performance/best-practices.html, "Optimizing for Tensor Cores":
for dense products. float32 is for its TF32 part."""
_VECTOR = re.compile(r"(?:hwc|chw)(\d+)\Z")
_IMAGE = 4
"""So many input channels are those of a picture, which no designer chose; libraries have kernels of their own."""


@dataclass(frozen=True)
class Channels:
    """One product's channels, and what it computes instead of them."""

    inputs: int
    """Summed over."""
    outputs: int
    input_multiple: int
    output_multiple: int

    @property
    def wasted(self) -> float:
        """Share of the multiplications on padding, 0 to 1."""
        whole = _up(self.inputs, self.input_multiple) * _up(self.outputs, self.output_multiple)
        return 1 - self.inputs * self.outputs / whole

    @property
    def is_image(self) -> bool:
        return self.inputs <= _IMAGE

    @property
    def odd(self) -> tuple[str, ...]:
        """`30 output channels (multiples of 8)`, for those that are none."""
        sides = (("input", self.inputs, self.input_multiple), ("output", self.outputs, self.output_multiple))
        return tuple(f"{size} {word} channels (multiples of {step})" for word, size, step in sides if size % step)


def channels_of(layer: Layer) -> Channels | None:
    """Return the channels of a dense product; None for grouped ones, and where shapes or precision are not known."""
    step = _MULTIPLES.get(layer.precision)
    if step is None or not layer.inputs or not layer.outputs:
        return None
    read, written = layer.inputs[0], layer.outputs[0]
    is_convolution = len(read.shape) > 2 and (layer.groups is not None or "conv" in layer.type.lower())
    if is_convolution and layer.groups != 1:
        return None
    axis = 1 if is_convolution else -1
    if min(len(read.shape), len(written.shape)) < 2 or read.shape[axis] < 1 or written.shape[axis] < 1:
        return None
    return Channels(read.shape[axis], written.shape[axis], _step(read, step), _step(written, step))


def is_depthwise(layer: Layer) -> bool:
    """Return True where each filter reads one channel: there is no product of matrices for a tensor core."""
    channels = layer.inputs[0].shape[1] if layer.inputs and len(layer.inputs[0].shape) > 1 else 0
    return layer.groups is not None and layer.groups > 1 and layer.groups == channels


def _step(tensor: TensorInfo, step: int) -> int:
    """A vectorised format pads to its own width, whatever the product would need."""
    found = _VECTOR.match(tensor.format)
    return max(step, int(found[1])) if found and int(found[1]) <= 64 else step


def _up(size: int, step: int) -> int:
    return -(-size // step) * step
