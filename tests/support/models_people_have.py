"""Models of the kinds that exporters, builders and runtimes produce, and that onnx's checker does not always accept."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from ndld_flow.models.files import MAX_IR_VERSION

Runtime = Literal["onnxruntime", "tensorrt", "none"]
MICROSOFT = "com.microsoft"
HIDDEN, HEADS, PAST = 32, 2, 6
"""Size of a token's vector, heads of attention, and tokens in its cache."""


@dataclass(frozen=True)
class PracticalModel:
    """A model as a file, with values for its inputs."""

    path: Path
    feeds: dict[str, Any]
    runtime: Runtime = "onnxruntime"
    """The runtime that loads it; `none` for a model without its weights."""


Make = Callable[[Path], PracticalModel]


def practical_models(folder: Path, names: Sequence[str] = ()) -> Iterator[tuple[str, PracticalModel]]:
    """Write the models, or those of the given names, each to a folder of its own; yield the name and the model."""
    for name in names or KINDS:
        own = folder / name
        own.mkdir()
        yield name, KINDS[name](own)


def _random(*shape: int) -> Any:
    generator = np.random.default_rng(sum(shape))
    return generator.standard_normal(shape).astype(np.float32) * np.float32(0.3)


def _node(operator: str, inputs: str, outputs: str, domain: str = "", **attributes: Any) -> onnx.NodeProto:
    """Return a node; `-` is an omitted input or output."""
    read, written = (["" if name == "-" else name for name in names.split()] for names in (inputs, outputs))
    return helper.make_node(operator, read, written, name=f"{operator}_{written[0]}", domain=domain, **attributes)


def _value(name: str, shape: Sequence[Any] | None, dtype: int = TensorProto.FLOAT) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, dtype, shape)


def _model(
    nodes: Sequence[onnx.NodeProto],
    inputs: Sequence[onnx.ValueInfoProto],
    outputs: Sequence[onnx.ValueInfoProto],
    weights: Mapping[str, Any],
    opset: int = 17,
) -> onnx.ModelProto:
    tensors = [numpy_helper.from_array(np.asarray(value), name) for name, value in weights.items()]
    graph = helper.make_graph(list(nodes), "graph", list(inputs), list(outputs), tensors)
    domains = {node.domain for node in nodes} - {""}
    imports = [helper.make_opsetid("", opset), *(helper.make_opsetid(domain, 1) for domain in sorted(domains))]
    return helper.make_model(graph, opset_imports=imports, ir_version=10 if opset < 23 else min(11, MAX_IR_VERSION))


def _saved(model: onnx.ModelProto, folder: Path, runtime: Runtime = "onnxruntime", **feeds: Any) -> PracticalModel:
    path = folder / "model.onnx"
    path.write_bytes(model.SerializeToString())
    return PracticalModel(path, feeds, runtime)


def _dense(folder: Path, change: Callable[[onnx.ModelProto], None], runtime: Runtime = "onnxruntime") -> PracticalModel:
    """Save MatMul and Relu after a change."""
    model = _model(
        [_node("MatMul", "x w", "a"), _node("Relu", "a", "y")],
        [_value("x", ["batch", 8, HIDDEN])],
        [_value("y", ["batch", 8, HIDDEN])],
        {"w": _random(HIDDEN, HIDDEN)},
    )
    change(model)
    return _saved(model, folder, runtime, x=_random(2, 8, HIDDEN))


def _simplified_layer_normalization(folder: Path) -> PracticalModel:
    """ONNX Runtime registers the operator in the default domain, and builders of language models write it there."""
    norm = _node("SimplifiedLayerNormalization", "x s", "n", axis=-1, epsilon=1e-5)
    model = _model(
        [norm, _node("MatMul", "n w", "y")],
        [_value("x", ["batch", 8, HIDDEN])],
        [_value("y", ["batch", 8, HIDDEN])],
        {"s": _random(HIDDEN), "w": _random(HIDDEN, HIDDEN)},
    )
    return _saved(model, folder, x=_random(2, 8, HIDDEN))


def _efficient_nms(folder: Path) -> PracticalModel:
    """A detector with TensorRT's plugin, as GraphSurgeon writes it: in the default domain."""
    attributes: dict[str, Any] = {
        "score_activation": 0,
        "score_threshold": 0.25,
        "background_class": -1,
        "box_coding": 1,
        "iou_threshold": 0.5,
        "max_output_boxes": 100,
    }
    nodes = [
        _node("Conv", "img w1", "c", kernel_shape=[3, 3], pads=[1, 1, 1, 1], strides=[8, 8]),
        _node("Relu", "c", "r"),
        _node("Reshape", "r shape", "f"),
        _node("Slice", "f i0 i4 axis", "boxes"),
        _node("Slice", "f i4 i9 axis", "scores"),
        _node("EfficientNMS_TRT", "boxes scores", "num boxes_o scores_o classes_o", plugin_version="1", **attributes),
    ]
    outputs = [
        _value("num", [1, 1], TensorProto.INT32),
        _value("boxes_o", [1, 100, 4]),
        _value("scores_o", [1, 100]),
        _value("classes_o", [1, 100], TensorProto.INT32),
    ]
    integers = {"shape": [1, 64, 9], "i0": [0], "i4": [4], "i9": [9], "axis": [2]}
    weights = {"w1": _random(9, 3, 3, 3)} | {name: np.array(value, np.int64) for name, value in integers.items()}
    return _saved(_model(nodes, [_value("img", [1, 3, 64, 64])], outputs, weights), folder, "tensorrt")


def _output_without_shape(folder: Path) -> PracticalModel:
    def change(model: onnx.ModelProto) -> None:
        model.graph.output[0].type.tensor_type.ClearField("shape")
        model.graph.value_info.append(_value("a", None))

    return _dense(folder, change)


def _input_without_shape(folder: Path) -> PracticalModel:
    return _dense(folder, lambda model: model.graph.input[0].type.tensor_type.ClearField("shape"))


def _graph_without_name(folder: Path) -> PracticalModel:
    return _dense(folder, lambda model: model.graph.ClearField("name"))


def _without_opset_imports(folder: Path) -> PracticalModel:
    return _dense(folder, lambda model: model.ClearField("opset_import"))


def _contrib_without_import(folder: Path) -> PracticalModel:
    def change(model: onnx.ModelProto) -> None:
        model.graph.node[1].op_type, model.graph.node[1].domain = "Gelu", MICROSOFT

    return _dense(folder, change)


def _unnamed_nodes(folder: Path) -> PracticalModel:
    def change(model: onnx.ModelProto) -> None:
        for node in model.graph.node:
            node.ClearField("name")

    return _dense(folder, change)


def _question_marks(folder: Path) -> PracticalModel:
    """Unlike dimensions share the name `?`, as Paddle's exporters write them."""
    model = _model(
        [_node("Conv", "x w", "y", kernel_shape=[3, 3], pads=[1, 1, 1, 1])],
        [_value("x", ["?", 3, "?", "?"])],
        [_value("y", ["?", 4, "?", "?"])],
        {"w": _random(4, 3, 3, 3)},
    )
    return _saved(model, folder, x=_random(1, 3, 16, 24))


def _weights_missing(folder: Path) -> PracticalModel:
    model = _dense(folder, lambda _: None)
    onnx.save(onnx.load(model.path), model.path, save_as_external_data=True, location="gone.bin", size_threshold=0)
    (folder / "gone.bin").unlink()
    return PracticalModel(model.path, model.feeds, "none")


def _weights_stripped(folder: Path) -> PracticalModel:
    return _dense(folder, lambda model: model.graph.initializer[0].ClearField("raw_data"), "none")


def _linked_weights(folder: Path) -> PracticalModel:
    """A model and its weights are links into a cache, in the layout of Hugging Face's hub."""
    model = _dense(folder, lambda _: None)
    cache = folder / "hub/models--owner--name"
    blobs, snapshot = cache / "blobs", cache / "snapshots" / ("0123456789abcdef" * 3)[:40]
    blobs.mkdir(parents=True)
    snapshot.mkdir(parents=True)
    location = "model.onnx_data"
    onnx.save(onnx.load(model.path), blobs / "m", save_as_external_data=True, location=location, size_threshold=0)
    (blobs / location).rename(blobs / "d")
    for name, blob in (("model.onnx", "m"), (location, "d")):
        (snapshot / name).symlink_to(Path("../../blobs") / blob)
    return PracticalModel(snapshot / "model.onnx", model.feeds)


def _linear(folder: Path, dtype: Any = np.float32) -> PracticalModel:
    """Two layers as PyTorch writes `nn.Linear`."""
    weights = {
        name: _random(*shape).astype(dtype) for name, shape in {"w": (64, HIDDEN), "b": (64,), "v": (8, 64)}.items()
    }
    kind = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    model = _model(
        [_node("Gemm", "x w b", "a", transB=1), _node("Relu", "a", "r"), _node("Gemm", "r v", "y", transB=1)],
        [_value("x", ["n", HIDDEN], kind)],
        [_value("y", ["n", 8], kind)],
        weights,
    )
    return _saved(model, folder, x=_random(4, HIDDEN).astype(dtype))


def _convolutions(folder: Path, dtype: Any = np.float32) -> PracticalModel:
    kind = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    conv: dict[str, Any] = {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1]}
    model = _model(
        [
            _node("Conv", "x w b", "c", **conv),
            _node("Relu", "c", "r"),
            _node("Conv", "r v", "d", **conv),
            _node("GlobalAveragePool", "d", "g"),
            _node("Flatten", "g", "y"),
        ],
        [_value("x", ["n", 3, 16, 16], kind)],
        [_value("y", ["n", 8], kind)],
        {
            "w": _random(16, 3, 3, 3).astype(dtype),
            "b": _random(16).astype(dtype),
            "v": _random(8, 16, 3, 3).astype(dtype),
        },
    )
    return _saved(model, folder, x=_random(1, 3, 16, 16).astype(dtype))


def _half_linear(folder: Path) -> PracticalModel:
    return _linear(folder, np.float16)


def _half_convolutions(folder: Path) -> PracticalModel:
    return _convolutions(folder, np.float16)


def _half_inside(folder: Path) -> PracticalModel:
    """FP16 between Casts, as `convert_fp16` writes it."""
    model = _model(
        [
            _node("Cast", "x", "xh", to=TensorProto.FLOAT16),
            _node("Gemm", "xh w b", "a", transB=1),
            _node("Relu", "a", "r"),
            _node("MatMul", "r v", "yh"),
            _node("Cast", "yh", "y", to=TensorProto.FLOAT),
        ],
        [_value("x", ["n", HIDDEN])],
        [_value("y", ["n", 8])],
        {
            name: _random(*shape).astype(np.float16)
            for name, shape in {"w": (64, HIDDEN), "b": (64,), "v": (64, 8)}.items()
        },
    )
    return _saved(model, folder, x=_random(4, HIDDEN))


def _sparse(folder: Path) -> PracticalModel:
    def change(model: onnx.ModelProto) -> None:
        dense = numpy_helper.to_array(model.graph.initializer[0])
        places = np.arange(0, dense.size, 7)
        values = numpy_helper.from_array(dense.reshape(-1)[places], "w")
        indices = numpy_helper.from_array(places.astype(np.int64), "w_indices")
        del model.graph.initializer[:]
        model.graph.sparse_initializer.append(helper.make_sparse_tensor(values, indices, list(dense.shape)))

    return _dense(folder, change)


def _recurrent(folder: Path) -> PracticalModel:
    model = _model(
        [
            _node("LSTM", "x w r b - h c", "ys hn cn", hidden_size=HIDDEN),
            _node("Squeeze", "ys axis", "s"),
            _node("GRU", "s gw gr", "gs y", hidden_size=HIDDEN),
        ],
        [_value("x", ["time", 1, 16]), _value("h", [1, 1, HIDDEN]), _value("c", [1, 1, HIDDEN])],
        [_value("y", [1, 1, HIDDEN]), _value("hn", [1, 1, HIDDEN]), _value("cn", [1, 1, HIDDEN])],
        {
            "w": _random(1, 4 * HIDDEN, 16),
            "r": _random(1, 4 * HIDDEN, HIDDEN),
            "b": _random(1, 8 * HIDDEN),
            "axis": np.array([1], np.int64),
            "gw": _random(1, 3 * HIDDEN, HIDDEN),
            "gr": _random(1, 3 * HIDDEN, HIDDEN),
        },
    )
    state = _random(1, 1, HIDDEN)
    return _saved(model, folder, x=_random(5, 1, 16), h=state, c=state)


def _cache(name: str) -> onnx.ValueInfoProto:
    return _value(name, ["batch", HEADS, f"{name}_length", HIDDEN // HEADS])


def _past() -> dict[str, Any]:
    return {name: _random(1, HEADS, PAST, HIDDEN // HEADS) for name in ("past_key", "past_value")}


def _projections() -> dict[str, Any]:
    return {name: _random(HIDDEN, HIDDEN) for name in ("wq", "wk", "wv", "wo")}


def _decoder(folder: Path) -> PracticalModel:
    """A block of a language model in standard operators: RMSNormalization and Attention with a cache."""
    nodes = [
        _node("RMSNormalization", "x scale", "n", axis=-1, epsilon=1e-5),
        *(_node("MatMul", f"n w{part}", part) for part in "qkv"),
        _node(
            "Attention",
            "q k v - past_key past_value",
            "a present_key present_value",
            q_num_heads=HEADS,
            kv_num_heads=HEADS,
            is_causal=1,
        ),
        _node("MatMul", "a wo", "o"),
        _node("Add", "x o", "y"),
    ]
    model = _model(
        nodes,
        [_value("x", ["batch", "length", HIDDEN]), _cache("past_key"), _cache("past_value")],
        [_value("y", ["batch", "length", HIDDEN]), _cache("present_key"), _cache("present_value")],
        {"scale": _random(HIDDEN) + 1} | _projections(),
        opset=23,
    )
    return _saved(model, folder, x=_random(1, 3, HIDDEN), **_past())


def _quantized_decoder(folder: Path) -> PracticalModel:
    """A block as builders of language models write it: GroupQueryAttention, MatMulNBits, and fused norms."""
    block = 32
    packed = np.random.default_rng(1).integers(0, 256, (HIDDEN, HIDDEN // block, block // 2), np.uint8)
    nbits = {"K": HIDDEN, "N": HIDDEN, "bits": 4, "block_size": block}
    angles = np.outer(np.arange(64), 1 / 10000 ** (np.arange(0, HIDDEN // HEADS, 2) / (HIDDEN // HEADS)))
    nodes = [
        _node("SimplifiedLayerNormalization", "x scale", "n", axis=-1, epsilon=1e-5),
        *(_node("MatMulNBits", f"n packed scales_{part}", part, MICROSOFT, **nbits) for part in "qkv"),
        _node(
            "GroupQueryAttention",
            "q k v past_key past_value seqlens total cos sin",
            "a present_key present_value",
            MICROSOFT,
            num_heads=HEADS,
            kv_num_heads=HEADS,
            do_rotary=1,
        ),
        _node("MatMul", "a wo", "o"),
        _node("SkipSimplifiedLayerNormalization", "x o scale", "y - - residual", MICROSOFT, epsilon=1e-5),
        _node("MatMul", "y head", "logits"),
    ]
    model = _model(
        nodes,
        [
            _value("x", ["batch", "length", HIDDEN]),
            _cache("past_key"),
            _cache("past_value"),
            _value("seqlens", ["batch"], TensorProto.INT32),
            _value("total", [], TensorProto.INT32),
        ],
        [
            _value("logits", ["batch", "length", 48]),
            _value("residual", ["batch", "length", HIDDEN]),
            _cache("present_key"),
            _cache("present_value"),
        ],
        {
            "packed": packed,
            "scale": _random(HIDDEN) + 1,
            "wo": _random(HIDDEN, HIDDEN),
            "head": _random(HIDDEN, 48),
            "cos": np.cos(angles).astype(np.float32),
            "sin": np.sin(angles).astype(np.float32),
        }
        | {f"scales_{part}": np.abs(_random(HIDDEN * HIDDEN // block)) * np.float32(0.1) for part in "qkv"},
    )
    length = np.array([PAST], np.int32)
    total = np.array(PAST + 1, np.int32)
    return _saved(model, folder, x=_random(1, 1, HIDDEN), seqlens=length, total=total, **_past())


def _rotary(folder: Path) -> PracticalModel:
    """The rotary embedding of opset 23 between MatMuls, behind which every shape depends on its inference."""
    size = HIDDEN // HEADS
    weights = {
        "w": _random(HIDDEN, HIDDEN),
        "v": _random(HIDDEN, 16),
        "cos": _random(64, size // 2),
        "sin": _random(64, size // 2),
    }
    model = _model(
        [
            _node("MatMul", "x w", "q"),
            _node("RotaryEmbedding", "q cos sin positions", "r", num_heads=HEADS),
            _node("MatMul", "r v", "y"),
        ],
        [_value("x", ["batch", "length", HIDDEN]), _value("positions", ["batch", "length"], TensorProto.INT64)],
        [_value("y", ["batch", "length", 16])],
        weights,
        opset=23,
    )
    return _saved(model, folder, x=_random(1, 3, HIDDEN), positions=np.array([[0, 1, 2]]))


def _behind_contrib(folder: Path) -> PracticalModel:
    """Seventeen MatMuls between contrib nodes, whose output shapes onnx does not infer."""
    nodes, name = [], "x"
    for number in range(17):
        nodes += [_node("MatMul", f"{name} w", f"m{number}"), _node("FastGelu", f"m{number}", f"g{number}", MICROSOFT)]
        name = f"g{number}"
    nodes.append(_node("LayerNormalization", f"{name} s", "y", axis=-1))
    shape = ["batch", "length", HIDDEN]
    weights = {"w": _random(HIDDEN, HIDDEN), "s": _random(HIDDEN) + 1}
    return _saved(_model(nodes, [_value("x", shape)], [_value("y", shape)], weights), folder, x=_random(1, 4, HIDDEN))


def _photograph(folder: Path) -> PracticalModel:
    """A detector that reads pixels as a camera gives them: uint8, channels last, one scale after another."""
    conv: dict[str, Any] = {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1], "strides": [2, 2]}
    nodes = [
        _node("Cast", "image", "f", to=TensorProto.FLOAT),
        _node("Mul", "f scale", "s"),
        _node("Transpose", "s", "t", perm=[0, 3, 1, 2]),
        _node("Conv", "t w", "p3", **conv),
        _node("Conv", "p3 v", "p4", **conv),
        _node("Conv", "p4 v", "p5", **conv),
        *(_node("Reshape", f"p{scale} flat", f"h{scale}") for scale in (3, 4, 5)),
        _node("Concat", "h3 h4 h5", "c", axis=2),
        _node("Sigmoid", "c", "y"),
    ]
    model = _model(
        nodes,
        [_value("image", [1, "height", "width", 3], TensorProto.UINT8)],
        [_value("y", [1, 8, "boxes"])],
        {
            "scale": np.float32(1 / 255),
            "w": _random(8, 3, 3, 3),
            "v": _random(8, 8, 3, 3),
            "flat": np.array([1, 8, -1], np.int64),
        },
    )
    pixels = np.random.default_rng(0).integers(0, 256, (1, 32, 48, 3), np.uint8)
    return _saved(model, folder, image=pixels)


KINDS: Mapping[str, Make] = {
    "simplified_layer_normalization": _simplified_layer_normalization,
    "efficient_nms": _efficient_nms,
    "output_without_shape": _output_without_shape,
    "input_without_shape": _input_without_shape,
    "graph_without_name": _graph_without_name,
    "without_opset_imports": _without_opset_imports,
    "contrib_without_import": _contrib_without_import,
    "unnamed_nodes": _unnamed_nodes,
    "question_marks": _question_marks,
    "weights_missing": _weights_missing,
    "weights_stripped": _weights_stripped,
    "linked_weights": _linked_weights,
    "linear": _linear,
    "convolutions": _convolutions,
    "half_linear": _half_linear,
    "half_convolutions": _half_convolutions,
    "half_inside": _half_inside,
    "sparse": _sparse,
    "recurrent": _recurrent,
    "decoder": _decoder,
    "quantized_decoder": _quantized_decoder,
    "rotary": _rotary,
    "behind_contrib": _behind_contrib,
    "photograph": _photograph,
}
"""Name -> the function that writes the model."""
