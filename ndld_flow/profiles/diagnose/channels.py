"""Channel counts of convolutions and matrix products, compared with the multiples that tensor cores require."""

from __future__ import annotations

import re
from dataclasses import dataclass

from ndld_flow.records.profile import Layer, TensorInfo

_MULTIPLES = {"float32": 4, "float16": 8, "bfloat16": 8, "int8": 16, "uint8": 16, "float8_e4m3fn": 16}
"""https://docs.nvidia.com/deeplearning/tensorrt/latest/performance/best-practices.html, "Optimizing for Tensor Cores":
for dense products. float32 is computed as TF32."""
_VECTOR = re.compile(r"(?:hwc|chw)(\d+)\Z")
_IMAGE = 4
"""Up to this many input channels belong to an image; they are not a design choice, and libraries have special kernels.
"""


@dataclass(frozen=True)
class Channels:
    """Channels of a product, and the padded counts that are computed."""

    inputs: int
    """Channels summed over."""
    outputs: int
    input_multiple: int
    output_multiple: int

    @property
    def wasted(self) -> float:
        """Share of the multiplications spent on padding, 0 to 1."""
        whole = _up(self.inputs, self.input_multiple) * _up(self.outputs, self.output_multiple)
        return 1 - self.inputs * self.outputs / whole

    @property
    def is_image(self) -> bool:
        return self.inputs <= _IMAGE

    @property
    def odd(self) -> tuple[str, ...]:
        """`30 output channels (multiples of 8)`, for each misaligned side."""
        sides = (("input", self.inputs, self.input_multiple), ("output", self.outputs, self.output_multiple))
        return tuple(f"{size} {word} channels (multiples of {step})" for word, size, step in sides if size % step)


def channels_of(layer: Layer) -> Channels | None:
    """Return the channels of a dense product; None for grouped ones, and for unknown shapes or precision."""
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
    """Return True if each filter reads one channel, so that there is no matrix product for a tensor core."""
    channels = layer.inputs[0].shape[1] if layer.inputs and len(layer.inputs[0].shape) > 1 else 0
    return layer.groups is not None and layer.groups > 1 and layer.groups == channels


def _step(tensor: TensorInfo, step: int) -> int:
    """Return the multiple that applies; a vectorised format pads to its own width."""
    found = _VECTOR.match(tensor.format)
    return max(step, int(found[1])) if found and int(found[1]) <= 64 else step


def _up(size: int, step: int) -> int:
    return -(-size // step) * step
