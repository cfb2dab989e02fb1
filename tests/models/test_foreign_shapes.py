"""Inferred types and shapes behind operators of ONNX Runtime and plugins, compared with those of real runs."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper

from ndld_flow.base.errors import ModelError
from ndld_flow.models.shape_inference import infer_shapes
from tests.support.decoders import STYLES, Array, Style, decoder_inputs, decoder_model
from tests.support.message_files import CheckMessage

_MS = "com.microsoft"
_F, _U8 = np.float32, np.uint8
_SCALE, _ZERO = np.array(0.1, _F), np.array(128, _U8)


def inferred(model: onnx.ModelProto) -> ir.Model:
    """Return a model with inferred shapes."""
    result = ir.from_proto(model)
    infer_shapes(result)
    return result


def compare_with_run(model: onnx.ModelProto, feeds: dict[str, Array]) -> dict[str, ir.Value]:
    """Run a model with every tensor as an output, and compare types, sizes and names of dimensions.

    Equal names, also those that inference invents, must be equal sizes. Returns the computed values by name.
    """
    typed = inferred(model)
    values = {value.name or "": value for node in typed.graph for value in node.outputs if value.name}
    every = onnx.ModelProto()
    every.CopyFrom(model)
    del every.graph.output[:]
    every.graph.output.extend(onnx.ValueInfoProto(name=name) for name in values)
    options = ort.SessionOptions()
    options.log_severity_level = 4
    arrays = dict(zip(values, ort.InferenceSession(every.SerializeToString(), options).run(None, feeds), strict=True))
    sizes: dict[str, int] = {}
    given = [(value, feeds[value.name or ""]) for value in typed.graph.inputs if value.name in feeds]
    for value, array in [*given, *((values[name], array) for name, array in arrays.items())]:
        if value.dtype is not None:
            assert value.dtype.numpy() == array.dtype, value.name
        if value.shape is None:
            continue
        assert len(value.shape) == array.ndim, (value.name, value.shape, array.shape)
        for dim, size in zip(value.shape, array.shape, strict=True):
            name = dim if isinstance(dim, int) else dim.value
            if name is not None:
                expected = name if isinstance(name, int) else sizes.setdefault(name, size)
                assert expected == size, (value.name, value.shape, array.shape)
    return values


@pytest.mark.representatives("group-False-True", "standard-True-True", "standard-False-True")
@pytest.mark.parametrize("quantized", [False, True])
@pytest.mark.parametrize("cache", [True, False])
@pytest.mark.parametrize("style", STYLES)
def test_every_tensor_of_decoders_has_its_real_type_and_shape(style: Style, cache: bool, quantized: bool) -> None:
    model = decoder_model(style, cache, quantized=quantized)
    past = None
    if cache:
        names = [info.name for info in model.graph.input if info.name.startswith("past")]
        heads = model.graph.input[-1].type.tensor_type.shape.dim[1].dim_value
        past = dict.fromkeys(names, np.zeros((1, heads, 5, 16), _F))
    tokens = np.arange(3).reshape(1, 3)
    values = compare_with_run(model, decoder_inputs(model, tokens, past))
    assert all(value.type is not None and value.shape is not None for value in values.values())


def _rand(*shape: int) -> Array:
    return np.random.default_rng(0).standard_normal(shape).astype(_F)


def _bytes(*shape: int) -> Array:
    return np.random.default_rng(0).integers(0, 255, shape).astype(_U8)


_CASES: dict[str, tuple[list[Any], int, dict[str, Any]]] = {
    "BiasGelu": ([_rand(2, 3, 8), _rand(8)], 1, {}),
    "FastGelu": ([_rand(2, 3, 8), _rand(8)], 1, {}),
    "Gelu": ([_rand(2, 3, 8)], 1, {}),
    "QuickGelu": ([_rand(2, 3, 8)], 1, {"alpha": 1.7}),
    "FusedMatMul": ([_rand(2, 5, 3), _rand(2, 5, 7)], 1, {"transA": 1}),
    "FusedGemm": ([_rand(5, 3), _rand(7, 5), _rand(7)], 1, {"transA": 1, "transB": 1, "activation": "Relu"}),
    "FusedConv": ([_rand(1, 3, 9, 7), _rand(4, 3, 3, 3)], 1, {"strides": [2, 2], "activation": "Relu"}),
    "SkipLayerNormalization": ([_rand(2, 3, 8), _rand(2, 3, 8), _rand(8), _rand(8), _rand(8)], 4, {}),
    "SkipSimplifiedLayerNormalization": ([_rand(2, 3, 8), _rand(2, 3, 8), _rand(8)], 4, {}),
    "EmbedLayerNormalization": (
        [np.ones((2, 3), np.int32), None, _rand(9, 8), _rand(6, 8), None, _rand(8), _rand(8), None],
        2,
        {},
    ),
    "Attention": ([_rand(2, 3, 8), _rand(8, 24), _rand(24)], 1, {"num_heads": 2}),
    "Attention with a cache": (
        [_rand(2, 3, 8), _rand(8, 24), _rand(24), None, _rand(2, 2, 2, 5, 4)],
        2,
        {"num_heads": 2, "unidirectional": 1},
    ),
    "MultiHeadAttention": ([_rand(2, 3, 8), _rand(2, 5, 8), _rand(2, 5, 12)], 1, {"num_heads": 2}),
    "MultiHeadAttention over a cache": (
        [_rand(2, 3, 8), _rand(2, 3, 8), _rand(2, 3, 8), None, None, None, _rand(2, 2, 5, 4), _rand(2, 2, 5, 4)],
        3,
        {"num_heads": 2},
    ),
    "DecoderMaskedMultiHeadAttention": (
        [
            _rand(2, 1, 8),
            _rand(2, 1, 8),
            _rand(2, 1, 8),
            None,
            None,
            _rand(2, 2, 6, 4),
            _rand(2, 2, 6, 4),
            np.array([3], np.int32),
        ],
        3,
        {"num_heads": 2, "past_present_share_buffer": 1},
    ),
    "RotaryEmbedding": ([_rand(2, 3, 8), np.array([[0, 1, 2]] * 2), _rand(9, 2), _rand(9, 2)], 1, {"num_heads": 2}),
    "MatMulNBits": (
        [_rand(2, 3, 32), _bytes(8, 1, 16), _rand(8)],
        1,
        {"K": 32, "N": 8, "bits": 4, "block_size": 32},
    ),
    "MatMulBnb4": (
        [_rand(2, 3, 32), _bytes(128), _rand(8)],
        1,
        {"K": 32, "N": 8, "block_size": 32, "quant_type": 1},
    ),
    "GatherBlockQuantized": (
        [_bytes(9, 16), np.array([[1, 2, 3]]), _rand(9, 1)],
        1,
        {"bits": 4, "block_size": 32, "quantize_axis": 1},
    ),
    "DynamicQuantizeMatMul": ([_rand(2, 3, 8), _bytes(8, 5), _SCALE], 1, {}),
    "MatMulIntegerToFloat": ([_bytes(2, 3, 8), _bytes(8, 5), _SCALE, _SCALE], 1, {}),
    "QAttention": (
        [_bytes(2, 3, 8), _bytes(8, 24), _rand(24), _SCALE, _SCALE, None, _ZERO, _ZERO],
        1,
        {"num_heads": 2},
    ),
    "QGemm": ([_bytes(3, 5), _SCALE, _ZERO, _bytes(5, 7), _SCALE, _ZERO, None, _SCALE, _ZERO], 1, {}),
    "QGemm to float": ([_bytes(3, 5), _SCALE, _ZERO, _bytes(5, 7), _SCALE, _ZERO], 1, {}),
    "QLinearAdd": ([_bytes(2, 1, 3), _SCALE, _ZERO, _bytes(4, 3), _SCALE, _ZERO, _SCALE, _ZERO], 1, {}),
    "QLinearMul": ([_bytes(2, 1, 3), _SCALE, _ZERO, _bytes(4, 3), _SCALE, _ZERO, _SCALE, _ZERO], 1, {}),
    "QLinearSigmoid": ([_bytes(2, 3), _SCALE, _ZERO, _SCALE, _ZERO], 1, {}),
    "QLinearLeakyRelu": ([_bytes(2, 3), _SCALE, _ZERO, _SCALE, _ZERO], 1, {}),
    "QLinearSoftmax": ([_bytes(2, 3), _SCALE, _ZERO, _SCALE, _ZERO], 1, {"axis": 1, "opset": 13}),
    "QLinearConcat": ([_SCALE, _ZERO, _bytes(2, 3), _SCALE, _ZERO, _bytes(2, 5), _SCALE, _ZERO], 1, {"axis": 1}),
    "QLinearAveragePool": (
        [_bytes(1, 3, 9, 7), _SCALE, _ZERO, _SCALE, _ZERO],
        1,
        {"kernel_shape": [3, 3], "strides": [2, 2], "ceil_mode": 1},
    ),
    "QLinearAveragePool, NHWC": (
        [_bytes(1, 9, 7, 3), _SCALE, _ZERO, _SCALE, _ZERO],
        1,
        {"kernel_shape": [3, 3], "strides": [2, 2], "channels_last": 1},
    ),
    "QLinearGlobalAveragePool": ([_bytes(1, 3, 9, 7), _SCALE, _ZERO, _SCALE, _ZERO], 1, {"channels_last": 0}),
    "QLinearGlobalAveragePool, NHWC": ([_bytes(1, 9, 7, 3), _SCALE, _ZERO, _SCALE, _ZERO], 1, {"channels_last": 1}),
    "QLinearConv": (
        [_bytes(1, 9, 7, 3), _SCALE, _ZERO, _bytes(4, 3, 3, 3), _SCALE, _ZERO, _SCALE, _ZERO],
        1,
        {"channels_last": 1, "strides": [2, 2]},
    ),
    "QLinearWhere": (
        [np.ones((2, 1), np.bool_), _bytes(3), _SCALE, _ZERO, _bytes(2, 3), _SCALE, _ZERO, _SCALE, _ZERO],
        1,
        {},
    ),
    "NhwcMaxPool": ([_bytes(1, 9, 7, 3)], 1, {"kernel_shape": [3, 3], "strides": [2, 2]}),
    "QuantizeLinear": ([_rand(2, 3), _SCALE, _ZERO], 1, {}),
    "DequantizeLinear": ([_bytes(2, 3), _SCALE, _ZERO], 1, {}),
    "Trilu": ([_rand(2, 3, 3)], 1, {"upper": 0}),
    "GridSample": ([_rand(1, 2, 5, 6), _rand(1, 3, 4, 2)], 1, {}),
    "CropAndResize": (
        [_rand(1, 2, 8, 8), np.array([[0, 0, 1, 1]] * 3, _F), np.zeros(3, np.int32), np.array([4, 5], np.int32)],
        1,
        {},
    ),
    "ExpandDims": ([_rand(2, 3), np.array(-1, np.int32)], 1, {}),
    "Range": ([np.array(1, _F), np.array(7, _F), np.array(2, _F)], 1, {}),
    "Pad": ([_rand(2, 3), np.array([0, 1, 2, 0])], 1, {}),
    "Unique": ([np.array([1, 2, 1, 3], _F)], 3, {}),
    "GatherND": ([_rand(2, 3, 4), np.array([[0, 1], [1, 0]])], 1, {}),
    "CDist": ([_rand(5, 3), _rand(7, 3)], 1, {}),
    "Inverse": ([_rand(2, 3, 3)], 1, {}),
    "MaxpoolWithMask": ([_rand(1, 1, 6, 6), np.ones((1, 1, 6, 6), np.int32)], 1, {"kernel_shape": [3, 3]}),
    "MurmurHash3": ([np.array([1, 2], np.int32)], 1, {}),
    "ConvTransposeWithDynamicPads": (
        [_rand(1, 3, 5, 4), _rand(3, 2, 3, 3), np.array([0, 0, 0, 0])],
        1,
        {"strides": [2, 2]},
    ),
}


@pytest.mark.representatives("Range-True", "Gelu-False", "QGemm-False")
@pytest.mark.parametrize("symbolic", [False, True])
@pytest.mark.parametrize("case", _CASES)
def test_inferred_shapes_of_each_operator_are_real(case: str, symbolic: bool) -> None:
    """With names instead of sizes for the first input's dimensions, too."""
    arrays, count, attributes = _CASES[case]
    op_type = case.split(maxsplit=1)[0].rstrip(",")
    names = ["" if array is None else f"i{index}" for index, array in enumerate(arrays)]
    feeds = {name: array for name, array in zip(names, arrays, strict=True) if name}
    inputs, weights = [], []
    for index, (name, array) in enumerate(feeds.items()):
        kind = helper.np_dtype_to_tensor_dtype(array.dtype)
        dims = [f"d{size}" for size in array.shape] if symbolic and index == 0 else list(array.shape)
        if index == 0 or array.ndim > 1:
            inputs.append(helper.make_tensor_value_info(name, kind, dims))
        else:
            weights.append(onnx.numpy_helper.from_array(array, name))
    feeds = {info.name: feeds[info.name] for info in inputs}
    outputs = [f"o{index}" for index in range(count)]
    if op_type in ("SkipLayerNormalization", "SkipSimplifiedLayerNormalization"):
        outputs[1] = outputs[2] = ""
    node = helper.make_node(op_type, names, outputs, domain=_MS, **attributes)
    declared = [onnx.ValueInfoProto(name=name) for name in outputs if name]
    graph = helper.make_graph([node], "g", inputs, declared, weights)
    imports = [helper.make_opsetid("", 17), helper.make_opsetid(_MS, 1)]
    values = compare_with_run(helper.make_model(graph, ir_version=8, opset_imports=imports), feeds)
    if case not in _UNKNOWN_TO_ONNXRUNTIME:
        assert all(value.shape is not None for value in values.values()) or symbolic


_UNKNOWN_TO_ONNXRUNTIME = {"CDist", "CropAndResize", "DecoderMaskedMultiHeadAttention", "Pad"}
"""Operators whose shapes it infers from nothing, or not from these inputs."""


def _model(
    nodes: list[onnx.NodeProto], inputs: dict[str, list[Any] | None], outputs: list[str], opset: int = 17
) -> onnx.ModelProto:
    given = [helper.make_tensor_value_info(name, TensorProto.FLOAT, dims) for name, dims in inputs.items()]
    graph = helper.make_graph(nodes, "g", given, [onnx.ValueInfoProto(name=name) for name in outputs])
    return helper.make_model(graph, ir_version=8, opset_imports=[helper.make_opsetid("", opset)])


def _types(model: ir.Model) -> dict[str, tuple[str, str]]:
    values = (value for graph in model.graphs() for node in graph for value in node.outputs)
    return {value.name or "": (str(value.dtype), str(value.shape)) for value in values}


def test_plugins_have_the_outputs_that_tensorrt_documents() -> None:
    """As GraphSurgeon writes them: in the default domain."""
    nodes = [
        helper.make_node("Relu", ["boxes"], ["b"]),
        helper.make_node("InstanceNormalization_TRT", ["scores", "w", "w"], ["s"]),
        helper.make_node("EfficientNMS_TRT", ["b", "s"], ["n", "ob", "os", "oc"], max_output_boxes=7),
        helper.make_node("BatchedNMSDynamic_TRT", ["b", "s"], ["n2", "ob2", "os2", "oc2"], keepTopK=5),
        helper.make_node("Unsqueeze", ["os", "axis"], ["y"]),
    ]
    inputs: dict[str, list[Any] | None] = {"boxes": ["batch", 9, 4], "scores": ["batch", 9, 3], "w": [3]}
    model = _model(nodes, inputs, ["n", "y"])
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.array([1]), "axis"))
    types = _types(inferred(model))
    assert types["n"] == ("INT32", "[batch,1]") and types["n2"] == ("INT32", "[batch,1]")
    assert types["ob"] == ("FLOAT", "[batch,7,4]") and types["ob2"] == ("FLOAT", "[batch,5,4]")
    assert types["oc"] == ("INT32", "[batch,7]") and types["oc2"] == ("FLOAT", "[batch,5]")
    assert types["s"] == ("FLOAT", "[batch,9,3]")
    assert types["y"] == ("FLOAT", "[batch,1,7]")


def test_an_unknown_operator_hides_only_what_depends_on_it() -> None:
    nodes = [
        helper.make_node("Gelu", ["x"], ["a"], domain=_MS),
        helper.make_node("Mystery", ["a"], ["m"], domain="acme"),
        helper.make_node("Enigma", ["a"], ["e"]),
        helper.make_node("Gelu", ["m"], ["b"], domain=_MS),
        helper.make_node("Gelu", ["a"], ["c"], domain=_MS),
        helper.make_node("Relu", ["c"], ["y"]),
    ]
    types = _types(inferred(_model(nodes, {"x": ["n", 4]}, ["y"])))
    assert types["y"] == types["c"] == types["a"] == ("FLOAT", "[n,4]")
    assert types["m"] == types["b"] == types["e"] == ("None", "None")


def test_recorded_types_of_an_unknown_operator_are_used() -> None:
    nodes = [
        helper.make_node("Mystery", ["x"], ["m"], domain="acme"),
        helper.make_node("Gelu", ["m"], ["y"], domain=_MS),
    ]
    model = _model(nodes, {"x": ["n", 4]}, ["y"])
    model.graph.value_info.append(helper.make_tensor_value_info("m", TensorProto.FLOAT16, ["n", 8]))
    assert _types(inferred(model))["y"] == ("FLOAT16", "[n,8]")


def test_a_malformed_operator_ends_nothing_and_hides_only_itself() -> None:
    nodes = [
        helper.make_node("MatMulNBits", ["x"], ["a"], domain=_MS),
        helper.make_node("Gelu", ["x"], ["y"], domain=_MS),
    ]
    types = _types(inferred(_model(nodes, {"x": ["n", 4]}, ["a", "y"])))
    assert types == {"a": ("None", "None"), "y": ("FLOAT", "[n,4]")}


def test_a_scalar_is_not_taken_for_an_unknown_rank() -> None:
    nodes = [helper.make_node("Gelu", [name], [f"{name}_out"], domain=_MS) for name in ("x", "z")]
    types = _types(inferred(_model(nodes, {"x": None, "z": []}, ["x_out", "z_out"])))
    assert types == {"x_out": ("FLOAT", "None"), "z_out": ("FLOAT", "[]")}


def test_operators_in_branches_see_what_is_around_them() -> None:
    branches = [
        helper.make_graph(
            [helper.make_node(op_type, ["w"], [f"{op_type}_out"], domain=_MS)],
            op_type,
            [],
            [onnx.ValueInfoProto(name=f"{op_type}_out")],
        )
        for op_type in ("Gelu", "QuickGelu")
    ]
    nodes = [
        helper.make_node("Gelu", ["x"], ["w"], domain=_MS),
        helper.make_node("ReduceMax", ["x"], ["m"], keepdims=0),
        helper.make_node("Cast", ["m"], ["c"], to=TensorProto.BOOL),
        helper.make_node("If", ["c"], ["y"], then_branch=branches[0], else_branch=branches[1]),
        helper.make_node("FastGelu", ["y"], ["z"], domain=_MS),
    ]
    types = _types(inferred(_model(nodes, {"x": ["n", 4]}, ["z"])))
    assert types["Gelu_out"] == types["QuickGelu_out"] == types["y"] == types["z"] == ("FLOAT", "[n,4]")


def test_shapes_computed_from_shapes_are_known_behind_operators_of_onnxruntime() -> None:
    """onnx follows the values of shape tensors, ONNX Runtime the operators: each continues from the other."""
    nodes = [
        helper.make_node("Gelu", ["x"], ["a"], domain=_MS),
        helper.make_node("Shape", ["a"], ["s"]),
        helper.make_node("Gather", ["s", "zero"], ["n"], axis=0),
        helper.make_node("Concat", ["n", "rest"], ["target"], axis=0),
        helper.make_node("Reshape", ["a", "target"], ["r"]),
        helper.make_node("FusedMatMul", ["r", "r"], ["y"], domain=_MS, transB=1),
    ]
    model = _model(nodes, {"x": ["n", 6]}, ["y"])
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.array([0]), "zero"))
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.array([2, 3]), "rest"))
    assert _types(inferred(model))["y"] == ("FLOAT", "[n,2,2]")


def test_outputs_keep_declared_names_where_nothing_is_inferred() -> None:
    model = inferred(decoder_model("group"))
    present = next(value for value in model.graph.outputs if value.name == "present.0.key")
    assert str(present.shape) == "[batch,2,total,16]"


@pytest.mark.parametrize("parts", [("window",), ("length",), ("window", "length")])
@pytest.mark.parametrize("onesided", [None, 0, 1])
def test_stft_has_half_of_the_frequencies(parts: tuple[str, ...], onesided: int | None) -> None:
    """onnx's own rule counts all of them, and then rejects preprocessors of speech whose input has a fixed size."""
    names = ["x", "hop", *(name if name in parts else "" for name in ("window", "length"))]
    attributes: dict[str, Any] = {} if onesided is None else {"onesided": onesided}
    nodes = [
        helper.make_node("STFT", names, ["image"], **attributes),
        helper.make_node("ReduceSumSquare", ["image"], ["power"], axes=[-1], keepdims=0),
        helper.make_node("Shape", ["power"], ["sizes"]),
    ]
    weights = [
        onnx.numpy_helper.from_array(array, name)
        for name, array in (
            ("hop", np.array(160)),
            ("window", np.ones(400, _F)),
            ("length", np.array(400)),
        )
        if name in names
    ]
    graph = helper.make_graph(
        nodes,
        "main",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 1600])],
        [helper.make_tensor_value_info("sizes", TensorProto.INT64, [3])],
        weights,
    )
    model = helper.make_model(graph, ir_version=8, opset_imports=[helper.make_opsetid("", 17)])
    values = compare_with_run(model, {"x": np.zeros((1, 1600), _F)})
    frequencies = 400 if onesided == 0 else 201
    assert values["image"].shape == ir.Shape([1, 8, frequencies, 2])


def test_computing_on_a_large_table_is_no_contradiction() -> None:
    """Inference never reads large weights, and onnx refuses to propagate data through one that it cannot read."""
    table = np.arange(400)
    nodes = [helper.make_node("Sub", ["table", "one"], ["less"]), helper.make_node("Gather", ["less", "x"], ["y"])]
    values = [helper.make_tensor_value_info(name, TensorProto.INT64, [3]) for name in "xy"]
    weights = [onnx.numpy_helper.from_array(array, name) for array, name in ((table, "table"), (np.array(1), "one"))]
    graph = helper.make_graph(nodes, "main", values[:1], values[1:], weights)
    model = ir.from_proto(helper.make_model(graph, ir_version=8, opset_imports=[helper.make_opsetid("", 17)]))
    infer_shapes(model, strict=True)
    assert next(iter(model.graph)).outputs[0].shape == ir.Shape([400])


@pytest.mark.parametrize(("width", "contradicts"), [(80, False), (79, True)])
def test_broadcasting_of_integer_tables_is_no_contradiction(
    width: int, contradicts: bool, check_message: CheckMessage
) -> None:
    """onnx cannot propagate data through it and rejects the ranks; real contradictions are still found."""
    nodes = [
        helper.make_node("Add", ["rows", "columns"], ["table"]),
        helper.make_node("Cast", ["table"], ["floats"], to=TensorProto.FLOAT),
        helper.make_node("MatMul", ["x", "floats"], ["y"]),
    ]
    x, y = (
        helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, size]) for name, size in (("x", width), ("y", 6))
    )
    weights = [
        onnx.numpy_helper.from_array(np.arange(80).reshape(80, 1), "rows"),
        onnx.numpy_helper.from_array(np.arange(6), "columns"),
    ]
    graph = helper.make_graph(nodes, "main", [x], [y], weights)
    model = ir.from_proto(helper.make_model(graph, ir_version=8, opset_imports=[helper.make_opsetid("", 17)]))
    if contradicts:
        with pytest.raises(ModelError) as caught:
            infer_shapes(model, strict=True)
        check_message(caught.value)
    else:
        infer_shapes(model, strict=True)
        assert next(iter(model.graph)).outputs[0].shape == ir.Shape([80, 6])
