"""How a model is quantised: the settings that `quantize` and a search for int8 share."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from ndld_flow.base.name_patterns import NamePattern
from ndld_flow.base.settings import Settings

Mode = Literal["static", "dynamic"]
Method = Literal["minmax", "entropy", "percentile", "distribution"]
Target = Literal["cpu", "tensorrt"]
Activations = Literal["uint8", "int8", "uint16", "int16"]
Weights = Literal["int8", "uint8", "int4"]

WEIGHTED_OP_TYPES = ("Conv", "ConvTranspose", "Gemm", "MatMul")
"""What is worth quantising for its own sake."""
_NOT_ON_CPU = ("ConvTranspose",)
"""ONNX Runtime has no kernel in integers for them there: they would compute in fp32, and convert besides."""
FOLLOWING_OP_TYPES = (
    "Add",
    "Clip",
    "Concat",
    "Flatten",
    "MaxPool",
    "Relu",
    "Reshape",
    "Squeeze",
    "Transpose",
    "Unsqueeze",
)
"""What is quantised on a CPU where all it reads is: pairs of Q/DQ go away between such nodes."""
DYNAMIC_OP_TYPES = ("Gather", "Gemm", "LSTM", "MatMul")
"""What takes less memory with weights in 8 bits. Not Conv, which ONNX Runtime makes slower by it."""
CPU_INTENSITY = 64.0
"""Measured on PP-OCRv4 (det and rec, one thread, AVX2): dense convolutions of 64 channels and more run 1.6 to 2 times
as fast, depthwise ones (5 multiply-accumulates an element) half as fast, and det with everything in int8 gains nothing
at a cosine of 0.94. From 16 to 96 the time is the same within 3 %, and the fewer are quantised the more accurate it is:
det 0.958, 0.993, 0.997 at 16, 32, 64."""


class Exclude(Settings):
    """What stays as it is."""

    op_types: tuple[str, ...] = ()
    """Operators, such as `Softmax`."""
    nodes: tuple[NamePattern, ...] = ()
    """Names of nodes: globs (`head.*`), or `/.../` for a regular expression (RE2's syntax) searched in the name."""


class QuantizeSettings(Settings):
    """How a model is quantised."""

    mode: Mode = "static"
    """`static`: ranges of activations are measured on samples, and Q/DQ pairs hold their scales. `dynamic`: weights
    only; ranges of activations are taken anew in each pass, which needs no samples and suits MatMul and LSTM."""
    target: Target = "cpu"
    """What the result is for. `cpu`: ONNX Runtime's CPU kernels, activations uint8. `tensorrt`: symmetric int8, Q/DQ
    on inputs only (what follows a layer is fused into it), biases in fp32."""
    method: Method = "minmax"
    """How a range is taken from samples. `minmax`: all values. `percentile`: but the `percentile` outermost. `entropy`:
    the range whose histogram tells least less than that of all values, in 128 bins. `distribution`: the edges of a
    histogram."""
    percentile: Annotated[float, Field(gt=50, le=100)] = 99.999
    """For `percentile`: how many of a tensor's values, in percent, the range holds."""
    activations: Activations | None = None
    """Type of activations; when not given, the target's: uint8 on a CPU, int8 for TensorRT."""
    weights: Weights = "int8"
    """Type of weights. `int4` halves what they take; a CPU computes with them in fp32."""
    per_channel: bool = True
    """A scale for each output channel of a weight, not one for all of it."""
    symmetric: bool | None = None
    """Ranges of activations reach as far below 0 as above; when not given, for TensorRT only."""
    reduce_range: bool | Literal["auto"] = "auto"
    """Weights use 7 of 8 bits. An x86 CPU without VNNI cuts off sums of two products of 8 bits at 16 bits, without a
    word: full weights can ruin a model there. `auto` asks the CPU that this runs on, for int8 weights and the target
    `cpu`; `true` makes a model for any. `false` keeps the bit where `check_accuracy` shows that nothing is cut off: on
    such a CPU PP-OCR rec has a cosine of 0.995 with it and 0.974 without."""
    op_types: tuple[str, ...] = ()
    """Operators to quantise, all of them that hold floats. When not given: Conv, Gemm and MatMul with a weight, for
    TensorRT ConvTranspose too, and on a CPU what only follows them, such as Relu, MaxPool or the Add of two quantised
    tensors; with `mode: dynamic` MatMul, Gemm, LSTM and Gather."""
    min_intensity: Annotated[float, Field(ge=0)] | None = None
    """A Conv, ConvTranspose, Gemm or MatMul stays as it is when it does fewer multiply-accumulates than this for each
    element that it reads and writes: converting those costs more than int8 saves. Depthwise convolutions have about 5,
    dense ones a third to half of their channels. When not given, 64 for static quantisation on a CPU, else 0."""
    exclude: Exclude = Exclude()
    """What to leave as it is."""

    @model_validator(mode="after")
    def _check_target(self) -> Self:
        if self.target == "tensorrt":
            if self.mode == "dynamic":
                raise ValueError("`target: tensorrt` takes Q/DQ, which `mode: dynamic` does not make: use `static`")
            if self.weights == "int4":
                raise ValueError(
                    "`target: tensorrt` takes int4 weights only in blocks, as `modelopt: {format: int4}` makes them"
                )
            if self.activations not in (None, "int8") or self.symmetric is False or self.weights == "uint8":
                raise ValueError("`target: tensorrt` takes symmetric int8 only: leave activations and symmetric out")
        if self.mode == "dynamic" and (self.activations not in (None, "uint8") or self.weights == "int4"):
            raise ValueError("`mode: dynamic` has uint8 activations and int8 or uint8 weights")
        return self

    @property
    def activation_type(self) -> Activations:
        return self.activations or ("int8" if self.target == "tensorrt" else "uint8")

    @property
    def symmetric_activations(self) -> bool:
        return self.target == "tensorrt" if self.symmetric is None else self.symmetric

    @property
    def wanted_op_types(self) -> tuple[str, ...]:
        """The operators to quantise, given or not."""
        if self.op_types:
            return self.op_types
        if self.mode == "dynamic":
            return DYNAMIC_OP_TYPES
        if self.target == "tensorrt":
            return WEIGHTED_OP_TYPES
        return (*(each for each in WEIGHTED_OP_TYPES if each not in _NOT_ON_CPU), *FOLLOWING_OP_TYPES)

    @property
    def least_intensity(self) -> float:
        """Multiply-accumulates for each element that a node must do, given or not."""
        if self.min_intensity is not None:
            return self.min_intensity
        return CPU_INTENSITY if self.target == "cpu" and self.mode == "static" else 0.0

    @property
    def least_opset(self) -> int:
        """Of the default domain, that the Q/DQ operators need: 13 has scales per channel, 21 has 4 and 16 bits."""
        wide = self.activation_type in ("uint16", "int16") or self.weights == "int4"
        return 21 if wide else 13
