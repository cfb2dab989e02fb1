"""Models that engines are built of, made by code."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from tests.support.models import tensor
from tests.support.models_run import write_model

SHAPE_TENSOR = "g (float[n, 4] x, int64[2] shape) => (float[a, b] y) { y = Reshape(x, shape) }"
SEVERAL_FREE = "g (float[batch, length] x, float[batch, length] mask) => (float[batch, length] y) { y = Mul(x, mask) }"
BROKEN_TYPES = "g (float[2, 4] x, float16[2, 4] z) => (float[2, 4] y) { y = Add(x, z) }"
STRINGS = "g (string[2] x) => (string[2] y) { y = Identity(x) }"
RELU = "g (float[n, 4] x) => (float[n, 4] y) { y = Relu(x) }"


def make_fp8(path: Path) -> Path:
    """A MatMul between Q/DQ pairs of FP8, which GPUs have from Ada on."""
    weights = np.linspace(-1, 1, 256, dtype=np.float32).reshape(16, 16)
    constants = [
        helper.make_tensor("zero", TensorProto.FLOAT8E4M3FN, [], [0.0]),
        numpy_helper.from_array(np.array(0.02, np.float32), "scale"),
        numpy_helper.from_array(weights, "w"),
    ]
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "scale", "zero"], ["xq"], name="quantize_x"),
        helper.make_node("DequantizeLinear", ["xq", "scale", "zero"], ["xd"], name="dequantize_x"),
        helper.make_node("QuantizeLinear", ["w", "scale", "zero"], ["wq"], name="quantize_w"),
        helper.make_node("DequantizeLinear", ["wq", "scale", "zero"], ["wd"], name="dequantize_w"),
        helper.make_node("MatMul", ["xd", "wd"], ["y"], name="multiply"),
    ]
    graph = helper.make_graph(nodes, "main", [tensor("x", ["n", 16])], [tensor("y", ["n", 16])], constants)
    model = helper.make_model(graph, ir_version=10, opset_imports=[helper.make_opsetid("", 19)])
    onnx.save(model, path)
    return path


def make_hostile(path: Path, name: str) -> Path:
    """Write a Relu whose input, node and file have a hostile name."""
    write_model(path, RELU)
    model = onnx.load(path)
    model.graph.input[0].name = name
    node = model.graph.node[0]
    node.input[0], node.name = name, name
    onnx.save(model, path)
    return path


def constrain(path: Path, **precisions: str) -> Path:
    """Ask for the precision of nodes, as `constrain_precision` writes it."""
    model = onnx.load(path)
    for node in model.graph.node:
        if node.name in precisions:
            node.metadata_props.add(key="ndld_flow.precision", value=precisions[node.name])
    onnx.save(model, path)
    return path
