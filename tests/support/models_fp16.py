"""Small models that are hard to convert to fp16."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from tests.support.models import GraphBuilder, rename_output, tensor


def sensitive_batch_norm_model(variance: float = 2e7) -> onnx.ModelProto:
    """Conv -> BatchNormalization whose running variance fp16 cannot hold, as in PP-OCRv4 detection."""
    b = GraphBuilder(7)
    h = b.op("Conv", "x", b.weight(4, 3, 3, 3, scale=np.sqrt(variance) / 5), pads=[1, 1, 1, 1])
    large = b.initializer(np.full(4, variance, np.float32))
    h = b.op("BatchNormalization", h, b.weight(4, scale=1.0), b.weight(4), b.weight(4), large)
    rename_output(b, b.op("Sigmoid", h), "y")
    return b.model([tensor("x", ["n", 3, 8, 8])], [tensor("y", ["n", 4, 8, 8])])


def resize_model() -> onnx.ModelProto:
    """Resize with constant scales, which must stay fp32 whatever the image is; and one by sizes computed in floats."""
    b = GraphBuilder(8)
    h = b.op("Relu", "x")
    h = b.op("Resize", h, "", b.floats([1.0, 1.0, 2.0, 2.0]), mode="linear")
    size = b.op("Cast", b.op("Shape", h), to=TensorProto.FLOAT)
    size = b.op("Cast", b.op("Mul", size, b.floats([1.0, 1.0, 1.5, 1.5])), to=TensorProto.INT64)
    h = b.op("Resize", h, "", "", size, mode="nearest")
    rename_output(b, h, "y")
    return b.model([tensor("x", [1, 2, "h", "w"])], [tensor("y", [1, 2, "h2", "w2"])])


def shared_constant_model() -> onnx.ModelProto:
    """One initializer and one Constant read by two Softmaxes and two Muls, and a weight that is an output too."""
    b = GraphBuilder(9)
    weight, constant = b.weight(4), b.floats([1.0, 2.0, 3.0, 4.0])
    h = b.op("Mul", "x", weight)
    soft = b.op("Softmax", b.op("Add", h, constant))
    loud = b.op("Elu", b.op("Mul", b.op("Add", soft, weight), constant))
    rename_output(b, loud, "y")
    return b.model([tensor("x", ["n", 4])], [tensor("y", ["n", 4]), tensor(weight, [4])])


def sequence_model() -> onnx.ModelProto:
    """A sequence of tensors through SplitToSequence, SequenceInsert, SequenceAt and ConcatFromSequence."""
    b = GraphBuilder(10)
    parts = b.op("SplitToSequence", b.op("Relu", "x"), b.const(2, np.int64), axis=0)
    parts = b.op("SequenceInsert", parts, b.op("Neg", "x"))
    first = b.op("SequenceAt", parts, b.const(0, np.int64))
    h = b.op("ConcatFromSequence", parts, axis=0)
    h = b.op("Add", h, b.op("ReduceSum", first, keepdims=0))
    rename_output(b, h, "y")
    return b.model([tensor("x", [4, 3])], [tensor("y", ["m", 3])])


def scan_model() -> onnx.ModelProto:
    """A Scan with one state, one scanned input and one scanned output, whose body reads the outer graph."""
    b = GraphBuilder(11)
    body = GraphBuilder(12, prefix="body_")
    total = body.op("Add", "body_state", body.op("Mul", "body_row", "scale"))
    copy = body.op("Identity", total)
    inner = helper.make_graph(
        body.nodes,
        "body",
        [tensor("body_state", [3]), tensor("body_row", [3])],
        [tensor(total, [3]), tensor(copy, [3])],
    )
    b.initializers.append(numpy_helper.from_array(np.array([0.5, 1.0, 2.0], np.float32), "scale"))
    start = b.op("ConstantOfShape", b.ints(3), value=numpy_helper.from_array(np.zeros(1, np.float32)))
    state = b.op("Scan", start, "x", outputs=2, body=inner, num_scan_inputs=1)
    rename_output(b, b.op("Identity", f"{state}1"), "y")
    rename_output(b, b.op("Tanh", state), "z")
    return b.model([tensor("x", ["n", 3])], [tensor("y", ["n", 3]), tensor("z", [3])])


def lstm_model() -> onnx.ModelProto:
    """An LSTM with given initial states that go in and come out of the model."""
    b = GraphBuilder(13)
    b.nodes.append(
        helper.make_node(
            "LSTM",
            ["x", b.weight(1, 20, 4), b.weight(1, 20, 5), b.weight(1, 40), "", "h0", "c0"],
            ["steps", "h1", "c1"],
            name="lstm",
            hidden_size=5,
        )
    )
    b.nodes.append(helper.make_node("Squeeze", ["steps", b.ints(1)], ["y"], name="squeeze"))
    state: list[int | str | None] = [1, "n", 5]
    inputs = [tensor("x", ["t", "n", 4]), tensor("h0", state), tensor("c0", state)]
    outputs = [tensor("y", ["t", "n", 5]), tensor("h1", state), tensor("c1", state)]
    return b.model(inputs, outputs)


def quantized_model(opset: int) -> onnx.ModelProto:
    """QuantizeLinear and DequantizeLinear around a MatMul; their scales may be fp16 from opset 19 on."""
    b = GraphBuilder(14)
    scale, zero = b.floats(0.05), b.const(0, np.int8)
    h = b.op("DequantizeLinear", b.op("QuantizeLinear", "x", scale, zero), scale, zero)
    weight = b.initializer(np.arange(-8, 8, dtype=np.int8).reshape(4, 4))
    h = b.op("MatMul", h, b.op("DequantizeLinear", weight, scale, zero))
    rename_output(b, b.op("Relu", h), "y")
    return b.model([tensor("x", ["n", 4])], [tensor("y", ["n", 4])], opset=opset)


def no_half_model() -> onnx.ModelProto:
    """Range and NonMaxSuppression, which ONNX has in fp32 only, between nodes that may be fp16."""
    b = GraphBuilder(15)
    boxes = b.op("Mul", "boxes", b.floats(2.0))
    kept = b.op("NonMaxSuppression", boxes, b.op("Sigmoid", "scores"), b.const([10], np.int64), b.floats([0.5]))
    rename_output(b, kept, "kept")
    steps = b.op("Range", b.floats(0.0), b.floats(6.0), b.floats(1.0))
    rename_output(b, b.op("Mul", steps, b.op("ReduceMean", boxes, keepdims=0)), "y")
    inputs = [tensor("boxes", [1, 6, 4]), tensor("scores", [1, 1, 6])]
    return b.model(inputs, [tensor("kept", [None, 3], TensorProto.INT64), tensor("y", [6])])


def random_model() -> onnx.ModelProto:
    """Return a model with every operator that has a dtype attribute, with and without the attribute."""
    b = GraphBuilder(16)
    eye = b.op("EyeLike", "x")
    ones = b.op("ConstantOfShape", b.op("Shape", "x"), value=numpy_helper.from_array(np.ones(1, np.float32)))
    zeros = b.op("ConstantOfShape", b.op("Shape", "x"))
    window = b.op("HannWindow", b.const(4, np.int64))
    noise = b.op("Mul", b.op("RandomNormalLike", "x"), b.floats(0.0))
    more = b.op("Mul", b.op("RandomUniform", shape=[4, 4]), b.floats(0.0))
    h = "x"
    for other in (eye, ones, zeros, window, noise, more, b.op("EyeLike", "x", dtype=1)):
        h = b.op("Add", h, other)
    rename_output(b, h, "y")
    return b.model([tensor("x", [4, 4])], [tensor("y", [4, 4])])


def island_model() -> onnx.ModelProto:
    """Exp -> Reshape -> Transpose -> Log: nothing but moves between two nodes that a test keeps in fp32."""
    b = GraphBuilder(17)
    h = b.op("Exp", b.op("Relu", "x"))
    h = b.op("Transpose", b.op("Reshape", h, b.ints(-1, 2, 2)), perm=[0, 2, 1])
    h = b.op("Neg", b.op("Log", h))
    rename_output(b, h, "y")
    return b.model([tensor("x", ["n", 4])], [tensor("y", ["n", 2, 2])])


def unknown_operator_model() -> onnx.ModelProto:
    """Return a model with an unknown custom operator, a known one of ONNX Runtime, and standard ones."""
    b = GraphBuilder(18)
    h = b.op("Gelu", b.op("Relu", "x"), domain="com.microsoft")
    h = b.op("Magic", h, domain="com.example")
    rename_output(b, b.op("Tanh", h), "y")
    model = b.model([tensor("x", ["n", 4])], [tensor("y", ["n", 4])])
    model.opset_import.extend([helper.make_opsetid("com.microsoft", 1), helper.make_opsetid("com.example", 1)])
    return model


def contrib_model() -> onnx.ModelProto:
    """ONNX Runtime's own operators as its optimizer leaves them."""
    b = GraphBuilder(19)
    h = b.op("SkipLayerNormalization", "x", "x", b.weight(8), b.weight(8), domain="com.microsoft")
    h = b.op("FusedMatMul", h, b.weight(8, 8), alpha=0.5, domain="com.microsoft")
    h = b.op("BiasGelu", h, b.weight(8), domain="com.microsoft")
    rename_output(b, h, "y")
    model = b.model([tensor("x", [2, 3, 8])], [tensor("y", [2, 3, 8])])
    model.opset_import.append(helper.make_opsetid("com.microsoft", 1))
    return model


def doubled_names_model() -> onnx.ModelProto:
    """Two nodes of one name, which ONNX's checker lets pass."""
    b = GraphBuilder(20)
    h = b.op("Tanh", b.op("Relu", "x"))
    for node in b.nodes:
        node.name = "same"
    rename_output(b, h, "y")
    return b.model([tensor("x", ["n", 4])], [tensor("y", ["n", 4])])


def mask_model() -> onnx.ModelProto:
    """A float mask of the lowest fp32 value, and an epsilon that fp16 rounds to 0, under a division."""
    b = GraphBuilder(21)
    lowest = b.floats(np.finfo(np.float32).min)
    seen = b.op("Cast", "mask", to=TensorProto.FLOAT)
    h = b.op("Softmax", b.op("Add", "x", b.op("Mul", b.op("Sub", b.floats(1.0), seen), lowest)))
    zero = b.op("Sub", "x", "x")
    h = b.op("Add", h, b.op("Div", zero, b.op("Add", zero, b.floats(1e-12))))
    rename_output(b, h, "y")
    return b.model([tensor("x", ["n", 4]), tensor("mask", ["n", 4], TensorProto.INT64)], [tensor("y", ["n", 4])])


def old_model() -> onnx.ModelProto:
    """IR 3, where every initializer is an input too."""
    b = GraphBuilder(22)
    h = b.op("Relu", b.op("MatMul", "x", b.weight(4, 4)))
    rename_output(b, b.op("Add", h, b.weight(4)), "y")
    inputs = [tensor("x", ["n", 4]), *(tensor(i.name, list(i.dims)) for i in b.initializers)]
    model = b.model(inputs, [tensor("y", ["n", 4])], opset=9)
    model.ir_version = 3
    return model
