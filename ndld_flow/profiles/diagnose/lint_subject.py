"""The subject of lints, a profile or an engine, and queries shared by lints, such as the channels of products."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Protocol

from ndld_flow.base.text import one_line
from ndld_flow.records.layer_arithmetic import multiplies_matrices
from ndld_flow.records.profile import Layer, Profile, TensorInfo

QUANTIZED = ("int8", "uint8", "int4", "uint4", "float8_e4m3fn", "float8_e5m2", "float4_e2m1fn")
FLOATS = ("float32", "float16", "bfloat16")
SHORT_NAMES = {"float32": "FP32", "float16": "FP16", "bfloat16": "BF16", "int8": "INT8", "float8_e4m3fn": "FP8"}


class LintSubject(Protocol):
    """A measured profile, or an engine that was not run."""

    @property
    def profile(self) -> Profile: ...
    @property
    def layers(self) -> Sequence[Layer]: ...
    @property
    def is_timed(self) -> bool: ...
    @property
    def on_gpu(self) -> bool: ...
    @property
    def makers(self) -> Mapping[str, int]: ...
    @property
    def readers(self) -> Mapping[str, tuple[int, ...]]: ...
    def longest_first(self, positions: Iterable[int]) -> tuple[int, ...]: ...
    @property
    def whole(self) -> str: ...
    def share(self, positions: Iterable[int]) -> float: ...
    def took(self, positions: Sequence[int]) -> str: ...
    def call(self, position: int) -> str: ...
    def call_types(self, positions: Sequence[int], most: int = 3) -> str: ...


def is_product(layer: Layer) -> bool:
    """Return True for a convolution or a matrix product of an engine."""
    return not layer.provider and layer.role == "compute" and multiplies_matrices(layer.type, layer.name)


def is_quantized_product(layer: Layer) -> bool:
    """Return True for a product of values with 8 bits or fewer."""
    return is_product(layer) and layer.precision in QUANTIZED


def float_sums(subject: LintSubject) -> dict[int, TensorInfo]:
    """Return the layers that add a floating-point tensor to what a quantized convolution computes, with that tensor.

    TensorRT fuses the addition into the convolution, which then has a second input; Myelin fuses it into the kernel
    that rescales the product. In a sum of two products no input could be quantized. Only convolutions count: residuals
    of transformers feed normalizations and stay in floating point.
    """
    residuals: dict[int, TensorInfo] = {}
    for index, layer in enumerate(subject.layers):
        if is_quantized_product(layer) and _is_convolution(layer):
            written = layer.outputs[0].shape if layer.outputs else ()
            residual = next(
                (tensor for tensor in layer.inputs[1:] if _is_float(tensor) and tensor.shape == written), None
            )
        elif layer.role == "compute" and any("add" in node.lower() for node in layer.onnx_nodes):
            residual = _added_to_product(subject, layer)
        else:
            residual = None
        if residual is not None:
            residuals[index] = residual
    return residuals


def _is_convolution(layer: Layer) -> bool:
    return bool(re.search(r"conv|correlation", layer.type, re.IGNORECASE)) or "Corr" in layer.name


def _is_float(tensor: TensorInfo) -> bool:
    return tensor.dtype in FLOATS and prod(tensor.shape) != 1


def _added_to_product(subject: LintSubject, layer: Layer) -> TensorInfo | None:
    """Return the other of two tensors of equal shape, one of which is the output of a quantized product."""
    products: list[TensorInfo] = []
    others: list[TensorInfo] = []
    for tensor in filter(_is_float, layer.inputs):
        maker = subject.makers.get(tensor.name)
        is_written_so = maker is not None and is_quantized_product(subject.layers[maker])
        (products if is_written_so else others).append(tensor)
    makers = [subject.layers[subject.makers[tensor.name]] for tensor in products]
    shapes = {tensor.shape for tensor, maker in zip(products, makers, strict=True) if _is_convolution(maker)}
    return next((tensor for tensor in others if tensor.shape in shapes), None)


def ends_of(subject: LintSubject) -> frozenset[str]:
    """Return the names of the inputs and outputs of the whole engine."""
    profile = subject.profile
    return frozenset(tensor.name for tensor in (*profile.inputs, *profile.outputs) if tensor.name)


def touches(layer: Layer, tensors: frozenset[str]) -> bool:
    """Return whether a layer reads or writes one of these tensors."""
    return any(tensor.name in tensors for tensor in (*layer.inputs, *layer.outputs))


def name_some(subject: LintSubject, positions: Sequence[int], most: int = 3) -> str:
    """Return `conv_1, conv_2, conv_3 and 5 more`, using the names of ONNX nodes if known."""
    shown = [one_line(_node_name(subject.layers[place])) for place in positions[:most]]
    more = f" and {len(positions) - most} more" if len(positions) > most else ""
    return ", ".join(shown) + more


def _node_name(layer: Layer) -> str:
    """Return the main node of a fused layer. A QuantizeLinear of its weights may come first in the layer's name."""
    nodes = [node for node in layer.onnx_nodes if "quantizelinear" not in node.lower()]
    return (nodes or [layer.name])[0]


def short_dtype(dtype: str) -> str:
    """Return the usual name of a type, such as `FP16`."""
    return SHORT_NAMES.get(dtype, dtype)


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
    """Return the multiple that applies; a vectorized format pads to its own width."""
    vector = _VECTOR.match(tensor.format)
    return max(step, int(vector[1])) if vector and int(vector[1]) <= 64 else step


def _up(size: int, step: int) -> int:
    return -(-size // step) * step
