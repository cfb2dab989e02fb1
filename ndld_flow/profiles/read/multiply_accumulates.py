"""Count the multiply-accumulate operations of a layer from its type, shapes and attributes.

The formulas follow from the operators' definitions (https://onnx.ai/onnx/operators/, and for `com.microsoft`
https://github.com/microsoft/onnxruntime/blob/main/docs/ContribOperators.md): one multiplication and addition per summed
product, including padding, as kernels compute it; biases and activations are not counted. Operators without sums of
products (Relu, Softmax, pooling) have no count.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import prod

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


def _convolution(weight: int) -> _Formula:
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
    **dict.fromkeys(("Conv", "FusedConv", "NhwcFusedConv", "ConvInteger", "NhwcConv", "DeformConv"), _convolution(1)),
    "QLinearConv": _convolution(3),
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
