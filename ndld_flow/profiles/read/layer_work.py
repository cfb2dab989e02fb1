"""Estimate the computation and memory traffic of layers.

The formulas of multiply-accumulates follow from the operators' definitions (https://onnx.ai/onnx/operators/, and for
`com.microsoft` https://github.com/microsoft/onnxruntime/blob/main/docs/ContribOperators.md): one multiplication and
addition per summed product, including padding, as kernels compute it; biases and activations are not counted. Operators
without sums of products (Relu, Softmax, pooling) have no count.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import prod

from ndld_flow.base.dtype_names import bits_of_dtype, dtype_of_tensorrt
from ndld_flow.profiles.read.sources import objects_in, shape_of, text_of, whole_of
from ndld_flow.records.profile import TensorInfo

Shape = tuple[int, ...]
Shapes = Sequence["Shape | None"]
"""By position; None for an omitted or unknown tensor."""
Attributes = Mapping[str, object]

_Formula = Callable[[Shapes, Shapes, Attributes], int]


def count_macs(op_type: str, inputs: Shapes, outputs: Shapes, attributes: Attributes) -> int | None:
    """Return the count for one execution; None for types without sums of products, or if a required shape is
    unknown."""
    formula = _FORMULAS.get(op_type)
    if formula is None:
        return None
    try:
        counted = formula(inputs, outputs, attributes)
    except (IndexError, TypeError, ValueError, ZeroDivisionError):  # a shape or attribute is missing
        return None
    return counted if counted >= 0 else None


def _known(shapes: Shapes, position: int) -> Shape:
    """Return a shape. Raises TypeError if it is unknown."""
    shape = shapes[position]
    if shape is None:
        raise TypeError(f"shape {position} is not known")
    return shape


def _number(attributes: Attributes, name: str, default: int) -> int:
    value = attributes.get(name, default)
    return value if isinstance(value, int) else default


def _onnx_convolution(weight: int) -> _Formula:
    """Return a formula: each output element sums the products with one filter [group channels, kernel...]."""
    return lambda inputs, outputs, attributes: prod(_known(outputs, 0)) * prod(_known(inputs, weight)[1:])


def _transposed_convolution(inputs: Shapes, _: Shapes, attributes: Attributes) -> int:
    """Count: each input element is multiplied by a filter [output channels of a group, kernel...]."""
    return prod(_known(inputs, 0)) * prod(_known(inputs, 1)[1:])


def _gemm(inputs: Shapes, outputs: Shapes, attributes: Attributes) -> int:
    rows = _known(inputs, 0)
    return prod(_known(outputs, 0)) * rows[0 if _number(attributes, "transA", 0) else 1]


def _matmul(inputs: Shapes, outputs: Shapes, attributes: Attributes) -> int:
    """Count: each output element is a sum over the first operand's last axis, or the one before it if transposed."""
    if _number(attributes, "transBatchA", 0):
        raise ValueError("the axis summed over is not the last")
    left = _known(inputs, 0)
    return prod(_known(outputs, 0)) * left[-2 if _number(attributes, "transA", 0) and len(left) > 1 else -1]


def _matmul_packed(_: Shapes, outputs: Shapes, attributes: Attributes) -> int:
    """Count for MatMulNBits, whose weights are packed: an attribute holds their depth."""
    return prod(_known(outputs, 0)) * _number(attributes, "K", -1)


def _recurrent(inputs: Shapes, _: Shapes, attributes: Attributes) -> int:
    """Count: each step of each sequence is multiplied by all of W and R, which hold every gate and direction."""
    steps, batch, _size = _known(inputs, 0)
    return steps * batch * (prod(_known(inputs, 1)) + prod(_known(inputs, 2)))


def _packed_attention(inputs: Shapes, _: Shapes, attributes: Attributes) -> int:
    """Count for com.microsoft Attention: projection of [batch, length, width] to Q, K and V, scores, weighted sum."""
    batch, length, width = _known(inputs, 0)
    projected = _known(inputs, 1)[1]
    sizes = attributes.get("qkv_hidden_sizes")
    hidden, value = (int(sizes[0]), int(sizes[2])) if isinstance(sizes, list | tuple) else (projected // 3,) * 2
    past = inputs[4] if len(inputs) > 4 else None
    total = length + (past[3] if past is not None else 0)
    return batch * length * (width * projected + total * (hidden + value))


def _separate_attention(inputs: Shapes, outputs: Shapes, attributes: Attributes) -> int:
    """Count for attention of given Q, K and V, [batch, length, width] or [batch, heads, length, size]: scores, weighted
    sum.
    """
    query, key, value = (_known(inputs, position) for position in range(3))
    if len(query) == 4 and len(key) == 4:
        batch, heads, length, width = query
        return batch * heads * length * key[2] * (width + value[3])
    batch, length, width = query
    # With fewer K and V heads than Q heads, each is used several times: the output has the width of all.
    return batch * length * key[1] * (width + _known(outputs, 0)[-1])


def _einsum(inputs: Shapes, _: Shapes, attributes: Attributes) -> int:
    """Count for two operands: the product of the sizes of all letters."""
    equation = attributes.get("equation")
    text = (equation.decode() if isinstance(equation, bytes) else str(equation)).replace(" ", "")
    terms = text.partition("->")[0].split(",")
    if len(terms) != 2 or "." in text:
        raise ValueError("the count depends on the order of contraction")
    shapes = (_known(inputs, 0), _known(inputs, 1))
    sizes: dict[str, int] = {}
    for term, shape in zip(terms, shapes, strict=True):
        for letter, size in zip(term, shape, strict=True):
            sizes[letter] = max(size, sizes.get(letter, 0))  # an axis of size 1 is broadcast
    return prod(sizes.values())


_FORMULAS: dict[str, _Formula] = {
    **dict.fromkeys(
        ("Conv", "FusedConv", "NhwcFusedConv", "ConvInteger", "NhwcConv", "DeformConv"), _onnx_convolution(1)
    ),
    "QLinearConv": _onnx_convolution(3),
    "ConvTranspose": _transposed_convolution,
    **dict.fromkeys(("Gemm", "FusedGemm", "QGemm"), _gemm),
    **dict.fromkeys(
        (
            "MatMul",
            "FusedMatMul",
            "MatMulInteger",
            "MatMulInteger16",
            "MatMulIntegerToFloat",
            "DynamicQuantizeMatMul",
            "QLinearMatMul",
            "FusedMatMulActivation",
            "GemmFastGelu",
        ),
        _matmul,
    ),
    "MatMulNBits": _matmul_packed,
    **dict.fromkeys(("LSTM", "GRU", "RNN", "DynamicQuantizeLSTM"), _recurrent),
    "MultiHeadAttention": _separate_attention,
    "Attention": lambda inputs, outputs, attributes: (
        # One name, two operators: ONNX's reads Q, K and V, com.microsoft's reads weights [width, 3 * hidden].
        _packed_attention(inputs, outputs, attributes)
        if len(_known(inputs, 1)) == 2
        else _separate_attention(inputs, outputs, attributes)
    ),
    "Einsum": _einsum,
}


_MAX_COUNT = 10**18
_GEMMS = ("matrixmultiply", "gemm", "matmul", "matrix_multiply")


@dataclass(frozen=True)
class LayerWork:
    """The work of one execution of a layer."""

    macs: int | None = None
    read_bytes: int = 0
    written_bytes: int = 0
    weight_bytes: int = 0


def work_of(entry: Mapping[str, object], inputs: Sequence[TensorInfo], outputs: Sequence[TensorInfo]) -> LayerWork:
    """Return the work of one layer in an inspector's JSON.

    A NoOp moves no data: its output is its input under another name.
    """
    if text_of(entry.get("LayerType")).lower() == "noop":
        return LayerWork()
    if "ConvKernel" in entry:  # a convolution fused with its pooling has this instead of `Kernel`, and so on
        own = {key.removeprefix("Conv"): value for key, value in entry.items() if key.startswith("Conv")}
        entry = {**entry, **own, "IsPooled": True}
    weights = _constant_bytes(entry.get("Weights")) + _constant_bytes(entry.get("Bias")) + _listed_bytes(entry)
    read, written = tensor_bytes(inputs), tensor_bytes(outputs)
    return LayerWork(
        macs=_macs(entry, inputs, outputs),
        read_bytes=read + weights if read else 0,
        written_bytes=written,
        weight_bytes=weights,
    )


def tensor_bytes(tensors: Iterable[TensorInfo]) -> int:
    """Return the size of tensors in bytes; 0 if the shape or type of one is unknown."""
    total = 0
    for tensor in tensors:
        bits, count = bits_of_dtype(tensor.dtype), elements(tensor.shape)
        if bits is None or count is None:
            return 0
        total += (bits * count + 7) // 8
    return total


def elements(shape: Sequence[int]) -> int | None:
    """Return the number of elements of a shape; None for dynamic dimensions and implausible sizes."""
    if any(dim < 0 for dim in shape):
        return None
    count = math.prod(shape)
    return count if count <= _MAX_COUNT else None


def _constant_bytes(constant: object) -> int:
    """Return the size of a constant: `{"Type": "Half", "Count": 9408}` -> 18816."""
    if not isinstance(constant, dict):
        return 0
    bits = bits_of_dtype(dtype_of_tensorrt(text_of(constant.get("Type"))))
    count = whole_of(constant.get("Count"))
    return bits * count // 8 if bits is not None and count is not None and count > 0 else 0


def _listed_bytes(entry: Mapping[str, object]) -> int:
    """Return the size of the constants that TensorRT-RTX lists with dimensions and type."""
    return sum(
        tensor_bytes([TensorInfo(name="", dtype=dtype_of_tensorrt(text_of(constant.get("Datatype"))), shape=shape)])
        for constant in objects_in(entry.get("Constants"))
        if (shape := shape_of(constant.get("Dimensions"))) is not None
    )


def _macs(entry: Mapping[str, object], inputs: Sequence[TensorInfo], outputs: Sequence[TensorInfo]) -> int | None:
    """Return the count of `count_macs` for the corresponding ONNX operator."""
    if not inputs or not outputs or any(elements(tensor.shape) is None for tensor in (*inputs, *outputs)):
        return None
    parameters, kind = text_of(entry.get("ParameterType")).lower(), text_of(entry.get("LayerType")).lower()
    shapes = [tensor.shape for tensor in inputs]
    counted = None
    if parameters in ("convolution", "deconvolution"):
        counted = _tensorrt_convolution(entry, shapes[0], outputs[0].shape, parameters == "deconvolution")
    elif {parameters, kind} & set(_GEMMS) and len(shapes) > 1:
        turned = int(text_of(entry.get("MatrixOpA")).upper().endswith("TRANSPOSE"))
        counted = count_macs("FusedMatMul", shapes, [outputs[0].shape], {"transA": turned})
    return counted if counted is not None and counted <= _MAX_COUNT else None


def _tensorrt_convolution(entry: Mapping[str, object], source: Shape, target: Shape, is_transposed: bool) -> int | None:
    kernel, groups = shape_of(entry.get("Kernel")), whole_of(entry.get("Groups")) or 1
    maps = whole_of(entry.get("OutMaps"))
    if kernel is None or maps is None or groups < 1 or len(source) < 2:
        return None
    if is_transposed:
        weights = (source[1], maps // groups, *kernel)
        return count_macs("ConvTranspose", [source, weights], [target], {})
    weights = (maps, source[1] // groups, *kernel)
    written = _before_pooling(entry, source, weights) if "IsPooled" in entry else target
    return count_macs("Conv", [source, weights], [written], {})


def _before_pooling(entry: Mapping[str, object], source: Shape, weights: Shape) -> Shape | None:
    """Return the output shape of the convolution by ONNX's formula."""
    settings = [shape_of(entry.get(key)) or () for key in ("Stride", "Dilation", "PrePadding", "PostPadding")]
    sizes, kernel = source[2:], weights[2:]
    if any(len(setting) != len(sizes) for setting in (*settings, kernel)) or any(step < 1 for step in settings[0]):
        return None
    steps = zip(sizes, kernel, *settings, strict=True)
    return (
        source[0],
        weights[0],
        *(
            max(0, (size + before + after - dilation * (width - 1) - 1) // stride + 1)
            for size, width, stride, dilation, before, after in steps
        ),
    )
