"""Small models that a reduced precision breaks, each for one known cause."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import TensorProto, helper

from tests.support.models import GraphBuilder, rename_output, tensor

WIDTH, LENGTH = 16, 8


def _layer(b: GraphBuilder, h: str, scale: float = 0.25) -> str:
    return b.op("Relu", b.op("MatMul", h, b.weight(WIDTH, WIDTH, scale=scale)))


def _model(b: GraphBuilder, h: str) -> onnx.ModelProto:
    rename_output(b, h, "y")
    return b.model([tensor("x", [LENGTH, WIDTH])], [tensor("y", [LENGTH, WIDTH])])


def fine_model() -> onnx.ModelProto:
    """A network that no precision hurts."""
    b = GraphBuilder(1)
    return _model(b, _layer(b, _layer(b, _layer(b, "x"))))


def overflowing_model(layers: int = 6, at: int = 3) -> onnx.ModelProto:
    """One hidden layer's values go to about 1e6; the node behind it brings them back."""
    b = GraphBuilder(2)
    h = "x"
    for layer in range(layers):
        if layer == at:
            loud = b.op("MatMul", b.op("Mul", h, b.floats(300.0)), b.weight(WIDTH, WIDTH, scale=1e4))
            b.nodes[-1].name = "loud"
            h = b.op("Mul", loud, b.floats(1e-6))
            b.nodes[-1].name = "hushed"
        h = _layer(b, h)
    return _model(b, h)


def masked_transformer_model(layers: int = 2) -> onnx.ModelProto:
    """Attention with an additive mask of 0 and -1e9, given as an input. In fp16 the mask is minus infinity: a row that
    is masked whole, whose softmax is that of its scores in fp32, becomes NaN.
    """
    b = GraphBuilder(3)
    mask = b.op("Unsqueeze", "mask", b.ints(0))
    h = "x"
    for layer in range(layers):
        q, k, v = (b.op("MatMul", h, b.weight(WIDTH, WIDTH, scale=0.3)) for _ in range(3))
        scores = b.op("MatMul", q, b.op("Transpose", k, perm=[0, 2, 1]))
        masked = b.op("Add", b.op("Mul", scores, b.floats(0.25)), mask)
        b.nodes[-1].name = f"masked_{layer}"
        weights = b.op("Softmax", masked, axis=-1)
        b.nodes[-1].name = f"weights_{layer}"
        h = b.op("Add", h, b.op("MatMul", weights, v))
        h = b.op("Add", h, b.op("Tanh", b.op("MatMul", h, b.weight(WIDTH, WIDTH))))
    rename_output(b, h, "y")
    inputs = [tensor("x", [1, LENGTH, WIDTH]), tensor("mask", [LENGTH, LENGTH])]
    return b.model(inputs, [tensor("y", [1, LENGTH, WIDTH])])


def attention_mask() -> np.typing.NDArray[np.float32]:
    """Return the mask for `masked_transformer_model`: the last token neither attends nor is attended to."""
    mask = np.zeros((LENGTH, LENGTH), np.float32)
    mask[:, -1] = -1e9
    mask[-1, :] = -1e9
    return mask


def underflowing_model() -> onnx.ModelProto:
    """Values of about 1e-9, made large again right behind."""
    b = GraphBuilder(4)
    h = b.op("Mul", _layer(b, "x"), b.floats(1e-4))
    small = b.op("Mul", h, b.floats(1e-5))
    b.nodes[-1].name = "small"
    h = b.op("Mul", small, b.floats(3e4))
    b.nodes[-1].name = "risen"
    h = b.op("Mul", h, b.floats(3e4))
    return _model(b, _layer(b, h))


def out_of_range_model() -> onnx.ModelProto:
    """A weight matrix with values of about 2e5, on inputs of about 1e-4: only the weights are beyond fp16."""
    b = GraphBuilder(5)
    h = b.op("MatMul", b.op("Mul", _layer(b, "x"), b.floats(1e-4)), b.weight(WIDTH, WIDTH, scale=2e5))
    b.nodes[-1].name = "heavy"
    return _model(b, _layer(b, b.op("Tanh", h)))


def long_sum_model(terms: int = 6) -> onnx.ModelProto:
    """Small terms added to 3000, which is taken away in the end: every value fits, and rounding eats the terms."""
    b = GraphBuilder(6)
    total = b.op("Add", _layer(b, "x"), b.floats(3000.0))
    b.nodes[-1].name = "sum_0"
    for term in range(1, terms):
        total = b.op("Add", total, b.weight(WIDTH))
        b.nodes[-1].name = f"sum_{term}"
    h = b.op("Sub", total, b.floats(3000.0))
    b.nodes[-1].name = "difference"
    return _model(b, _layer(b, h))


def two_culprits_model() -> onnx.ModelProto:
    """Two branches, each broken by a weight that fp16 cannot hold: mending one alone still gives a wrong sum."""
    b = GraphBuilder(7)
    parts = []
    for name in ("left", "right"):
        h = b.op("Mul", _layer(b, "x"), b.floats(1e-4))
        parts.append(b.op("MatMul", h, b.weight(WIDTH, WIDTH, scale=2e5)))
        b.nodes[-1].name = name
    return _model(b, _layer(b, b.op("Tanh", b.op("Add", *parts))))


def branching_model() -> onnx.ModelProto:
    """An If whose taken branch overflows in its middle."""
    b = GraphBuilder(8)
    branches = {}
    for name, scale in (("then_branch", 1e4), ("else_branch", 1.0)):
        inner = GraphBuilder(9, prefix=f"{name}_")
        loud = inner.op("MatMul", "h", inner.weight(WIDTH, WIDTH, scale=scale))
        inner.nodes[-1].name = f"{name}_loud"
        out = inner.op("Mul", loud, inner.floats(1e-6))
        inner.nodes[-1].name = f"{name}_hushed"
        branches[name] = helper.make_graph(
            inner.nodes, name, [], [tensor(out, [LENGTH, WIDTH])], initializer=inner.initializers
        )
    h = b.op("Mul", _layer(b, "x"), b.floats(300.0))
    rename_output(b, h, "h")
    positive = b.op("Greater", "flag", b.floats(0.0))
    h = b.op("If", positive, **branches)
    rename_output(b, b.op("Relu", b.op("MatMul", h, b.weight(WIDTH, WIDTH))), "y")
    inputs = [tensor("x", [LENGTH, WIDTH]), tensor("flag", [])]
    return b.model(inputs, [tensor("y", [LENGTH, WIDTH])])


def wide_model() -> onnx.ModelProto:
    """One matrix product reads values of which one channel is 1000 times the others, and counts for no more: int8 has
    no steps left for the rest.
    """
    b = GraphBuilder(11)
    scale = np.ones(WIDTH, np.float32)
    scale[0] = 1000.0
    h = b.op("Mul", _layer(b, _layer(b, "x")), b.floats(scale))
    weight = b.random.standard_normal((WIDTH, WIDTH)).astype(np.float32)
    h = b.op("MatMul", h, b.initializer(weight / scale[:, None]))
    b.nodes[-1].name = "wide"
    return _model(b, _layer(b, h))


def integer_model() -> onnx.ModelProto:
    """Return a model without floats."""
    b = GraphBuilder(10)
    rename_output(b, b.op("Add", "x", b.const([1], np.int64)), "y")
    return b.model([tensor("x", [4], TensorProto.INT64)], [tensor("y", [4], TensorProto.INT64)])
