"""Formulas of computed dimensions, compared with the shapes of real runs."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper

from ndld_flow.models.shape_inference import infer_shapes, name_computed_dims
from tests.support.editing_fixtures import edit, parse


def formulas(model: onnx.ModelProto) -> dict[str, str]:
    """Return computed tensor -> its shape with formulas."""
    typed = ir.from_proto(model)
    infer_shapes(typed)
    name_computed_dims(typed)
    return {value.name or "": str(value.shape) for node in typed.graph for value in node.outputs}


def compare_with_runs(model: onnx.ModelProto, *sizes: dict[str, int]) -> dict[str, str]:
    """Run a model for sizes of its dimensions and evaluate each formula; return the shapes."""
    shapes = formulas(model)
    every = onnx.ModelProto()
    every.CopyFrom(model)
    del every.graph.output[:]
    every.graph.output.extend(onnx.ValueInfoProto(name=name) for name in shapes)
    session = ort.InferenceSession(every.SerializeToString())
    names: dict[str, Any] = {"ceil": math.ceil, "floor": math.floor}
    for given in sizes:
        feeds = {
            info.name: np.zeros(
                [given.get(dim.dim_param, dim.dim_value) for dim in info.type.tensor_type.shape.dim], np.float32
            )
            for info in model.graph.input
        }
        for name, array in zip(shapes, session.run(None, feeds), strict=True):
            for dim, size in zip(shapes[name][1:-1].split(","), array.shape, strict=True):
                if dim != "None" and (dim in given or not dim.isidentifier()):
                    assert eval(dim, names, given) == size, (name, shapes[name], array.shape)  # noqa: S307
    return shapes


def test_sums_and_products_of_dimensions_are_named() -> None:
    model = parse("""
        g (float[batch, seq, 6] x, float[batch, past, 6] p) => (float[a, b, c] y, float[d] f, float[e, g, h] z)
        <int64[1] flat = {-1}, int64[6] pads = {0, 0, 0, 0, 1, 0}> {
            cat = Concat <axis = 1> (p, x)
            twice = Concat <axis = 1> (x, x)
            padded = Pad (twice, pads)
            z = Relu (padded)
            y = Relu (cat)
            row = Reshape (x, flat)
            f = Relu (row)
        }""")
    shapes = compare_with_runs(model, {"batch": 2, "seq": 3, "past": 5}, {"batch": 1, "seq": 8, "past": 1})
    assert shapes["cat"] in ("[batch,past + seq,6]", "[batch,seq + past,6]")
    assert shapes["twice"] == "[batch,2*seq,6]"
    assert shapes["padded"] == "[batch,2*seq + 1,6]"
    assert shapes["row"] == "[6*batch*seq]"


def _convolutions() -> onnx.ModelProto:
    weight = helper.make_tensor("w", TensorProto.FLOAT, [3, 3, 3, 3], [0.1] * 81)
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["half"], strides=[2, 2], pads=[1, 1, 1, 1]),
        helper.make_node("Conv", ["half", "w"], ["quarter"], strides=[2, 2], pads=[1, 1, 1, 1]),
        helper.make_node("MaxPool", ["x"], ["pooled"], kernel_shape=[2, 2], strides=[2, 2]),
        helper.make_node("MaxPool", ["x"], ["up"], kernel_shape=[2, 2], strides=[2, 2], ceil_mode=1),
        helper.make_node("Conv", ["pooled", "w"], ["inner"]),
        helper.make_node("Flatten", ["quarter"], ["flat"], axis=2),
        helper.make_node("Conv", ["x", "w"], ["odd"], strides=[3, 3]),
    ]
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 3, "h", "w.size"])
    graph = helper.make_graph(nodes, "g", [x], [onnx.ValueInfoProto(name="flat")], [weight])
    return helper.make_model(graph, ir_version=8, opset_imports=[helper.make_opsetid("", 17)])


def test_rounded_quotients_are_named() -> None:
    shapes = formulas(_convolutions())
    assert shapes["half"] == "[n,3,ceil(h/2),ceil(w.size/2)]"
    assert shapes["quarter"] == "[n,3,ceil(h/4),ceil(w.size/4)]"
    assert shapes["pooled"] == "[n,3,floor(h/2),floor(w.size/2)]"
    assert shapes["up"] == "[n,3,ceil(h/2),ceil(w.size/2)]"
    assert shapes["inner"] == "[n,3,floor(h/2) - 2,floor(w.size/2) - 2]"
    assert shapes["flat"] == "[3*n,ceil(h/4)*ceil(w.size/4)]"
    assert "None" in shapes["odd"] or "unk" in shapes["odd"]  # a divisor that is not tried
    model = _convolutions()
    model.graph.input[0].type.tensor_type.shape.dim[3].dim_param = "v"
    compare_with_runs(model, {"n": 1, "h": 17, "v": 31}, {"n": 2, "h": 64, "v": 33}, {"n": 1, "h": 30, "v": 29})


@pytest.mark.parametrize(
    "body",
    [
        "y = Slice (x, start, hundred, zero)",  # min(n, 100)
        "y = NonZero (x)",
        "y = Range (begin, stop, step)",
    ],
)
def test_limits_and_values_are_not_taken_for_formulas(body: str) -> None:
    model = parse(f"""
        g (float[n] x, float begin, float stop, float step) => (float[a] y)
        <int64[1] start = {{0}}, int64[1] hundred = {{100}}, int64[1] zero = {{0}}> {{ {body} }}""")
    assert "n" not in formulas(model)["y"].replace("None", "").replace("unk", "")


def test_recorded_formulas_are_simplified_where_inference_confirms_them() -> None:
    model = _convolutions()
    dims: list[int | str | None] = ["n", 3, "floor(h/2 - 1/2) + 1", "floor(w.size/2 - 1/2) + 1"]
    model.graph.value_info.append(helper.make_tensor_value_info("half", TensorProto.FLOAT, dims))
    other: list[int | str | None] = ["n", 3, "(h - 3) // 3 + 1", "q"]
    model.graph.value_info.append(helper.make_tensor_value_info("odd", TensorProto.FLOAT, other))
    shapes = formulas(model)
    assert shapes["half"] == "[n,3,ceil(h/2),ceil(w.size/2)]"
    assert shapes["odd"] == "[n,3,(h - 3) // 3 + 1,q]"


def test_the_operation_writes_formulas() -> None:
    model = parse("g (float[n, 3] x) => (float[a, 3] y) { c = Concat <axis = 0> (x, x)  y = Relu (c) }")
    edited = edit(model, {"infer_shapes": {}})
    info = next(info for info in edited.graph.value_info if info.name == "c")
    assert info.type.tensor_type.shape.dim[0].dim_param == "2*n"
