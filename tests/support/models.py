"""Small ONNX models built by code, as exporters write them: with the noise that sanitizing is there to remove."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import TensorProto, helper, numpy_helper

Array = npt.NDArray[Any]

BIG_LAYERS = 36
BIG_WIDTH = 4096


class GraphBuilder:
    """Grows a graph node by node; names are `<op>_<n>`, as exporters make them."""

    def __init__(self, seed: int = 0, prefix: str = "") -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.initializers: list[onnx.TensorProto] = []
        self.random = np.random.default_rng(seed)
        self.prefix = prefix

    def op(self, op_type: str, *inputs: str, outputs: int = 1, **attributes: Any) -> str:
        """Add a node; return the name of its first output."""
        name = f"{self.prefix}{op_type}_{len(self.nodes)}"
        names = [f"{name}_out"] + [f"{name}_out{i}" for i in range(1, outputs)]
        self.nodes.append(helper.make_node(op_type, list(inputs), names, name=name, **attributes))
        return names[0]

    def const(self, value: npt.ArrayLike, dtype: type[np.generic] | None = None) -> str:
        """Add a Constant node."""
        return self.op("Constant", value=numpy_helper.from_array(np.array(value, dtype=dtype)))

    def ints(self, *values: int) -> str:
        return self.const(list(values), np.int64)

    def floats(self, value: npt.ArrayLike) -> str:
        return self.const(value, np.float32)

    def initializer(self, array: Array) -> str:
        name = f"{self.prefix}w_{len(self.initializers)}"
        self.initializers.append(numpy_helper.from_array(np.ascontiguousarray(array), name))
        return name

    def weight(self, *shape: int, scale: float = 0.1) -> str:
        """Add a random float32 initializer."""
        return self.initializer((self.random.standard_normal(shape) * scale).astype(np.float32))

    def model(
        self, inputs: list[onnx.ValueInfoProto], outputs: list[onnx.ValueInfoProto], opset: int = 17
    ) -> onnx.ModelProto:
        graph = helper.make_graph(self.nodes, "main", inputs, outputs, self.initializers)
        return helper.make_model(graph, ir_version=8, opset_imports=[helper.make_opsetid("", opset)])


def tensor(name: str, shape: list[int | str | None] | None, kind: int = TensorProto.FLOAT) -> onnx.ValueInfoProto:
    """A graph input or output; strings in the shape are dynamic dims."""
    return helper.make_tensor_value_info(name, kind, shape)


def rename_output(builder: GraphBuilder, old: str, new: str) -> None:
    """Give the value `old` the name of a graph output."""
    for node in builder.nodes:
        for i, name in enumerate(node.output):
            if name == old:
                node.output[i] = new
        for i, name in enumerate(node.input):
            if name == old:
                node.input[i] = new


def save(model: onnx.ModelProto, path: Path) -> Path:
    onnx.save(model, path)
    return path


def cnn_model(seed: int = 0) -> onnx.ModelProto:
    """Conv/BatchNormalization/Relu blocks with Identity, Dropout and shape computations; dynamic batch."""
    b = GraphBuilder(seed)
    h = "x"
    channels = 3
    for width in (8, 16, 16):
        h = b.op("Conv", h, b.weight(width, channels, 3, 3), b.weight(width), pads=[1, 1, 1, 1], kernel_shape=[3, 3])
        h = b.op("BatchNormalization", h, *_batch_norm(b, width), epsilon=1e-5)
        h = b.op("Relu", b.op("Identity", h))
        channels = width
    h = b.op("MaxPool", h, kernel_shape=[2, 2], strides=[2, 2])
    h = b.op("Dropout", h)
    h = b.op("Add", h, b.op("Mul", b.floats(np.full((1, 16, 1, 1), 0.5)), b.floats(2.0)))
    h = b.op("Pad", h, b.ints(0, 0, 1, 1, 0, 0, 1, 1))
    h = b.op("Conv", h, b.weight(16, 16, 3, 3), kernel_shape=[3, 3])
    h = b.op("Mul", h, b.weight(1, 16, 1, 1))
    h = b.op("GlobalAveragePool", h)
    h = b.op("Reshape", h, _batch_and(b, h, 16))
    h = b.op("Cast", h, to=TensorProto.FLOAT)
    h = b.op("MatMul", h, b.weight(16, 10))
    h = b.op("Add", h, b.weight(10))
    h = b.op("Softmax", b.op("Identity", h), axis=-1)
    b.op("Add", h, b.floats(1.0))  # nobody uses it
    rename_output(b, h, "y")
    return b.model([tensor("x", ["batch", 3, 16, 16])], [tensor("y", ["batch", 10])])


def _batch_norm(b: GraphBuilder, width: int) -> list[str]:
    variance = b.initializer(b.random.uniform(0.5, 2.0, width).astype(np.float32))
    return [b.weight(width, scale=1.0), b.weight(width), b.weight(width), variance]


def _batch_and(b: GraphBuilder, value: str, *rest: int) -> str:
    """The shape [size of dim 0 of `value`, *rest], computed as torch's exporter does."""
    batch = b.op("Gather", b.op("Shape", value), b.const(0, np.int64), axis=0)
    parts = [b.op("Unsqueeze", batch, b.ints(0)), *(b.ints(n) for n in rest)]
    return b.op("Concat", *parts, axis=0)


def make_cnn(path: Path) -> Path:
    return save(cnn_model(), path)


def make_tiny(path: Path) -> Path:
    """Write a model of six nodes with the interface of `cnn_model`, for runs that are not about the model."""
    b = GraphBuilder(0)
    h = b.op("Relu", b.op("Conv", "x", b.weight(8, 3, 3, 3), kernel_shape=[3, 3]))
    h = b.op("Flatten", b.op("GlobalAveragePool", h))
    h = b.op("Softmax", b.op("MatMul", h, b.weight(8, 10)), axis=-1)
    rename_output(b, h, "y")
    return save(b.model([tensor("x", ["batch", 3, 16, 16])], [tensor("y", ["batch", 10])]), path)


TFM_VOCABULARY, TFM_WIDTH, TFM_HEADS = 64, 32, 4


def tfm_model(layers: int = 5, seed: int = 1) -> onnx.ModelProto:
    """A masked transformer encoder with dynamic batch and length, several hundred nodes of which half are noise."""
    b = GraphBuilder(seed)
    h = b.op("Gather", b.weight(TFM_VOCABULARY, TFM_WIDTH), "ids", axis=0)
    h = b.op("Add", h, _positions(b))
    mask = _attention_mask(b)
    for _ in range(layers):
        h = _layer_norm(b, b.op("Add", h, _attention(b, h, mask)))
        h = _layer_norm(b, b.op("Add", h, _feed_forward(b, h)))
    h = b.op("Dropout", b.op("Identity", h))
    rename_output(b, h, "hidden")
    inputs = [
        tensor("ids", ["batch", "length"], TensorProto.INT64),
        tensor("mask", ["batch", "length"], TensorProto.INT64),
    ]
    return b.model(inputs, [tensor("hidden", ["batch", "length", TFM_WIDTH])])


def _dim(b: GraphBuilder, value: str, axis: int) -> str:
    """One dimension of a value, as a 1-element tensor."""
    scalar = b.op("Gather", b.op("Shape", value), b.const(axis, np.int64), axis=0)
    return b.op("Unsqueeze", scalar, b.ints(0))


def _positions(b: GraphBuilder) -> str:
    """The first `length` rows of the position table."""
    end = b.op("Cast", _dim(b, "ids", 1), to=TensorProto.INT64)
    table = b.op("Slice", b.weight(128, TFM_WIDTH), b.ints(0), end, b.ints(0), b.ints(1))
    return b.op("Unsqueeze", table, b.ints(0))


def _attention_mask(b: GraphBuilder) -> str:
    """[batch, 1, 1, length], true where nothing may be seen."""
    mask = b.op("Unsqueeze", b.op("Unsqueeze", "mask", b.ints(1)), b.ints(2))
    mask = b.op("Cast", b.op("Cast", mask, to=TensorProto.FLOAT), to=TensorProto.FLOAT)
    return b.op("Cast", b.op("Sub", b.floats(1.0), mask), to=TensorProto.BOOL)


def _linear(b: GraphBuilder, h: str, wide: int, out: int) -> str:
    return b.op("Add", b.weight(out), b.op("MatMul", h, b.weight(wide, out)))


def _heads(b: GraphBuilder, h: str, perm: list[int]) -> str:
    size = TFM_WIDTH // TFM_HEADS
    shape = b.op("Concat", _dim(b, h, 0), _dim(b, h, 1), b.ints(TFM_HEADS), b.ints(size), axis=0)
    return b.op("Transpose", b.op("Reshape", h, shape), perm=perm)


def _attention(b: GraphBuilder, h: str, mask: str) -> str:
    query = _heads(b, _linear(b, h, TFM_WIDTH, TFM_WIDTH), [0, 2, 1, 3])
    key = _heads(b, _linear(b, h, TFM_WIDTH, TFM_WIDTH), [0, 2, 3, 1])
    value = _heads(b, _linear(b, h, TFM_WIDTH, TFM_WIDTH), [0, 2, 1, 3])
    root = b.op("Sqrt", b.op("Cast", b.const(TFM_WIDTH // TFM_HEADS, np.int64), to=TensorProto.FLOAT))
    scores = b.op("Div", b.op("MatMul", query, key), root)
    scores = b.op("Where", mask, b.op("Cast", b.floats(-1e4), to=TensorProto.FLOAT), scores)
    weights = b.op("Dropout", b.op("Softmax", scores, axis=-1))
    mixed = b.op("Transpose", b.op("MatMul", weights, value), perm=[0, 2, 1, 3])
    shape = b.op("Concat", _dim(b, mixed, 0), _dim(b, mixed, 1), b.ints(TFM_WIDTH), axis=0)
    return _linear(b, b.op("Reshape", mixed, shape), TFM_WIDTH, TFM_WIDTH)


def _feed_forward(b: GraphBuilder, h: str) -> str:
    h = _linear(b, h, TFM_WIDTH, 4 * TFM_WIDTH)
    erf = b.op("Erf", b.op("Div", h, b.floats(np.sqrt(2.0))))
    h = b.op("Mul", b.op("Mul", h, b.op("Add", erf, b.floats(1.0))), b.floats(0.5))
    return _linear(b, h, 4 * TFM_WIDTH, TFM_WIDTH)


def _layer_norm(b: GraphBuilder, h: str) -> str:
    centered = b.op("Sub", h, b.op("ReduceMean", h, axes=[-1]))
    squares = b.op("Pow", b.op("Cast", centered, to=TensorProto.FLOAT), b.floats(2.0))
    variance = b.op("Add", b.op("ReduceMean", squares, axes=[-1]), b.floats(1e-5))
    normal = b.op("Div", centered, b.op("Sqrt", variance))
    return b.op("Add", b.op("Mul", normal, b.weight(TFM_WIDTH, scale=1.0)), b.weight(TFM_WIDTH))


def make_tfm(path: Path) -> Path:
    return save(tfm_model(), path)


def ctrl_model() -> onnx.ModelProto:
    """If and Loop whose bodies read values of the outer graph; one If with a constant condition."""
    b = GraphBuilder(2)
    scale = b.op("Mul", b.floats(2.0), b.floats(1.5))
    h = b.op("Identity", b.op("Mul", "x", scale))
    total = b.op("ReduceSum", h, keepdims=0)
    h = b.op(
        "If",
        b.op("Greater", total, b.floats(0.0)),
        then_branch=_branch("then", "Add", h),
        else_branch=_branch("else", "Sub", h),
    )
    always = b.op("Not", b.const(False, np.bool_))
    h = b.op("If", always, then_branch=_branch("on", "Mul", h), else_branch=_branch("off", "Div", h))
    h = b.op("Loop", b.const(3, np.int64), b.const(True, np.bool_), h, body=_loop_body("x"))
    rename_output(b, h, "y")
    return b.model([tensor("x", ["n", 4])], [tensor("y", ["n", 4])])


def _branch(name: str, op_type: str, outer: str) -> onnx.GraphProto:
    """`outer op (1 + 1)`, with the sum still to fold."""
    b = GraphBuilder(prefix=f"{name}_")
    h = b.op("Identity", b.op(op_type, outer, b.op("Add", b.floats(1.0), b.floats(1.0))))
    return helper.make_graph(b.nodes, name, [], [tensor(h, None)])


def _loop_body(outer: str) -> onnx.GraphProto:
    """carried = carried * 0.5 + outer, three times."""
    b = GraphBuilder(prefix="body_")
    go_on = b.op("Identity", "body_go")
    h = b.op("Add", b.op("Mul", "body_carried", b.op("Div", b.floats(1.0), b.floats(2.0))), b.op("Identity", outer))
    inputs = [
        tensor("body_i", [], TensorProto.INT64),
        tensor("body_go", [], TensorProto.BOOL),
        tensor("body_carried", None),
    ]
    return helper.make_graph(b.nodes, "body", inputs, [tensor(go_on, [], TensorProto.BOOL), tensor(h, None)])


def make_ctrl(path: Path) -> Path:
    return save(ctrl_model(), path)


FUNCTION_DOMAIN = "local"


def func_model() -> onnx.ModelProto:
    """Local functions: one calls another, one takes an attribute by reference; four nodes in the main graph."""
    b = GraphBuilder(3)
    weight, bias = b.weight(8, 8), b.weight(8)
    nodes = [
        helper.make_node("Block", ["x", weight, bias], ["h1"], name="block_1", domain=FUNCTION_DOMAIN, slope=0.1),
        helper.make_node("Block", ["h1", weight, bias], ["h2"], name="block_2", domain=FUNCTION_DOMAIN, slope=0.2),
        helper.make_node("Identity", ["h2"], ["h3"], name="same"),
        helper.make_node("Linear", ["h3", weight, bias], ["y"], name="head", domain=FUNCTION_DOMAIN),
    ]
    graph = helper.make_graph(nodes, "main", [tensor("x", ["n", 8])], [tensor("y", ["n", 8])], b.initializers)
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid(FUNCTION_DOMAIN, 1)]
    return helper.make_model(
        graph, ir_version=8, opset_imports=opsets, functions=[_linear_function(), _block_function()]
    )


def _linear_function() -> onnx.FunctionProto:
    nodes = [
        helper.make_node("MatMul", ["a", "w"], ["aw"], name="matmul"),
        helper.make_node("Add", ["aw", "b"], ["z"], name="add"),
    ]
    return helper.make_function(FUNCTION_DOMAIN, "Linear", ["a", "w", "b"], ["z"], nodes, [helper.make_opsetid("", 17)])


def _block_function() -> onnx.FunctionProto:
    leaky = helper.make_node("LeakyRelu", ["t"], ["u"], name="leaky")
    reference = onnx.AttributeProto(name="alpha", ref_attr_name="slope", type=onnx.AttributeProto.FLOAT)
    leaky.attribute.append(reference)
    half = helper.make_node(
        "Constant", [], ["half"], name="half", value=numpy_helper.from_array(np.array(0.5, np.float32))
    )
    nodes = [
        helper.make_node("Linear", ["a", "w", "b"], ["t"], name="linear", domain=FUNCTION_DOMAIN),
        leaky,
        half,
        helper.make_node("Add", ["half", "half"], ["one"], name="one"),
        helper.make_node("Mul", ["u", "one"], ["v"], name="scale"),
        helper.make_node("Identity", ["v"], ["z"], name="same"),
    ]
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid(FUNCTION_DOMAIN, 1)]
    return helper.make_function(FUNCTION_DOMAIN, "Block", ["a", "w", "b"], ["z"], nodes, opsets, ["slope"])


def make_func(path: Path) -> Path:
    return save(func_model(), path)


def make_ext(path: Path, width: int = 256) -> Path:
    """Write a model with weights in external data next to it, `<name>.bin`, 4 * 3 * width * width bytes."""
    b = GraphBuilder(4)
    h = "x"
    for _ in range(3):
        h = b.op("Relu", b.op("Identity", b.op("MatMul", h, b.weight(width, width, scale=0.05))))
    rename_output(b, h, "y")
    model = b.model([tensor("x", ["n", width])], [tensor("y", ["n", width])])
    onnx.save(model, path, save_as_external_data=True, location=f"{path.name}.bin", size_threshold=1024)
    return path


def make_big(path: Path, layers: int = BIG_LAYERS, width: int = BIG_WIDTH) -> Path:
    """A model of `layers * width**2 * 4` bytes (2.4 GB) whose data file is written in pieces; for benchmarks."""
    b = GraphBuilder(5)
    h = "x"
    data = path.with_name(f"{path.name}.data")
    size = width * width * 4
    with data.open("wb") as file:
        for i in range(layers):
            b.initializers.append(_external(f"w_{i}", [width, width], data.name, i * size, size))
            h = b.op("Identity", b.op("MatMul", h, f"w_{i}"))
            h = b.op("Relu", b.op("Add", h, b.op("Mul", b.floats(0.5), b.floats(float(i)))))
            block = (np.random.default_rng(i).standard_normal(2**20) * 0.01).astype(np.float32).tobytes()
            for start in range(0, size, len(block)):
                file.write(block[: size - start])
    rename_output(b, h, "y")
    return save(b.model([tensor("x", ["n", width])], [tensor("y", ["n", width])]), path)


def _external(name: str, dims: list[int], location: str, offset: int, length: int) -> onnx.TensorProto:
    proto = onnx.TensorProto(name=name, data_type=TensorProto.FLOAT, dims=dims, data_location=TensorProto.EXTERNAL)
    for key, value in (("location", location), ("offset", str(offset)), ("length", str(length))):
        proto.external_data.add(key=key, value=value)
    return proto


def sparse_model() -> onnx.ModelProto:
    """A sparse initializer of the main graph and a sparse Constant, both added to the input."""
    values = numpy_helper.from_array(np.array([1.5, -2.0], np.float32), "s")
    positions = numpy_helper.from_array(np.array([[0, 1], [2, 3]], np.int64), "s_indices")
    sparse = helper.make_sparse_tensor(values, positions, [3, 4])
    other = helper.make_sparse_tensor(
        numpy_helper.from_array(np.array([4.0], np.float32)), numpy_helper.from_array(np.array([5], np.int64)), [12]
    )
    other.dims[:] = [3, 4]
    nodes = [
        helper.make_node("Constant", [], ["c"], name="constant", sparse_value=other),
        helper.make_node("Add", ["x", "s"], ["h"], name="add"),
        helper.make_node("Mul", ["h", "c"], ["h2"], name="mul"),
        helper.make_node("Identity", ["h2"], ["y"], name="same"),
    ]
    graph = helper.make_graph(nodes, "main", [tensor("x", [3, 4])], [tensor("y", [3, 4])], sparse_initializer=[sparse])
    return helper.make_model(graph, ir_version=8, opset_imports=[helper.make_opsetid("", 17)])


def make_sparse(path: Path) -> Path:
    return save(sparse_model(), path)
